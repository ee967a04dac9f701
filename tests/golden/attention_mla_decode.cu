// mirage-kernels generate mla_decode --arch sm_90a --dtype fp16 --shape C=512,P=64
// Formula  [B, Hq, C] = softmax(scale * (q_latent latent^T + q_rope k_rope^T)) latent over the
//          first seq_lens
// Shape    DeepSeek-V3 and R1, DeepSeek-V2-Lite, Kimi-K2
// Proved   44 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
// Expects  q_latent [B, Hq, C], q_rope [B, Hq, P], latent [B, L, C], k_rope [B, L, P]: lines along
//          C and P contiguous and 16-byte aligned, any other strides, keys and values in pages or
//          dense; B, Hq, L at run time, L by sequence, 0 too.

#include "tile/attention/attention.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

template <class Config>
using Work = tile::AttentionWork<typename Config::T, Config::C, Config, Config::P>;

// With each element of the result, once the sums of all keys are known.
struct AfterCombine {
  template <class Rows>
  __device__ static void of(const Rows& rows, tile::RowElement e, tile::Divisor combine_sum_masked,
                            float combine_masked_product) {
    const float normed_combine_masked_product =
        tile::div(combine_masked_product, combine_sum_masked);
    rows.store(e, normed_combine_masked_product);
  }
};

template <class Config>
__global__ void __launch_bounds__(Work<Config>::kThreads, Work<Config>::kBlocks)
    mla_decode(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(1024) char shared[];
  const float scale = args.scalars[0];

  Work<Config> work(args, shared);
  while (work.next_item()) {
    const auto q_latent_tile = work.queries();     // [Hq, C]
    const auto q_rope_tile = work.more_queries();  // [Hq, P]
    const int seq_lens_tile = work.seq_len();      // [B]
    work.hold_resident(q_latent_tile);             // for all steps of the work item
    work.hold_more_resident(q_rope_tile);
    typename Work<Config>::Maxima peak;             // [Hq]
    typename Work<Config>::Sums sum_masked;         // [Hq]
    typename Work<Config>::Product masked_product;  // [C, Hq]
    while (work.next_step()) {
      const auto latent_tile = work.keys();                          // [L, C]
      const auto k_rope_tile = work.more_keys();                     // [L, P]
      const auto position_L_tile = work.key_positions();             // [L]
      const auto mask = tile::less(position_L_tile, seq_lens_tile);  // [L]
      const auto k_rope_product = work.more_scores(k_rope_tile);     // [Hq, L]
      const auto latent_product = work.scores(latent_tile);          // [Hq, L]
      const auto latent_product_plus_k_rope_product =
          tile::add<float>(latent_product, k_rope_product);
      const auto scaled_latent_product_plus_k_rope_product =
          tile::mul<float>(scale, latent_product_plus_k_rope_product);
      // The running maximum rises to the largest score that the mask shows; both sums become
      // relative to it and add exp(score - maximum) of these keys, the product times their values.
      work.online_softmax(scaled_latent_product_plus_k_rope_product, mask, peak, sum_masked,
                          masked_product);
    }
    work.template combine<AfterCombine>(peak, sum_masked, masked_product);
  }
}

template <class Config>
cudaError_t launch(Config, const AttentionArgs& args, cudaStream_t stream) {
  const auto general = mla_decode<Config>;
  const auto plain = mla_decode<tile::Plain<Config>>;
  return tile::launch_attention<Work<Config>, AfterCombine>(general, plain, args, stream);
}

template <class Config>
int64_t workspace(Config, const AttentionArgs& args) {
  return tile::attention_workspace<Work<Config>>(args);
}

MIRAGE_SHAPE(__half, C = 512, P = 64)
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<1>>;
using AnyRows = FlashAttention<Shape, Rows<64>, Keys<64>, Warps<12>, Stages<2>, Blocks<1>,
                               Producers<4>, Parts<2>>;
using Variants = AttentionKernels<UpTo<8, UpTo8Rows>, Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(mla_decode_C512_P64_fp16)

}  // namespace mirage::generated
