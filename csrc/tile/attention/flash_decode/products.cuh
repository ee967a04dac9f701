// Attention's products and sums: scores, the running maximum, what is carried relative to it.
#pragma once

#include "tile/attention/tma.cuh"
#include "tile/attention/values.cuh"

namespace mirage::tile {

// Lines of D elements in shared memory, D padded to whole groups of eight vectors. Vectors of a
// line are exchanged within such groups: eight lines read at one vector, and two lines at four
// vectors each, meet every bank once.
template <class T, int kDepth>
struct SharedLines {
  static constexpr int kPitch = (kDepth + 63) / 64 * 64 * static_cast<int>(sizeof(T));
  __device__ static int offset(int line, int vec) {
    const int turned = (line & 1) << 2 | (line >> 1 & 3);
    return line * kPitch + (vec ^ turned) * kVec16Bytes;
  }
};

// The lines of values of one step, [L, D].
template <class T, int kKeys, int kDepth>
struct ValueTile {
  const char* at;
};

// The lines of keys of one step, in registers.
template <class T, int kKeys, int kDepth>
__device__ RowFrag<T, kKeys, kDepth> loaded_keys(const char* stage) {
  return filled<RowFrag<T, kKeys, kDepth>>([&](int i, int c) {
    const int at = KeyBlockLines<T, kDepth>::offset(i * kLineTile + lane_line(),
                                                    c * kChunkVectors + lane_quarter());
    return *reinterpret_cast<const Vec16<T>*>(stage + at);
  });
}

template <class T, int kRows, int kDepth>
struct ResidentRows {  // an N-side operand that all warps read, in shared memory
  const char* at;

