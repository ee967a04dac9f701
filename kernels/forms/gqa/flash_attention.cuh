// mirage-kernels generate gqa
// Schedule  flash attention: few query rows by flash decode, where keys take the M side of mma and
//           the warps of a block take different keys; many rows by wgmma, where query rows take the
//           M side.
// Formula   [B, Hkv, G, D] = softmax(scale * q k^T) v over the first seq_lens keys of each sequence
// Expects   q [B, Hkv, G, D], k [B, L, Hkv, D], v [B, L, Hkv, D]: lines along D contiguous and
//           16-byte aligned, any other strides, keys and values in pages or dense; B, Hkv, G, L at
//           run time, L by sequence, 0 too.
#pragma once

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
    gqa(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(1024) char shared[];
  const float scale = args.scalars[0];

  Work<Config> work(args, shared);
  while (work.next_item()) {
    const auto q_tile = work.queries();             // [G, D]
    const int seq_lens_tile = work.seq_len();       // [B]
    work.hold_resident(q_tile);                     // for all steps of the work item
    typename Work<Config>::Maxima peak;             // [G]
    typename Work<Config>::Sums sum_masked;         // [G]
    typename Work<Config>::Product masked_product;  // [D, G]
    while (work.next_step()) {
      const auto k_tile = work.keys();                                   // [L, D]
      const auto position_L_tile = work.key_positions();                 // [L]
      const auto mask = tile::less(position_L_tile, seq_lens_tile);      // [L]
      const auto k_product = work.scores(k_tile);                        // [G, L]
      const auto scaled_k_product = tile::mul<float>(scale, k_product);  // [G, L]
      // The running maximum rises to the largest score that the mask shows; both sums become
      // relative to it and add exp(score - maximum) of these keys, the product times their values.
      work.online_softmax(scaled_k_product, mask, peak, sum_masked, masked_product);  // [D, G]
    }
    work.template combine<AfterCombine>(peak, sum_masked, masked_product);
  }
}

template <class Config>
cudaError_t launch(Config, const AttentionArgs& args, cudaStream_t stream) {
  const auto general = gqa<Config>;
  const auto plain = gqa<tile::Plain<Config>>;
  return tile::launch_attention<Work<Config>, AfterCombine>(general, plain, args, stream);
}

template <class Config>
int64_t workspace(Config, const AttentionArgs& args) {
  return tile::attention_workspace<Work<Config>>(args);
}

}  // namespace
}  // namespace mirage::generated
