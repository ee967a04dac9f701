// TMA: tiles of a tensor, copied by one instruction. Tensor maps are encoded on the host per call.
#pragma once

#include <type_traits>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "tile/copy/predicated.cuh"
#include "tile/sync/cluster.cuh"

namespace mirage::tile {

constexpr int kTmaDepth = 64;            // k of one tile
constexpr int kTmaRowBytes = 128;        // of a 2-byte type: a line of a tile is a cache line
constexpr int kSwizzleAtomBytes = 1024;  // the swizzle repeats after eight lines

// A [lines, depth] tensor with `stride` elements between lines; strides and `data` are multiples of
// 16 bytes.
struct Tensor {
  const void* data;
  int64_t lines, depth, stride;
};

// The driver's encoder, looked up at run time so that nothing links to libcuda.
inline cudaError_t find_encoder(decltype(&cuTensorMapEncodeTiled)* encoder) {
  constexpr unsigned kSince = 12000;
  static void* found = nullptr;
  if (found == nullptr) {
    cudaDriverEntryPointQueryResult result;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                                kSince, cudaEnableDefault, &result);
    if (status != cudaSuccess) return status;
    if (result != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  }
  *encoder = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  return cudaSuccess;
}

// Encodes boxes of a tensor of kDims dims, the fastest first, `strides` in bytes, whose lines have
// kLineBytes bytes, which the swizzle covers. Elements outside the tensor read as zero.
template <class T, int kDims, int kLineBytes = kTmaRowBytes>
cudaError_t encode(CUtensorMap* map, const void* data, const cuuint64_t (&sizes)[kDims],
                   const cuuint64_t (&strides)[kDims - 1], const cuuint32_t (&box)[kDims]) {
  decltype(&cuTensorMapEncodeTiled) encoder = nullptr;
  const cudaError_t status = find_encoder(&encoder);
  if (status != cudaSuccess) return status;
  constexpr auto kType = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const CUresult result =
      encoder(map, kType, kDims, const_cast<void*>(data), sizes, strides, box, steps,
              CU_TENSOR_MAP_INTERLEAVE_NONE,
              kLineBytes == kTmaRowBytes ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
              CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// Tiles of `lines` lines, of kTmaDepth elements each or of half as many.
template <class T>
cudaError_t encode(CUtensorMap* map, const Tensor& tensor, int lines, int elements = kTmaDepth) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(tensor.depth),
                              static_cast<cuuint64_t>(tensor.lines)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(tensor.stride) * sizeof(T)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(elements), static_cast<cuuint32_t>(lines)};
  const auto encoded = elements == kTmaDepth ? encode<T, 2> : encode<T, 2, kTmaRowBytes / 2>;
  return encoded(map, tensor.data, sizes, strides, box);
}

// shared[lines, kTmaDepth] = tensor[line : , k : ]; `shared` is a multiple of kSwizzleAtomBytes.
__device__ inline void copy_tile(char* shared, const CUtensorMap& map, int line, int k,
                                 Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(k), "r"(line), "r"(shared_address(&barrier))
      : "memory");
}

// The same of weights, which are read once.
__device__ inline void copy_tile_once(char* shared, const CUtensorMap& map, int line, int k,
                                      Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(k), "r"(line), "r"(shared_address(&barrier)), "l"(read_once())
      : "memory");
}

// The same tile into L2 only.
__device__ inline void prefetch_tile(const CUtensorMap& map, int line, int k) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map),
               "r"(k), "r"(line)
               : "memory");
}

// Tiles of a [depth, rows] tensor that is read once: kTmaDepth lines of so many rows each, one tile
// behind the other for the kRows rows of a block.
template <int kRows>
struct ColumnTiles {
  static constexpr int kTileRows = kRows % 64 == 0 ? 64 : 32, kTiles = kRows / kTileRows;
  static constexpr int kLineBytes = kTileRows * 2, kBytes = kTmaDepth * kLineBytes;  // of a tile
  static_assert(kRows % kTileRows == 0, "whole tiles");
};

template <int kRows>
__device__ void copy_columns(char* shared, const CUtensorMap& map, int row, int k,
                             Mbarrier& barrier) {
  using Tiles = ColumnTiles<kRows>;
#pragma unroll
  for (int i = 0; i < Tiles::kTiles; ++i) {
    copy_tile_once(shared + i * Tiles::kBytes, map, k, row + i * Tiles::kTileRows, barrier);
  }
}

template <int kRows>
__device__ void prefetch_columns(const CUtensorMap& map, int row, int k) {
  using Tiles = ColumnTiles<kRows>;
#pragma unroll
  for (int i = 0; i < Tiles::kTiles; ++i) prefetch_tile(map, k, row + i * Tiles::kTileRows);
}

// The byte offset of 16-byte vector `vec` of a line in a tile with the 128-byte swizzle: eight
// lines use all banks.
__device__ constexpr int swizzled_offset(int line, int vec) {
  return line * kTmaRowBytes + (vec ^ line % 8) * 16;
}

}  // namespace mirage::tile
