// How general kernels are launched: tensors of a call, where they are aligned, and the launch
// itself.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <cuda_runtime.h>

namespace mirage::general {

constexpr int64_t kWorkspaceAlign = 256;
inline int64_t rounded(int64_t bytes) {
  return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

// A tensor in device memory. It is aligned if its rows have their elements side by side and begin
// at multiples of 16 bytes, unless each is known to have an uneven number of them, and rows lie
// side by side too where it is `packed`; or if it is left out. Strides of aligned tensors are ints.
struct Tensor {
  static constexpr int kMostDims = 8;
  void* at;
  int dims;
  int64_t strides[kMostDims];
  bool aligned;
  const void* end;  // behind the last element; where all strides are positive
  int bytes;        // of an element
};

inline Tensor tensor(void* at, const int64_t* strides, int bytes, bool packed, bool uneven,
                     std::initializer_list<int64_t> extents) {
  Tensor made{at, static_cast<int>(extents.size()), {}, reinterpret_cast<uintptr_t>(at) % 16 == 0};
  made.bytes = bytes;
  int64_t beside = 1, last_element = 0;
  for (int i = made.dims - 1; i >= 0; --i) {
    made.strides[i] = strides[i];
    const bool last = i + 1 == made.dims, single = extents.begin()[i] == 1;
    made.aligned &= single || (last || packed ? strides[i] == beside : true);
    made.aligned &= single || last || uneven || strides[i] * bytes % 16 == 0;
    made.aligned &= single || (strides[i] >= 0 && strides[i] <= INT32_MAX);
    beside *= extents.begin()[i];
    last_element += (extents.begin()[i] - 1) * strides[i];
  }
  made.end = static_cast<const char*>(at) + (last_element + 1) * bytes;
  made.aligned |= at == nullptr;
  return made;
}

// The tensors of a call, one after the other.
class Tensors {
 public:
  Tensors(void* const* tensors, const int64_t* strides) : tensors_(tensors), strides_(strides) {}
  Tensor next(int bytes, bool packed, bool uneven, std::initializer_list<int64_t> extents) {
    const Tensor made = tensor(*tensors_++, strides_, bytes, packed, uneven, extents);
    strides_ += made.dims;
    return made;
  }
  // An index tensor of int32 or int64: behind its strides come the bytes of a number.
  Tensor next_index(std::initializer_list<int64_t> extents) {
    const int bytes = static_cast<int>(strides_[extents.size()]);
    const Tensor made = next(bytes, false, false, extents);
    ++strides_;
    return made;
  }

 private:
  void* const* tensors_;
  const int64_t* strides_;
};

// The next tensor of the workspace, its elements side by side.
inline Tensor in_workspace(char*& workspace, int bytes, bool packed, bool uneven,
                           std::initializer_list<int64_t> extents) {
  int64_t strides[Tensor::kMostDims], count = 1;
  for (int i = static_cast<int>(extents.size()) - 1; i >= 0; --i) {
    strides[i] = count;
    count *= extents.begin()[i];
  }
  const Tensor made = tensor(workspace, strides, bytes, packed, uneven, extents);
  workspace += rounded(count * bytes);
  return made;
}

constexpr int kMostBlocks = 8;  // of a cluster

// Shared memory with which no multiprocessor takes more blocks than its share of few: where they
// start while the kernel before still runs, they would crowd on those that have ended.
inline int spread(int64_t blocks, int bytes) {
  constexpr int kMostEach = 4, kSystemBytes = 1024;
  int device = 0, count = 0, all = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const int64_t each = (blocks + count - 1) / count;
  if (each > kMostEach) return bytes;
  const int wanted = all / static_cast<int>(each + 1) - kSystemBytes + 16;
  return bytes > wanted ? bytes : wanted < most ? wanted : most;
}

// The elements of a dim that each of `most` blocks takes: `least` or more, whole steps of a loop.
inline int split(int extent, int least, int step, int most) {
  const int all = (extent + most - 1) / most;
  return all <= least ? least : (all + step - 1) / step * step;
}
inline int parts(int extent, int least, int step, int most) {
  const int each = split(extent, least, step, most);
  return (extent + each - 1) / each;
}

template <class T, int kDims>
void assign(T*& at, int64_t (&strides)[kDims], const Tensor& tensor) {
  at = static_cast<T*>(tensor.at);
  for (int i = 0; i < kDims; ++i) strides[i] = tensor.strides[i];
}

template <class Args>
cudaError_t launch(void (*aligned)(Args), void (*any)(Args), const Args& args, bool is_aligned,
                   int64_t blocks, int threads, int cluster, int shared_bytes,
                   cudaStream_t stream) {
  void (*kernel)(Args) = is_aligned ? aligned : any;
  if (cluster == 1) shared_bytes = spread(blocks, shared_bytes);  // clusters start together
  cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status == cudaSuccess && cluster > 8)
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace mirage::general
