// Variants of an emitted kernel: knobs by name, and which variant serves a call.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "launch.h"

namespace mirage {

// A knob is a constant of a config: Tokens<8> gives kTokens = 8.
#define MIRAGE_KNOB(Name)                     \
  template <int value>                        \
  struct Name {                               \
    static constexpr int k##Name = value;     \
  };
MIRAGE_KNOB(Tokens)
MIRAGE_KNOB(Rows)
MIRAGE_KNOB(Keys)
MIRAGE_KNOB(Line)
MIRAGE_KNOB(Warps)
MIRAGE_KNOB(Chunks)
MIRAGE_KNOB(Stages)
MIRAGE_KNOB(Groups)
MIRAGE_KNOB(Blocks)
MIRAGE_KNOB(Barriers)
MIRAGE_KNOB(Turns)
MIRAGE_KNOB(TmaTiles)
MIRAGE_KNOB(Sets)
MIRAGE_KNOB(Slices)
MIRAGE_KNOB(Dynamic)
MIRAGE_KNOB(Producers)
MIRAGE_KNOB(PrologueWarps)
MIRAGE_KNOB(ProducerRows)
MIRAGE_KNOB(ProducerTokens)
MIRAGE_KNOB(ProducerWarps)
MIRAGE_KNOB(ProducerGroups)
MIRAGE_KNOB(ProducerStages)
#undef MIRAGE_KNOB

// Configs by schedule: a shape and its knobs. The form of a schedule overloads launch() for its
// configs, and workspace() where a launch needs one.
template <class... Knobs>
struct SlicedK : Knobs... {};
template <class... Knobs>
struct RowWise : Knobs... {};
template <class... Knobs>
struct Elementwise : Knobs... {};
template <class... Knobs>
struct RegisterOperand : Knobs... {};
template <class... Knobs>
struct ClusterSplitK : Knobs... {};
template <class... Knobs>
struct AfterPrologue : Knobs... {};
template <class... Knobs>
struct FlashAttention : Knobs... {};

struct AnyConfig {
  template <class Config>
  AnyConfig(Config) {}
};
inline int64_t workspace(AnyConfig, const LaunchArgs&) { return 0; }

// The config for calls of at most so many tokens that the variants before it do not serve.
template <int64_t tokens, class Variant>
struct UpTo {
  static constexpr int64_t kMostTokens = tokens;
  using Config = Variant;
};
template <class Variant>
using Any = UpTo<INT64_MAX, Variant>;

template <class Config>
cudaError_t launch_variant(Config config, const LaunchArgs& args, cudaStream_t stream) {
  return launch(config, args, stream);
}
template <class Config>
int64_t workspace_of(Config config, const LaunchArgs& args) {
  return workspace(config, args);
}

// An input's index, and the elements between its rows that the kernel was compiled for.
struct RowStride {
  int input;
  int64_t elements;
};

// The variants of one shape, the fewest tokens first.
template <class... Variants>
class Kernels {
 public:
  static cudaError_t launch(const LaunchArgs& args, cudaStream_t stream,
                            std::initializer_list<RowStride> strides = {}) {
    return launch(args, stream, strides, [] { return cudaSuccess; });
  }

  // `first` is launched before the variant.
  template <class First>
  static cudaError_t launch(const LaunchArgs& args, cudaStream_t stream,
                            std::initializer_list<RowStride> strides, First first) {
    if (args.dims[0] == 0) return cudaSuccess;
    for (const RowStride& stride : strides)
      if (args.row_strides[stride.input] != stride.elements) return cudaErrorInvalidValue;
    const cudaError_t status = first();
    if (status != cudaSuccess) return status;
    return serve<Variants...>(args.dims[0],
                              [&](auto config) { return launch_variant(config, args, stream); });
  }

  static int64_t workspace(const LaunchArgs& args) {
    return serve<Variants...>(args.dims[0], [&](auto config) { return workspace_of(config, args); });
  }

 private:
  template <class Variant, class... Others, class Call>
  static auto serve(int64_t tokens, Call call) {
    if constexpr (sizeof...(Others) > 0)
      if (tokens > Variant::kMostTokens) return serve<Others...>(tokens, call);
    return call(typename Variant::Config{});
  }
};

}  // namespace mirage
