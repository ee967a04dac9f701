// Numbers of which every token has one, known before the loop: what a norm's statistics are.
//
// Each warp takes some tokens, whole (lines.cuh), and leaves the numbers in shared memory, where
// the loop reads those of the lines that a lane holds, and the epilogue that of an element.
// (Clusters whose blocks take some tokens each were slower: those of four left multiprocessors
// without a block, 24 us against 14 at 16 tokens.)
#pragma once

#include "tile/reduce/across_warps.cuh"
#include "tile/row_wise/rows.cuh"

namespace mirage::tile {

template <int kTokens>
struct TokenTable {
  static constexpr int kBytes = kTokens * sizeof(float);
  float* at;

  __device__ static TokenTable at_bytes(char* shared) { return {reinterpret_cast<float*>(shared)}; }
};

// load(token), then compute(token), for all of a block's tokens, past the last one too; then all
// threads may read what was kept. A warp's first lines are asked for before the weights: behind
// them they would come behind them.
template <int kTokens, int kWarps, class Load, class Compute>
struct TokenPass {
  Load load;
  Compute compute_one;

  __device__ void ask() const {
    if (warp_index() < kTokens) load(warp_index());
  }
  __device__ void compute() const {
#pragma unroll 1
    for (int token = warp_index(); token < kTokens; token += kWarps) {
      if (token >= kWarps) load(token);
      compute_one(token);
    }
    __syncthreads();
  }
};

template <int kTokens, int kWarps, class Load, class Compute>
__device__ TokenPass<kTokens, kWarps, Load, Compute> token_pass(Load load, Compute compute) {
  return {load, compute};
}

// table[token] = value, which all lanes know
template <int kTokens>
__device__ void store_resident(TokenTable<kTokens> table, int token, float value) {
  if (lane() == 0) table.at[token] = value;
}

template <int kTokens>
__device__ float token_value(TokenTable<kTokens> table, Element e) {
  return table.at[e.token];
}

// [M] fp32: of the lines 8 * i + g, as fragments of tokens have them.
template <int kTokens>
struct TokenValues {
  float at[kTokens / kLineTile];
};

template <int kTokens>
__device__ TokenValues<kTokens> token_values(TokenTable<kTokens> table) {
  TokenValues<kTokens> values;
#pragma unroll
  for (int i = 0; i < kTokens / kLineTile; ++i)
    values.at[i] = table.at[i * kLineTile + lane_line()];
  return values;
}

template <int kTokens>
__device__ float2 pair_at(const TokenValues<kTokens>& values, int i, int, int) {
  return make_float2(values.at[i], values.at[i]);
}

// As for one number (lines.cuh): a reciprocal per token.
template <class Out, class T, int kLines, int kChunks, int kTokens>
__device__ Fragment<Dims::kTokensDepth, Out, kLines, kChunks> div(
    const Fragment<Dims::kTokensDepth, T, kLines, kChunks>& a, TokenValues<kTokens> b) {
#pragma unroll
  for (float& value : b.at) value = 1.0f / value;
  return mul<Out>(a, b);
}

}  // namespace mirage::tile