  __device__ Vec16<T> vec(int i, int c) const {
    const int offset = SharedLines<T, kDepth>::offset(i * kLineTile + lane_line(),
                                                      c * kChunkVectors + lane_quarter());
    return *reinterpret_cast<const Vec16<T>*>(at + offset);
  }
  __device__ TokenFrag<T, kRows, kChunkDepth> chunk(int c) const {
    return filled<TokenFrag<T, kRows, kChunkDepth>>([&](int i, int) { return vec(i, c); });
  }
  __device__ TokenFrag<T, kRows, kDepth> all() const {
    return filled<TokenFrag<T, kRows, kDepth>>([&](int i, int c) { return vec(i, c); });
  }
};

template <int kRows>
struct RowMaxima : RowVector<float, kRows> {
  static constexpr float kLowest =
      -1e30f;  // finite: no maximum is subtracted from itself as infinity
  __device__ RowMaxima() {
    unrolled<kRows / kTokenTile>([&](int r) { this->at[r][0] = this->at[r][1] = kLowest; });
  }
};

template <int kRows_>
struct Spans<RowMaxima<kRows_>> : Spans<RowVector<float, kRows_>> {};
template <int kRows>
__device__ const RowVector<float, kRows>& aligned(const RowMaxima<kRows>& maxima) {
  return maxima;
}

template <int kRows>
struct RowSums : RowVector<float, kRows> {  // of this lane's keys
  __device__ RowSums() : RowVector<float, kRows>{} {}
};

// [D, rows] fp32: tile (d, r) of 16 elements of a head and 8 rows, as scores have keys and rows.
template <int kDepth_, int kRows_>
struct ValueProduct {
  static constexpr int kDepth = kDepth_, kRows = kRows_;
  float at[kDepth / kRowTile][kRows / kTokenTile][4] = {};
};

// scores[key, row] = sum over D of keys[key, :] * rows[row, :]
template <class T, int kKeyLines, int kRowLines, int kChunks>
__device__ auto scores_of(const Fragment<Dims::kRowsDepth, T, kKeyLines, kChunks>& keys,
                          const Fragment<Dims::kTokensDepth, T, kRowLines, kChunks>& rows) {
  constexpr int kKeys = kKeyLines * kLineTile, kRows = kRowLines * kLineTile;
  Scores<float, kKeys, kRows> scores{}, others{};  // two chains of products are half as long
  unrolled<kChunks, kKeys / kRowTile>([&](int c, int k) {
    const Vec16<T> pair[2] = {keys.at[2 * k][c], keys.at[2 * k + 1][c]};
    unrolled<kRows / kTokenTile>([&](int r) {
      mma<T>(scores.at[k][r], pair, rows.at[r][c], 0);
      mma<T>(others.at[k][r], pair, rows.at[r][c], 1);
    });
  });
  return add<float>(scores, others);
}

template <class T, int kKeyLines, int kChunks, int kRows, int kDepth>
__device__ auto scores_of(const Fragment<Dims::kRowsDepth, T, kKeyLines, kChunks>& keys,
                          ResidentRows<T, kRows, kDepth> rows) {
  Scores<float, kKeyLines * kLineTile, kRows> scores{};
  unrolled<kRows / kTokenTile, kChunks>([&](int r, int c) {
    const auto vec = rows.vec(r, c);
    unrolled<2, kKeyLines / 2>([&](int h, int k) {
      const Vec16<T> pair[2] = {keys.at[2 * k][c], keys.at[2 * k + 1][c]};
      mma<T>(scores.at[k][r], pair, vec, h);
    });
  });
  return scores;
}

// Over the four lanes of a line.
__device__ inline float line_total(float mine) {
  mine += __shfl_xor_sync(~0u, mine, 1);
  return mine + __shfl_xor_sync(~0u, mine, 2);
}

struct Same {
  __device__ static float of(float a) { return a; }
};

template <Dims kDims, class T, int kLines, int kChunks>
__device__ Partial<kDims, kLines * kLineTile> partial_sums(
    const Fragment<kDims, T, kLines, kChunks>& tile) {
  Partial<kDims, kLines * kLineTile> sums;
  if constexpr (std::is_same_v<T, float>) {
    sum_depth(sums, tile);
  } else {
    sum_depth(sums, map<float, Same>(tile));
  }
  return sums;
}

template <int kKeys>
__device__ auto line_totals(const Partial<Dims::kRowsDepth, kKeys>& sums) {
  KeyVector<float, kKeys> result;
  unrolled<kKeys / kLineTile>([&](int i) { result.at[i / 2][i % 2] = line_total(sums.at[i]); });
  return result;
}
template <int kRows>
__device__ auto line_totals(const Partial<Dims::kTokensDepth, kRows>& sums) {
  RowLines<float, kRows> result;
  unrolled<kRows / kLineTile>([&](int i) { result.at[i] = line_total(sums.at[i]); });
  return result;
}

// [.., D] -> [..], summed in fp32.
template <Dims kDims, class T, int kLines, int kChunks>
__device__ auto line_sum(const Fragment<kDims, T, kLines, kChunks>& tile) {
  return line_totals(partial_sums(tile));
}
// The same of products, with another tile or with a vector along D.
template <Dims kDims, class T, int kLines, int kChunks, class B>
__device__ auto line_sum(const Fragment<kDims, T, kLines, kChunks>& tile, const B& factor) {
  return line_sum(mul<float>(tile, factor));
}

// Lines of keys times others: the diagonals of two products, by tensor cores. Half of what these
// compute is not wanted, but they take an eighth of the instructions.
template <class T, int kKeyLines, int kChunks>
__device__ auto line_sum(const Fragment<Dims::kRowsDepth, T, kKeyLines, kChunks>& keys,
                         const Fragment<Dims::kRowsDepth, T, kKeyLines, kChunks>& others) {
  KeyVector<float, kKeyLines * kLineTile> sums;
  unrolled<kKeyLines / 2>([&](int k) {
    float halves[2][2][4] = {};  // of eight lines, of half a chunk
    unrolled<kChunks>([&](int c) {
      const Vec16<T> pair[2] = {keys.at[2 * k][c], keys.at[2 * k + 1][c]};
      unrolled<2, 2>([&](int h, int i) { mma<T>(halves[i][h], pair, others.at[2 * k + i][c], h); });
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // line g times line g is with lane 4 * g + g / 2
      const float (&a)[4] = halves[i][0], (&b)[4] = halves[i][1];
      const bool odd = lane_line() % 2 == 1;
      const float mine = odd ? a[2 * i + 1] + b[2 * i + 1] : a[2 * i] + b[2 * i];
      sums.at[k][i] = __shfl_sync(~0u, mine, lane_line() * 4 + lane_line() / 2);
    }
  });
  return sums;
}

// Over the eight lanes that hold the same rows.
template <class F>
__device__ float over_lines(float mine, F f) {
  mine = f(mine, __shfl_xor_sync(~0u, mine, 4));
  mine = f(mine, __shfl_xor_sync(~0u, mine, 8));
  return f(mine, __shfl_xor_sync(~0u, mine, 16));
}

// What scores may be above their maximum: weights are then within what fp16 holds.
constexpr float kMostAboveMaximum = 11.0f;

// Makes maximum[row] the largest of itself and the row's scores, where one is far above it; sums so
// far become relative to it. Most steps exchange nothing between lanes so (B 1, L 4096: 7.5 to 7.1
// us).
template <int kKeys, int kRows, int kDepth>
__device__ void rescale(RowMaxima<kRows>& maximum, const Scores<float, kKeys, kRows>& scores,
                        RowSums<kRows>& sums, ValueProduct<kDepth, kRows>& product) {
  RowVector<float, kRows> most;
  bool rises = false;
  unrolled<kRows / kTokenTile, 2>([&](int r, int j) {
    float& found = most.at[r][j] = scores.at[0][r][j];
    unrolled<kKeys / kRowTile>(
        [&](int k) { found = fmaxf(found, fmaxf(scores.at[k][r][j], scores.at[k][r][j + 2])); });
    rises |= found > maximum.at[r][j] + kMostAboveMaximum;
  });
  if (!__any_sync(~0u, rises)) return;
#pragma unroll
  for (int r = 0; r < kRows / kTokenTile; ++r) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float higher =
          fmaxf(maximum.at[r][j],
                over_lines(most.at[r][j], [](float a, float b) { return fmaxf(a, b); }));
      const float factor = near_exp(maximum.at[r][j] - higher);
      maximum.at[r][j] = higher;
      sums.at[r][j] *= factor;
      unrolled<kDepth / kRowTile>([&](int d) {
        product.at[d][r][j] *= factor;
        product.at[d][r][j + 2] *= factor;
      });
    }
  }
}

