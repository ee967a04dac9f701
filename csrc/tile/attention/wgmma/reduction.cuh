// After a work item of many query rows: what blocks leave to others, and what becomes of the whole.
//
// Without clusters it is as in flash_decode/reduction.cuh: the block that has a work tile's first
// key block finishes it, the others leave what they have in the workspace. Here four elements of a
// row go together.
#pragma once

#include "tile/attention/flash_decode/reduction.cuh"
#include "tile/attention/wgmma/products.cuh"

namespace mirage::tile {

// What a block leaves: its nonce; per row its maximum and sum; the product [rows, D].
template <int kRows, int kDepth>
struct WgmmaSpace {
  static constexpr int64_t kRowFloats = kDepth + 4;  // the last four: maximum, sum
  static constexpr int64_t kBlockBytes = sizeof(float4) + kRows * kRowFloats * sizeof(float);
  char* at;
  int blocks;

  __device__ uint64_t* nonce(int block) const {
    return reinterpret_cast<uint64_t*>(at + block * sizeof(float4));
  }
  __device__ float* row(int block, int row) const {
    float* const first = reinterpret_cast<float*>(at + blocks * sizeof(float4));
    return first + (static_cast<int64_t>(block) * kRows + row) * kRowFloats;
  }
  __device__ float4* sums(int block, int row_) const {
    return reinterpret_cast<float4*>(row(block, row_) + kDepth);
  }
  __device__ float4* values(int block, RowElement e) const {
    return reinterpret_cast<float4*>(row(block, e.row) + e.d);
  }
};

// A row's maximum and sum, and four elements of its product, of some keys.
struct WgmmaTotal {
  float maximum = RowMaxima<8>::kLowest, sum = 0.0f;
  float values[4] = {};

  // Relative to a maximum that is not lower.
  __device__ void lower_to(float higher) {
    const float factor = fast_exp(maximum - higher);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] *= factor;
    sum *= factor;
    maximum = higher;
  }

  // Adds what others have, relative to this maximum.
  __device__ void add(float2 row, float4 theirs, float factor) {
    sum += row.y * factor;
    values[0] += theirs.x * factor;
    values[1] += theirs.y * factor;
    values[2] += theirs.z * factor;
    values[3] += theirs.w * factor;
  }
};

// Adds four elements that the items first to last left, kAtOnce of them read at once. `left` has
// maximum and sum, and values, by item.
template <int kAtOnce, class Left>
__device__ void add_left(WgmmaTotal& total, const Left& left, int first, int last) {
#pragma unroll 1
  for (; first <= last; first += kAtOnce) {
    float2 rows[kAtOnce];
    float4 theirs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int item = min(first + i, last);
      rows[i] = left.sums(item);
      theirs[i] = left.values(item);
    }
    float maximum = total.maximum;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) maximum = fmaxf(maximum, rows[i].x);
    total.lower_to(maximum);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float factor = first + i <= last ? fast_exp(rows[i].x - maximum) : 0.0f;
      total.add(rows[i], theirs[i], factor);
    }
  }
}

// Of one row and four of its elements, what blocks left in the workspace.
template <class Space>
struct LeftByBlocks {
  Space space;
  RowElement e;
  __device__ float2 sums(int block) const {
    return __ldcg(reinterpret_cast<const float2*>(space.sums(block, e.row)));
  }
  __device__ float4 values(int block) const { return __ldcg(space.values(block, e)); }
};

// Rows in shared memory: of some items, `rows` each; product, then maximum and sum.
template <int kDepth>
struct LeftRows {
  static constexpr int kPitch = kDepth + 8;  // floats; lines of eight rows use all banks
  float* at;
  int rows;

  __device__ float* row(int item, int row) const { return at + (item * rows + row) * kPitch; }

  // Four elements of the row of all items.
  struct Four {
    LeftRows left;
    RowElement e;
    __device__ float2 sums(int item) const {
      return *reinterpret_cast<const float2*>(left.row(item, e.row) + kDepth);
    }
    __device__ float4 values(int item) const {
      return *reinterpret_cast<const float4*>(left.row(item, e.row) + e.d);
    }
  };
};

// The same of a cluster: what others sent, and a block's own where it left it.
template <int kDepth>
struct LeftInCluster {
  LeftRows<kDepth> sent, own;
  int rank;
  RowElement e;
  __device__ const float* row(int item) const {
    return item == rank ? own.row(0, e.row) : sent.row(item, e.row);
  }
  __device__ float2 sums(int item) const {
    return *reinterpret_cast<const float2*>(row(item) + kDepth);
  }
  __device__ float4 values(int item) const {
    return *reinterpret_cast<const float4*>(row(item) + e.d);
  }
};

// The rows of a work tile as what comes after the combination sees them.
template <class T, int kRows>
class WgmmaResults {
 public:
  __device__ WgmmaResults(const AttentionArgs& args, const WorkTile& work_tile)
      : args_(args),
        work_tile_(work_tile),
        pairs_(
            ((reinterpret_cast<uintptr_t>(args.out) / sizeof(T) | args.out_token | args.out_head) &
             1) == 0) {}

  // Elements come in pairs.
  __device__ void store(RowElement e, float value) const {
    if (e.d % 2 == 0) {
      even_ = value;
    } else if (pairs_) {
      *reinterpret_cast<Pair<T>*>(at_ + e.d - 1) = from_floats<T>(make_float2(even_, value));
    } else {
      at_[e.d - 1] = cast<T>(even_);
      at_[e.d] = cast<T>(value);
    }
  }

  // Turns to a row, whose sum takes its sink and leaves its log. Its products are to be multiplied
  // by the factor then.
  __device__ Divisor begin(int row, float maximum, float sum, bool leads, float& factor) {
    const QueryPlace place = work_tile_.template place<kRows>(args_, row);
    at_ = static_cast<T*>(args_.out) + place.token * args_.out_token + place.head * args_.out_head;
    factor = 1.0f;
    if (args_.sinks != nullptr) {
      const float sink = static_cast<float>(static_cast<const T*>(args_.sinks)[place.head]);
      const float higher = fmaxf(maximum, sink);
      factor = fast_exp(maximum - higher);
      sum = sum * factor + fast_exp(sink - higher);
      maximum = higher;
    }
    if (leads && args_.lse != nullptr) {
      args_.lse[place.token * args_.Hkv * args_.G + place.head] =
          sum > 0.0f ? maximum + fast_log(sum) : -INFINITY;
    }
    return {sum > 0.0f ? reciprocal(sum) : 1.0f};  // of nothing: 0 comes out
  }

  // After::of(rows, element, sum, product) for four elements of a row.
  template <class After>
  __device__ void take(RowElement e, const WgmmaTotal& total) {
    float factor;
    const Divisor sum = begin(e.row, total.maximum, total.sum, e.d == 0, factor);
#pragma unroll
    for (int i = 0; i < 4; ++i) After::of(*this, {e.row, e.d + i}, sum, total.values[i] * factor);
  }

 private:
  const AttentionArgs& args_;
  const WorkTile& work_tile_;
  bool pairs_;  // of elements lie as such in memory
  T* at_ = nullptr;
  mutable float even_ = 0.0f;
};

}  // namespace mirage::tile
