// Per-token statistics that are known before the loop, such as those of a norm.
//
// Each warp reads some tokens whole (rows.cuh) and stores their numbers in shared memory. The loop
// reads those of a lane's lines, the epilogue that of an element. (Clusters whose blocks share the
// tokens were slower: clusters of four left multiprocessors idle, 24 us against 14 at 16 tokens.)
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

// Calls load(token), then compute(token), for all of a block's tokens, past the last one too; then
// all threads may read what was stored. ask() loads a warp's first lines before the weights, which
// they would otherwise queue behind.
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

// table[token] = value, which all lanes have
template <int kTokens>
__device__ void store_resident(TokenTable<kTokens> table, int token, float value) {
  if (lane() == 0) table.at[token] = value;
}

template <int kTokens>
__device__ float token_value(TokenTable<kTokens> table, Element e) {
  return table.at[e.token];
}

// [M] fp32: of lines 8 * i + g, as in fragments of tokens.
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

// As for one number (rows.cuh): a reciprocal per token.
template <class Out, class T, int kLines, int kChunks, int kTokens>
__device__ Fragment<Dims::kTokensDepth, Out, kLines, kChunks> div(
    const Fragment<Dims::kTokensDepth, T, kLines, kChunks>& a, TokenValues<kTokens> b) {
#pragma unroll
  for (float& value : b.at) value = 1.0f / value;
  return mul<Out>(a, b);
}

}  // namespace mirage::tile