// sums[row] += this lane's keys of weights[:, row]
template <int kKeys, int kRows>
__device__ void sum_over_keys(RowSums<kRows>& sums, const Scores<float, kKeys, kRows>& weights) {
  unrolled<kKeys / kRowTile, kRows / kTokenTile, 2>(
      [&](int k, int r, int j) { sums.at[r][j] += weights.at[k][r][j] + weights.at[k][r][j + 2]; });
}

// An 8 x 8 tile of 2-byte elements, turned within the warp.
__device__ inline uint32_t turned(uint32_t tile) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(tile));
  return result;
}

// Four 8 x 8 tiles, each turned; every lane names a line of one of them.
__device__ inline void load_turned(uint32_t (&tiles)[4], const char* line) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(line));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(at));
}

// product[d, row] += sum over the step's keys of values[key, d] * weights[key, row]
template <class T, int kKeys, int kRows, int kDepth>
__device__ void contract_values(ValueProduct<kDepth, kRows>& product,
                                ValueTile<T, kKeys, kDepth> values,
                                const PackedScores<T, kKeys, kRows>& weights) {
  unrolled<kKeys / kRowTile>([&](int k) {
    uint32_t rows[kRows / kTokenTile][2];
    unrolled<kRows / kTokenTile, 2>(
        [&](int r, int i) { rows[r][i] = turned(bits(weights.at[k][r][i])); });
    const int line = k * kRowTile + lane() / 16 * 8 + lane() % 8;
    unrolled<kDepth / kRowTile>([&](int d) {
      uint32_t tiles[4];
      load_turned(tiles,
                  values.at + KeyBlockLines<T, kDepth>::offset(line, d * 2 + lane() / 8 % 2));
      unrolled<kRows / kTokenTile>([&](int r) { mma<T>(product.at[d][r], tiles, rows[r]); });
    });
  });
}

}  // namespace mirage::tile
