// The memory floor's kernels as ops, so that benchmarks time them in the process they judge.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include "bench/floor.h"
#include "device.h"

namespace mirage {
namespace {

using torch::stable::Tensor;

void read_floor(Tensor data, int64_t variant, Tensor sink) {
  const int32_t device_index = data.get_device_index();
  check_device(device_index);
  const int64_t bytes = data.numel() * static_cast<int64_t>(data.element_size());
  launch_on(device_index, "the floor kernel", [&](cudaStream_t stream) {
    return bench::read_floor(data.const_data_ptr(), bytes, static_cast<int>(variant),
                             sink.mutable_data_ptr(), stream);
  });
}

int64_t read_floor_variants() { return bench::read_floor_variants(); }

}  // namespace
}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  m.def("_read_floor(Tensor data, int variant, Tensor(a!) sink) -> ()");
  m.def("_read_floor_variants() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CUDA, m) {
  m.impl("_read_floor", TORCH_BOX(&mirage::read_floor));
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CompositeExplicitAutograd, m) {
  m.impl("_read_floor_variants", TORCH_BOX(&mirage::read_floor_variants));
}
