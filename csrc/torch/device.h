// What a binding needs of the GPU: its architecture checked once, the current stream, the launch.
#pragma once

#include <functional>
#include <string>

#include <cuda_runtime.h>
#include <torch/csrc/stable/tensor.h>

#include "launch.h"

namespace mirage {

// Empty where a GPU of compute capability major.minor runs code built for `arch` ("sm_90a"),
// otherwise the sentence that says what is here, what the GPU is, and what to install.
std::string architecture_complaint(const std::string& arch, int major, int minor,
                                   const std::string& gpu);

// Whether kernels run where a tensor lies.
bool is_on_gpu(const torch::stable::Tensor& tensor);

// PyTorch's current stream of a CUDA device.
cudaStream_t current_stream(int32_t device_index);

// Throws "mirage_kernels: <what> failed: ..." where `status` is an error.
void check_cuda(cudaError_t status, const char* what);

// Throws where the device's driver or architecture can't run this build; asks once per device.
void check_device(int32_t device_index);

// How many multiprocessors a device has; asks once per device.
int32_t multiprocessors(int32_t device_index);

// Launches a kernel on the device's current stream; allocates nothing, waits for nothing.
void launch_on(int32_t device_index, const char* name,
               const std::function<cudaError_t(cudaStream_t)>& kernel);

}  // namespace mirage
