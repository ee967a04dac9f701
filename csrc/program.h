// Kernels of fast schedules as programs: what general kernels export, in terms of their launches.
#pragma once

#include "launch.h"
#include "launch_tag.h"

namespace mirage {

// How many tensors, results, dynamic dims and scalars a program has, and dims of each tensor.
struct ProgramShape {
  int inputs, results, dynamic, scalars;
  int ranks[12];
};

inline LaunchArgs program_args(const ProgramShape& shape, void* const* tensors,
                               const int64_t* strides, const int64_t* dims, const double* scalars,
                               void* workspace, bool constant_weights) {
  LaunchArgs args{};
  args.constant_weights = constant_weights;
  for (int i = 0; i < shape.inputs; ++i) {
    args.inputs[i] = tensors[i];
    args.row_strides[i] = strides[shape.ranks[i] > 1 ? shape.ranks[i] - 2 : 0];
    strides += shape.ranks[i];
  }
  for (int i = 0; i < shape.results; ++i) args.outputs[i] = tensors[shape.inputs + i];
  for (int i = 0; i < shape.dynamic; ++i) args.dims[i] = dims[i];
  for (int i = 0; i < shape.scalars; ++i) args.scalars[i] = static_cast<float>(scalars[i]);
  args.workspace = workspace;
  args.nonce = next_launch_tag();
  return args;
}

}  // namespace mirage

// extern "C" functions of a program whose kernel is launched by `symbol`. The one that ends in
// _early launches it with constant weights: see LaunchArgs.
#define MIRAGE_PROGRAM_LAUNCH(name, symbol, constant_weights, ...)                              \
  extern "C" int name(void* const* tensors, const int64_t* strides, const int64_t* dims,        \
                      const double* scalars, char* workspace, void* stream) {                   \
    const mirage::LaunchArgs args = mirage::program_args({__VA_ARGS__}, tensors, strides, dims, \
                                                         scalars, workspace, constant_weights); \
    return mirage::generated::symbol(args, static_cast<cudaStream_t>(stream));                  \
  }
#define MIRAGE_PROGRAM(symbol, signature, ...)                      \
  MIRAGE_PROGRAM_LAUNCH(symbol, symbol, false, __VA_ARGS__)         \
  MIRAGE_PROGRAM_LAUNCH(symbol##_early, symbol, true, __VA_ARGS__)  \
  extern "C" int64_t symbol##_workspace(const int64_t* dims) {      \
    mirage::LaunchArgs args{};                                      \
    const mirage::ProgramShape shape{__VA_ARGS__};                  \
    for (int i = 0; i < shape.dynamic; ++i) args.dims[i] = dims[i]; \
    return mirage::generated::symbol##_workspace(args);             \
  }                                                                 \
  extern "C" {                                                      \
  extern const char symbol##_signature[];                           \
  const char symbol##_signature[] = signature;                      \
  }
