// Variants of an emitted kernel: knobs by name, and which variant serves a call.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "launch.h"

// A knob is a constant of a config: Tokens<8> gives kTokens = 8.
#define MIRAGE_KNOB(Name)                 \
  namespace mirage {                      \
  template <int value>                    \
  struct Name {                           \
    static constexpr int k##Name = value; \
  };                                      \
  }

// What a config has as such a constant: kDynamicOf<Config>; `value` if it says nothing.
#define MIRAGE_DEFAULT(Name, value)     \
  template <class Config, class = void> \
  constexpr int k##Name##Of = value;    \
  template <class Config>               \
  constexpr int k##Name##Of<Config, std::void_t<decltype(Config::k##Name)>> = Config::k##Name;

// A config: a shape and its knobs. The form of a schedule overloads launch() for its configs, and
// workspace() where a launch needs one. Each schedule declares its config and its own knobs beside
// its device code.
#define MIRAGE_SCHEDULE(Name) \
  namespace mirage {          \
  template <class... Knobs>   \
  struct Name : Knobs... {};  \
  }

// What all variants of a kernel have: the element type and the static extents, `K = 4096`.
#define MIRAGE_SHAPE(Element, ...)    \
  struct Shape {                      \
    using T = Element;                \
    static constexpr int __VA_ARGS__; \
  };

// The knobs of several schedules.
MIRAGE_KNOB(Tokens)
MIRAGE_KNOB(Rows)
MIRAGE_KNOB(Warps)
MIRAGE_KNOB(Stages)
MIRAGE_KNOB(Groups)
MIRAGE_KNOB(Blocks)

namespace mirage {

struct AnyConfig {
  template <class Config>
  AnyConfig(Config) {}
};
inline int64_t workspace(AnyConfig, const LaunchArgs&) { return 0; }

// What is launched before any variant of a shape: nothing, unless its form overloads it.
inline cudaError_t launch_first(AnyConfig, const LaunchArgs&, cudaStream_t) { return cudaSuccess; }

// Calls with configs; overloads are found beside the shape.
template <class Config, class Args>
cudaError_t launch_variant(Config config, const Args& args, cudaStream_t stream) {
  return launch(config, args, stream);
}
template <class Config, class Args>
int64_t workspace_of(Config config, const Args& args) {
  return workspace(config, args);
}

struct Always {
  template <class Args>
  static bool holds(const Args&) {
    return true;
  }
};

// The config for calls of at most so many tokens, or query rows of attention, that fulfil a
// condition and that the variants before it do not serve.
template <int64_t size, class Variant, class Condition = Always>
struct UpTo {
  using Config = Variant;
  template <class Args>
  static bool serves(int64_t asked, const Args& args) {
    return asked <= size && Condition::holds(args);
  }
};
template <class Variant, class Condition = Always>
using Any = UpTo<INT64_MAX, Variant, Condition>;

// call(config) of the first variant that serves a call; the last one serves all.
template <class Variant, class... Others, class Args, class Call>
auto serve(int64_t size, const Args& args, Call call) {
  if constexpr (sizeof...(Others) > 0)
    if (!Variant::serves(size, args)) return serve<Others...>(size, args, call);
  return call(typename Variant::Config{});
}

// An input's index, and the elements between its rows that the kernel was compiled for.
struct RowStride {
  int input;
  int64_t elements;
};

// The variants of one shape, the fewest tokens first.
template <class... Variants>
struct Kernels {
  template <class Shape>
  static cudaError_t launch(const LaunchArgs& args, cudaStream_t stream,
                            std::initializer_list<RowStride> strides) {
    if (args.dims[0] == 0) return cudaSuccess;
    for (const RowStride& stride : strides)
      if (args.row_strides[stride.input] != stride.elements) return cudaErrorInvalidValue;
    const cudaError_t status = launch_first(Shape{}, args, stream);
    if (status != cudaSuccess) return status;
    return serve<Variants...>(args.dims[0], args,
                              [&](auto config) { return launch_variant(config, args, stream); });
  }

  static int64_t workspace(const LaunchArgs& args) {
    return serve<Variants...>(args.dims[0], args,
                              [&](auto config) { return workspace_of(config, args); });
  }
};

// The same of attention, the fewest query rows first.
template <class... Variants>
struct AttentionKernels {
  static int64_t rows(const AttentionArgs& args) {
    return static_cast<int64_t>(args.q_len) * args.G;
  }
  static cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
    return serve<Variants...>(rows(args), args,
                              [&](auto config) { return launch_variant(config, args, stream); });
  }
  static int64_t workspace(const AttentionArgs& args) {
    return serve<Variants...>(rows(args), args,
                              [&](auto config) { return workspace_of(config, args); });
  }
};

// The functions that the dispatch table names, of a file's `Shape` and `Variants`; behind the name
// stand the row strides of inputs.
#define MIRAGE_KERNEL(symbol, ...)                                  \
  cudaError_t symbol(const LaunchArgs& args, cudaStream_t stream) { \
    return Variants::launch<Shape>(args, stream, {__VA_ARGS__});    \
  }                                                                 \
  int64_t symbol##_workspace(const LaunchArgs& args) { return Variants::workspace(args); }
#define MIRAGE_ATTENTION(symbol)                                       \
  cudaError_t symbol(const AttentionArgs& args, cudaStream_t stream) { \
    return Variants::launch(args, stream);                             \
  }                                                                    \
  int64_t symbol##_workspace(const AttentionArgs& args) { return Variants::workspace(args); }

}  // namespace mirage
