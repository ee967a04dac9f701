// mirage-kernels generate qk_layer_norm_attention --arch sm_90a --dtype fp16 --shape D=128
// Formula  [B, Hkv, G, D] = gqa of layer_norm(q) * q_weight + q_bias and layer_norm(k) * k_weight +
//          k_bias, over D
// Shape    Chameleon-7B (multi-head) and Chameleon-34B; Command-R+ (no biases)
// Proved   72 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
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
    qk_layer_norm_attention(const __grid_constant__ AttentionArgs args) {
  using T = typename Config::T;
  constexpr int D = Config::D;
  extern __shared__ __align__(1024) char shared[];
  const float scale = args.scalars[0];
  const float eps = args.scalars[1];

  Work<Config> work(args, shared);
  while (work.next_item()) {
    const auto q_tile = work.partitioned_queries();                                      // [G, D]
    const auto q_weight_tile = work.partitioned_row_vectors(0);                          // [G, D]
    const auto q_bias_tile = work.partitioned_row_vectors(1);                            // [G, D]
    const auto k_weight_tile = work.vector(2);                                           // [D]
    const auto k_bias_tile = work.vector(3);                                             // [D]
    const int seq_lens_tile = work.seq_len();                                            // [B]
    const auto sum_q = tile::line_sum(q_tile);                                           // [G]
    const auto mean_q = tile::div<float>(sum_q, float{D});                               // [G]
    const auto q_minus_mean_q = tile::sub<float>(q_tile, mean_q);                        // [G, D]
    const auto q_minus_mean_q_squared = tile::line_sum(q_minus_mean_q, q_minus_mean_q);  // [G]
    const auto mean_q_minus_mean_q_squared = tile::div<float>(q_minus_mean_q_squared, float{D});
    const auto mean_q_minus_mean_q_squared_plus =
        tile::add<float>(mean_q_minus_mean_q_squared, eps);
    const auto root = tile::sqrt<float>(mean_q_minus_mean_q_squared_plus);      // [G]
    const auto normed_q_minus_mean_q = tile::div<float>(q_minus_mean_q, root);  // [G, D]
    const auto scaled_normed_q_minus_mean_q =
        tile::mul<float>(normed_q_minus_mean_q, q_weight_tile);
    const auto scaled_normed_q_minus_mean_q_plus =
        tile::add<float>(scaled_normed_q_minus_mean_q, q_bias_tile);
    const auto scaled_scaled_normed_q_minus_mean_q_plus =
        tile::mul<T>(scaled_normed_q_minus_mean_q_plus, scale);
    work.hold_resident(scaled_scaled_normed_q_minus_mean_q_plus);  // for all steps of the work item
    typename Work<Config>::Maxima peak;                            // [G]
    typename Work<Config>::Sums sum_masked;                        // [G]
    typename Work<Config>::Product masked_product;                 // [D, G]
    while (work.next_step()) {
      const auto k_tile = work.keys();                                                     // [L, D]
      const auto position_L_tile = work.key_positions();                                   // [L]
      const auto sum_k = tile::line_sum(k_tile);                                           // [L]
      const auto mean_k = tile::div<float>(sum_k, float{D});                               // [L]
      const auto k_minus_mean_k = tile::sub<float>(k_tile, mean_k);                        // [L, D]
      const auto k_minus_mean_k_squared = tile::line_sum(k_minus_mean_k, k_minus_mean_k);  // [L]
      const auto mean_k_minus_mean_k_squared = tile::div<float>(k_minus_mean_k_squared, float{D});
      const auto mean_k_minus_mean_k_squared_plus =
          tile::add<float>(mean_k_minus_mean_k_squared, eps);
      const auto root_2 = tile::sqrt<float>(mean_k_minus_mean_k_squared_plus);      // [L]
      const auto normed_k_minus_mean_k = tile::div<float>(k_minus_mean_k, root_2);  // [L, D]
      const auto scaled_normed_k_minus_mean_k =
          tile::mul<float>(normed_k_minus_mean_k, k_weight_tile);
      const auto scaled_normed_k_minus_mean_k_plus =
          tile::add<T>(scaled_normed_k_minus_mean_k, k_bias_tile);
      const auto mask = tile::less(position_L_tile, seq_lens_tile);  // [L]
      const auto scaled_scaled_normed_q_minus_mean_q_plus_product =
          work.scores(scaled_normed_k_minus_mean_k_plus);
      // The running maximum rises to the largest score that the mask shows; both sums become
      // relative to it and add exp(score - maximum) of these keys, the product times their values.
      work.online_softmax(scaled_scaled_normed_q_minus_mean_q_plus_product, mask, peak, sum_masked,
                          masked_product);
    }
    work.template combine<AfterCombine>(peak, sum_masked, masked_product);
  }
}

template <class Config>
cudaError_t launch(Config, const AttentionArgs& args, cudaStream_t stream) {
  const auto general = qk_layer_norm_attention<Config>;
  const auto plain = qk_layer_norm_attention<tile::Plain<Config>>;
  return tile::launch_attention<Work<Config>, AfterCombine>(general, plain, args, stream);
}

template <class Config>
int64_t workspace(Config, const AttentionArgs& args) {
  return tile::attention_workspace<Work<Config>>(args);
}

MIRAGE_SHAPE(__half, D = 128, kKeyWork = 2)
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<2>, Blocks<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>>;
using AnyRows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<8>, Stages<2>, Blocks<1>>;
using Variants = AttentionKernels<UpTo<8, UpTo8RowsFewTiles, tile::FewTiles<8, 128, 2>>,
                                  UpTo<8, UpTo8Rows>, Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(qk_layer_norm_attention_D128_fp16)

}  // namespace mirage::generated
