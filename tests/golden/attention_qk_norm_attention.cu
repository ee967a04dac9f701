// mirage-kernels generate qk_norm_attention --arch sm_90a --dtype fp16 --shape D=128
// Formula  [B, Hkv, G, D] = gqa of q and k after rms_norm over D, by their weights plus
//          weight_offset
// Shape    Qwen3-8B and Qwen3-32B; Gemma-3-27B (weight_offset is 1)
// Proved   142 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
// Expects  q [B, Hkv, G, D], k [B, L, Hkv, D], v [B, L, Hkv, D]: lines along D contiguous and
//          16-byte aligned, any other strides, keys and values in pages or dense; B, Hkv, G, L at
//          run time, L by sequence, 0 too.

#include "tile/attention/attention.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

template <class Config>
using Work = tile::AttentionWork<typename Config::T, Config::D, Config>;

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
    qk_norm_attention(const __grid_constant__ AttentionArgs args) {
  using T = typename Config::T;
  constexpr int D = Config::D;
  extern __shared__ __align__(1024) char shared[];
  const float scale = args.scalars[0];
  const float eps = args.scalars[1];
  const float weight_offset = args.scalars[2];

  Work<Config> work(args, shared);
  while (work.next_item()) {
    const auto q_tile = work.partitioned_queries();                                      // [G, D]
    const auto q_weight = work.partitioned_vector(0);                                    // [D]
    const auto k_weight = work.partitioned_vector(1);                                    // [D]
    const int seq_lens_tile = work.seq_len();                                            // [B]
    const auto q_squared = tile::line_sum(q_tile, q_tile);                               // [G]
    const auto weight_offset_plus_q_weight = tile::add<float>(q_weight, weight_offset);  // [D]
    const auto weight_offset_plus_k_weight = tile::add<float>(k_weight, weight_offset);  // [D]
    const auto weight_offset_plus_q_weight_times_weight_offset_plus_k_weight =
        tile::mul<float>(weight_offset_plus_q_weight, weight_offset_plus_k_weight);
    const auto mean_q_squared = tile::div<float>(q_squared, float{D});           // [G]
    const auto mean_q_squared_plus_eps = tile::add<float>(eps, mean_q_squared);  // [G]
    const auto root = tile::sqrt<float>(mean_q_squared_plus_eps);                // [G]
    const auto scaled_q =
        tile::mul<float>(q_tile, weight_offset_plus_q_weight_times_weight_offset_plus_k_weight);
    const auto normed_scaled_q = tile::div<T>(scaled_q, root);  // [G, D]
    work.hold_resident(normed_scaled_q);                        // for all steps of the work item
    typename Work<Config>::Maxima peak;                         // [G]
    typename Work<Config>::Sums sum_masked;                     // [G]
    typename Work<Config>::Product masked_product;              // [D, G]
    while (work.next_step()) {
      const auto k_tile = work.keys();                                             // [L, D]
      const auto position_L_tile = work.key_positions();                           // [L]
      const auto mask = tile::less(position_L_tile, seq_lens_tile);                // [L]
      const auto k_squared = tile::line_sum(k_tile, k_tile);                       // [L]
      const auto normed_scaled_q_product = work.scores(k_tile);                    // [L, G]
      const auto mean_k_squared = tile::div<float>(k_squared, float{D});           // [L]
      const auto mean_k_squared_plus_eps = tile::add<float>(eps, mean_k_squared);  // [L]
      const auto root_2 = tile::sqrt<float>(mean_k_squared_plus_eps);              // [L]
      const auto normed_root_2 = tile::div<float>(scale, root_2);                  // [L]
      const auto scaled_normed_scaled_q_product =
          tile::mul<float>(normed_scaled_q_product, normed_root_2);
      // The running maximum rises to the largest score that the mask shows; both sums become
      // relative to it and add exp(score - maximum) of these keys, the product times their values.
      work.online_softmax(scaled_normed_scaled_q_product, mask, peak, sum_masked, masked_product);
    }
    work.template combine<AfterCombine>(peak, sum_masked, masked_product);
  }
}

template <class Config>
cudaError_t launch(Config, const AttentionArgs& args, cudaStream_t stream) {
  const auto general = qk_norm_attention<Config>;
  const auto plain = qk_norm_attention<tile::Plain<Config>>;
  return tile::launch_attention<Work<Config>, AfterCombine>(general, plain, args, stream);
}

template <class Config>
int64_t workspace(Config, const AttentionArgs& args) {
  return tile::attention_workspace<Work<Config>>(args);
}

MIRAGE_SHAPE(__half, D = 128, kKeyWork = 1)
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<3>, Blocks<1>>;
using UpTo8RowsManyTiles =
    FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>, Dynamic<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>>;
using UpTo16Rows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<8>, Stages<2>, Blocks<1>>;
using AnyRows = FlashAttention<Shape, Rows<128>, Keys<64>, Warps<12>, Stages<3>, Blocks<1>,
                               Producers<4>, KeySums<1>>;
using Variants = AttentionKernels<UpTo<8, UpTo8RowsFewTiles, tile::FewTiles<8, 128, 1>>,
                                  UpTo<8, UpTo8RowsManyTiles, tile::ManyTiles<UpTo8RowsManyTiles>>,
                                  UpTo<8, UpTo8Rows>, UpTo<16, UpTo16Rows>,
                                  UpTo<32, UpTo8RowsFewTiles, tile::FewTiles<8, 128, 1>>,
                                  UpTo<32, UpTo8RowsManyTiles, tile::ManyTiles<UpTo8RowsManyTiles>>,
                                  UpTo<32, UpTo8Rows>, Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(qk_norm_attention_D128_fp16)

}  // namespace mirage::generated
