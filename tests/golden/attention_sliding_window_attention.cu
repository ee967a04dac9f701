// mirage-kernels generate sliding_window_attention --arch sm_90a --dtype fp16 --shape D=128
// Formula  [B, T, Hkv, G, D] = softmax(scale * q k^T) v, each query token over the last `window`
//          keys up to its own
// Shape    Mistral-7B-v0.1; Gemma-3-27B (window is 1024)
// Proved   128 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
// Expects  q [B, T, Hkv, G, D], k [B, L, Hkv, D], v [B, L, Hkv, D]: lines along D contiguous and
//          16-byte aligned, any other strides, keys and values in pages or dense; B, Hkv, T, G, L
//          at run time, L by sequence, 0 too.

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
    sliding_window_attention(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(1024) char shared[];
  const float scale = args.scalars[0];
  const int window = args.integers[0];

  Work<Config> work(args, shared);
  while (work.next_item()) {
    const auto q_tile = work.queries();              // [T, G, D]
    const int seq_lens_tile = work.seq_len();        // [B]
    const auto position_T_tile = work.row_tokens();  // [T]
    const int int_size_T = work.token_count();
    const int seq_lens_minus_int_size_T = seq_lens_tile - int_size_T;  // [B]
    const auto seq_lens_minus_int_size_T_plus =
        tile::add<int>(position_T_tile, seq_lens_minus_int_size_T);
    const int int_1_minus_int_size_T = 1 - int_size_T;
    const int int_1_minus_int_size_T_plus = seq_lens_tile + int_1_minus_int_size_T;  // [B]
    const auto int_1_minus_int_size_T_plus_plus =
        tile::add<int>(position_T_tile, int_1_minus_int_size_T_plus);
    work.hold_resident(q_tile);                     // for all steps of the work item
    typename Work<Config>::Maxima peak;             // [T, G]
    typename Work<Config>::Sums sum_masked;         // [T, G]
    typename Work<Config>::Product masked_product;  // [D, T, G]
    while (work.next_step()) {
      const auto k_tile = work.keys();                                                  // [L, D]
      const auto position_L_tile = work.key_positions();                                // [L]
      const auto position_L_plus_window = tile::add<int>(window, position_L_tile);      // [L]
      const auto mask = tile::less(position_L_tile, int_1_minus_int_size_T_plus_plus);  // [L, T]
      const auto mask_2 = tile::less(seq_lens_minus_int_size_T_plus, position_L_plus_window);
      const auto mask_3 = tile::both(mask, mask_2);                      // [L, T]
      const auto k_product = work.scores(k_tile);                        // [T, G, L]
      const auto scaled_k_product = tile::mul<float>(scale, k_product);  // [T, G, L]
      // The running maximum rises to the largest score that the mask shows; both sums become
      // relative to it and add exp(score - maximum) of these keys, the product times their values.
      work.online_softmax(scaled_k_product, mask_3, peak, sum_masked, masked_product);  // [D, T, G]
    }
    work.template combine<AfterCombine>(peak, sum_masked, masked_product);
  }
}

template <class Config>
cudaError_t launch(Config, const AttentionArgs& args, cudaStream_t stream) {
  const auto general = sliding_window_attention<Config>;
  const auto plain = sliding_window_attention<tile::Plain<Config>>;
  return tile::launch_attention<Work<Config>, AfterCombine>(general, plain, args, stream);
}

template <class Config>
int64_t workspace(Config, const AttentionArgs& args) {
  return tile::attention_workspace<Work<Config>>(args);
}

MIRAGE_SHAPE(__half, D = 128)
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<3>, Blocks<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>>;
using UpTo16Rows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<4>, Stages<2>, Blocks<2>>;
using UpTo32Rows =
    FlashAttention<Shape, Rows<128>, Keys<64>, Warps<12>, Stages<3>, Blocks<1>, Producers<4>>;
using Variants =
    AttentionKernels<UpTo<8, UpTo8RowsFewTiles, tile::FewTiles<8, 128>>, UpTo<8, UpTo8Rows>,
                     UpTo<16, UpTo8RowsFewTiles, tile::FewTiles<8, 128>>, UpTo<16, UpTo16Rows>,
                     UpTo<32, UpTo8RowsFewTiles, tile::FewTiles<8, 128>>, Any<UpTo32Rows>>;

}  // namespace

MIRAGE_ATTENTION(sliding_window_attention_D128_fp16)

}  // namespace mirage::generated
