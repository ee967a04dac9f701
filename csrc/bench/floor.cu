// The memory floor: bare kernels that read given bytes once, the yardstick of `cold / floor`.
//
// Which shape of kernel reads fastest depends on the size, so there are several: vectorised loads
// over grids of one block per piece, and bulk copies into a ring of shared memory.
#include "bench/floor.h"

// Bulk copies begin with sm_90; a block of sm_120 has no shared memory for the largest rings. A
// build is for one architecture, so that host code may ask for it.
#define MIRAGE_BULK_COPIES (__CUDA_ARCH_LIST__ >= 900)
#define MIRAGE_LARGE_RINGS (__CUDA_ARCH_LIST__ < 1200)

#if MIRAGE_BULK_COPIES
#include "tile/sync/cluster.cuh"
#endif

namespace mirage::bench {
namespace {

constexpr uint32_t kUnlikely = 0x9e3779b9;

__device__ void use(uint32_t sum, uint32_t* sink) {
  if (sum == kUnlikely) *sink = sum;
}

__device__ uint4 load_once(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

// kUnroll independent 16-byte loads per thread in flight; the grid walks the data together.
template <int kThreads, int kUnroll>
__global__ void __launch_bounds__(kThreads)
    read_vectors(const uint4* __restrict__ data, int64_t count, uint32_t* sink) {
  const int64_t piece = static_cast<int64_t>(kThreads) * kUnroll;
  uint32_t sum = 0;
  for (int64_t at = blockIdx.x * piece + threadIdx.x; at < count; at += gridDim.x * piece) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = at + u * kThreads;
      v[u] = i < count ? load_once(data + i) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  use(sum, sink);
}

#if MIRAGE_BULK_COPIES
// One thread per block keeps kStages bulk copies of kPiece bytes in flight.
template <int kPiece, int kStages>
__global__ void __launch_bounds__(32)
    read_bulk(const char* __restrict__ data, int64_t bytes, uint32_t* sink) {
  extern __shared__ __align__(128) char ring[];
  __shared__ tile::Mbarrier full[kStages];
  if (threadIdx.x != 0) return;
  for (int s = 0; s < kStages; ++s) tile::init(full[s]);
  tile::fence_init();
  const int64_t pieces = (bytes + kPiece - 1) / kPiece;
  const auto request = [&](int64_t piece, int s) {
    const int64_t left = bytes - piece * kPiece;
    tile::copy_bulk(ring + s * kPiece, data + piece * kPiece,
                    static_cast<uint32_t>(left < kPiece ? left : kPiece), full[s]);
  };
  const int64_t stride = gridDim.x;
  for (int s = 0; s < kStages; ++s) {
    const int64_t piece = blockIdx.x + s * stride;
    if (piece < pieces) request(piece, s);
  }
  uint32_t sum = 0;
  int s = 0;
  uint32_t parity = 0;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += stride) {
    tile::wait(full[s], parity);
    sum += *reinterpret_cast<volatile uint32_t*>(ring + s * kPiece);
    const int64_t next = piece + kStages * stride;
    if (next < pieces) request(next, s);
    if (++s == kStages) {
      s = 0;
      parity ^= 1;
    }
  }
  use(sum, sink);
}
#endif

struct Request {
  const void* data;
  int64_t bytes;
  uint32_t* sink;
  cudaStream_t stream;
};

using Variant = cudaError_t (*)(const Request&);

cudaError_t multiprocessors(int* count) {
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

// kBlocksPerSm = 0: as many blocks as pieces, each reads once.
template <int kThreads, int kUnroll, int kBlocksPerSm>
cudaError_t vectors(const Request& r) {
  int sms = 0;
  const cudaError_t status = multiprocessors(&sms);
  if (status != cudaSuccess) return status;
  const int64_t count = r.bytes / static_cast<int64_t>(sizeof(uint4));
  const int64_t piece = kThreads * kUnroll, pieces = (count + piece - 1) / piece;
  const int64_t resident = static_cast<int64_t>(sms) * kBlocksPerSm;
  const int64_t grid = kBlocksPerSm == 0 || pieces < resident ? pieces : resident;
  read_vectors<kThreads, kUnroll><<<static_cast<unsigned>(grid), kThreads, 0, r.stream>>>(
      static_cast<const uint4*>(r.data), count, r.sink);
  return cudaGetLastError();
}

#if MIRAGE_BULK_COPIES
template <int kPiece, int kStages, int kBlocksPerSm>
cudaError_t bulk(const Request& r) {
  int sms = 0;
  cudaError_t status = multiprocessors(&sms);
  if (status != cudaSuccess) return status;
  constexpr int kShared = kPiece * kStages;
  status = cudaFuncSetAttribute(read_bulk<kPiece, kStages>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status != cudaSuccess) return status;
  const int64_t pieces = (r.bytes + kPiece - 1) / kPiece;
  const int64_t resident = static_cast<int64_t>(sms) * kBlocksPerSm;
  const int64_t grid = pieces < resident ? pieces : resident;
  read_bulk<kPiece, kStages><<<static_cast<unsigned>(grid), 32, kShared, r.stream>>>(
      static_cast<const char*>(r.data), r.bytes, r.sink);
  return cudaGetLastError();
}
#endif

constexpr Variant kVariants[] = {
    vectors<256, 4, 0>,  vectors<256, 8, 0>,  vectors<512, 4, 0>,
    vectors<512, 8, 0>,  vectors<512, 8, 1>,  vectors<512, 8, 2>,
    vectors<1024, 4, 1>, vectors<1024, 4, 2>, vectors<256, 8, 4>,
#if MIRAGE_BULK_COPIES
    bulk<8192, 8, 1>,
#if MIRAGE_LARGE_RINGS
    bulk<8192, 16, 1>,   bulk<16384, 8, 1>,
#endif
    bulk<4096, 16, 2>,   bulk<8192, 12, 2>,   bulk<4096, 8, 4>,
#endif
};

}  // namespace

int read_floor_variants() { return static_cast<int>(sizeof(kVariants) / sizeof(kVariants[0])); }

cudaError_t read_floor(const void* data, int64_t bytes, int variant, void* sink,
                       cudaStream_t stream) {
  if (bytes <= 0) return cudaSuccess;
  if (bytes % 16 != 0 || variant < 0 || variant >= read_floor_variants()) {
    return cudaErrorInvalidValue;
  }
  return kVariants[variant]({data, bytes, static_cast<uint32_t*>(sink), stream});
}

}  // namespace mirage::bench
