// Elements that several neighbours of a row have in common, as scales of groups of 8-bit weights. A
// block keeps those of its rows in shared memory.
#pragma once

#include "tile/math/elementwise.cuh"
#include "tile/sync/dependent_launch.cuh"
#include "tile/work.cuh"

namespace mirage::tile {

// [groups, kRows], of kDepth neighbours along the depth: kGroup of them have one element, as do
// kSame rows.
template <class T, int kRows_, int kDepth_, int kGroup_, int kSame_ = 1>
struct RowGroups {
  using Element = T;
  static constexpr int kRows = kRows_, kDepth = kDepth_, kGroup = kGroup_, kSame = kSame_;
  static constexpr int kGroups = kDepth / kGroup;
  static constexpr int kBytes = (kGroups * kRows * static_cast<int>(sizeof(T)) + 127) / 128 * 128;
  char* shared;

  __device__ T* at(int group, int row) const {
    return reinterpret_cast<T*>(shared) + group * kRows + row;
  }
};

// The elements of rows first_row + 0..kRows - 1 of a tensor with so many rows in all, on their way
// from memory to a block's groups, by kThreads threads: prefetch() brings them into L2, ask() loads
// them, keep() stores them.
template <int kThreads, class Groups>
struct GroupsCopy {
  using T = typename Groups::Element;
  static constexpr int kCount = Groups::kGroups * Groups::kRows;
  static constexpr int kEach = (kCount + kThreads - 1) / kThreads;
  Groups groups;
  const T* first;  // of the first row
  int pitch, first_row, rows;
  T values[kEach];

  __device__ const T* row_of_all(int row) const {
    return first + static_cast<int64_t>((first_row + row) / Groups::kSame) * pitch;
  }

  __device__ void prefetch() const {
    const int row = static_cast<int>(threadIdx.x);
    if (row < Groups::kRows && first_row + row < rows) {
      prefetch_l2(row_of_all(row));
    }
  }

  __device__ static int index(int i) { return i * kThreads + static_cast<int>(threadIdx.x); }
  __device__ static int row(int i) { return index(i) / Groups::kGroups; }
  __device__ static int group(int i) { return index(i) % Groups::kGroups; }

  __device__ void ask() {
    unrolled<kEach>([&](int i) {
      const bool inside = index(i) < kCount && first_row + row(i) < rows;
      if (inside) values[i] = row_of_all(row(i))[group(i)];
    });
  }

  __device__ void keep() const {
    unrolled<kEach>([&](int i) {
      if (index(i) < kCount) *groups.at(group(i), row(i)) = values[i];
    });
  }
};

template <int kThreads, class Groups>
__device__ GroupsCopy<kThreads, Groups> copy_of(Groups groups, const typename Groups::Element* from,
                                                int pitch, int first_row, int rows) {
  return {groups, from, pitch, first_row, rows};
}

__device__ inline __half2 twice(__half v) { return __half2half2(v); }
__device__ inline __nv_bfloat162 twice(__nv_bfloat16 v) { return __bfloat162bfloat162(v); }
__device__ inline float2 twice(float v) { return make_float2(v, v); }

// The element of a row's elements from k on, eight times. Past the depth it is that of the last.
template <bool kEvenDepth, class Groups>
__device__ Vec16<typename Groups::Element> group_vector(const Groups& groups, int row, int k) {
  const int group = k / Groups::kGroup;
  const int last = Groups::kGroups - 1;
  const auto pair = twice(*groups.at(kEvenDepth || group < last ? group : last, row));
  Vec16<typename Groups::Element> found;
  unrolled<kLaneDepth / 2>([&](int p) { found.pairs[p] = pair; });
  return found;
}

}  // namespace mirage::tile
