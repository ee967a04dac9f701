// The launch path: architecture check once per device, lookup, current stream, kernel.
#include "device.h"

#include <atomic>

#include <torch/csrc/stable/accelerator.h>

#include "errors.h"

// Lives in libtorch_cuda. Weak, so that this library also loads where PyTorch has no CUDA.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace mirage {
namespace {

constexpr int kMaxDevices = 64;
std::atomic<bool> architecture_is_right[kMaxDevices];
std::atomic<int32_t> multiprocessor_counts[kMaxDevices];

void check_driver() {
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "asking for the driver's version");
  if (driver / 1000 >= CUDART_VERSION / 1000) return;
  fail("mirage_kernels: this build needs a driver for CUDA ", CUDART_VERSION / 1000,
       ", but the installed driver serves CUDA ", driver / 1000, ".", driver % 1000 / 10,
       "; update the NVIDIA driver");
}

// Builds that hold PTX run on later architectures, compiled by the driver when they are loaded.
#ifdef MIRAGE_CARRIES_PTX
constexpr bool kCarriesPtx = true;
#else
constexpr bool kCarriesPtx = false;
#endif

// Most shared memory of a block, in KB, from 8.0 on: CUDA programming guide, compute capabilities.
// Kernels are planned for all of it, so they don't fit a GPU with less.
int shared_kilobytes(int major, int minor) {
  if (major == 8) return minor == 0 || minor == 7 ? 163 : 99;
  return major < 12 ? 227 : 99;
}

}  // namespace

std::string architecture_complaint(const std::string& arch, int major, int minor,
                                   const std::string& gpu) {
  const std::string here = "sm_" + std::to_string(major) + std::to_string(minor);
  // Code for sm_90a ("a": with the features of that one architecture) runs on nothing else.
  const bool exact = arch.back() == 'a';
  const std::string numbers = arch.substr(3, arch.size() - 3 - (exact ? 1 : 0));
  const int built_major = std::stoi(numbers.substr(0, numbers.size() - 1));
  const int built_minor = numbers.back() - '0';
  const bool fits = shared_kilobytes(major, minor) >= shared_kilobytes(built_major, built_minor);
  const bool code = major == built_major && (exact ? minor == built_minor : minor >= built_minor);
  const bool runs = fits && (code || (kCarriesPtx && major > built_major));
  if (runs) return "";
  const std::string wanted = here + (major >= 9 ? "a" : "");
  return "mirage_kernels: this build contains kernels for " + arch + " only, but the GPU (" + gpu +
         ") is " + here + "; install the wheel for " + wanted +
         ", or build it with `make wheel ARCH=" + wanted + "`";
}

void check_device(int32_t device_index) {
  const bool remembered = device_index >= 0 && device_index < kMaxDevices;
  if (remembered && architecture_is_right[device_index].load(std::memory_order_relaxed)) return;
  check_driver();
  cudaDeviceProp gpu;
  check_cuda(cudaGetDeviceProperties(&gpu, device_index), "asking for the GPU's properties");
  const std::string complaint = architecture_complaint(kArch, gpu.major, gpu.minor, gpu.name);
  if (!complaint.empty()) fail(complaint);
  if (remembered) architecture_is_right[device_index].store(true, std::memory_order_relaxed);
}

int32_t multiprocessors(int32_t device_index) {
  const bool remembered = device_index >= 0 && device_index < kMaxDevices;
  if (remembered) {
    const int32_t count = multiprocessor_counts[device_index].load(std::memory_order_relaxed);
    if (count > 0) return count;
  }
  int count = 0;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device_index),
             "asking for the GPU's multiprocessors");
  if (remembered) multiprocessor_counts[device_index].store(count, std::memory_order_relaxed);
  return count;
}

bool is_on_gpu(const torch::stable::Tensor& tensor) { return tensor.is_cuda(); }

cudaStream_t current_stream(int32_t device_index) {
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    fail(
        "mirage_kernels: the installed PyTorch has no CUDA support; install a CUDA build of torch");
  }
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_index, &stream));
  return static_cast<cudaStream_t>(stream);
}

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  // A kernel of this process, ours or another, ended so: tile/sync/bounded_wait.cuh is one reason.
  const char* why = status != cudaErrorLaunchFailure
                        ? ""
                        : "; attention ends so after 10 s where constant_history is promised, but "
                          "lengths or block tables are written just before a call";
  fail("mirage_kernels: ", what, " failed: ", cudaGetErrorName(status), ", ",
       cudaGetErrorString(status), why);
}

void launch_on(int32_t device_index, const char* name,
               const std::function<cudaError_t(cudaStream_t)>& kernel) {
  torch::stable::accelerator::DeviceGuard guard(device_index);
  check_cuda(kernel(current_stream(device_index)), name);
}

}  // namespace mirage
