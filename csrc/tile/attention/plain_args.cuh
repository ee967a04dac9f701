// Calls of plain decoding, which have kernels of their own.
//
// Where the layers of a model follow each other, instruction caches are cold: code that runs once
// takes 5 to 9 cycles per instruction, and what a kernel could do for other calls stands between.
#pragma once

#include <cstdint>
#include <type_traits>

#include "launch.h"
#include "variants.h"

namespace mirage::tile {

// Whether a kernel serves plain calls alone.
MIRAGE_DEFAULT(Plain, 0)

// What kernels of such calls need not ask: all promises are given, lengths and pages are, key
// blocks come by TMA; sequences have equally many query tokens, which see all keys and no sinks.
struct PlainArgs : AttentionArgs {
  static constexpr bool boxed = true, constant_weights = true, constant_history = true;
  static constexpr const int32_t* first_tokens = nullptr;
  static constexpr int32_t first_window = -1;
  static constexpr const void* sinks = nullptr;
  static constexpr float* lse = nullptr;
};

inline bool is_plain(const AttentionArgs& args) {
  const bool promised = args.constant_weights && args.constant_history;
  const bool given = args.block_table != nullptr && args.seq_lens != nullptr;
  const bool even = args.first_tokens == nullptr && args.first_window < 0;
  return args.boxed && promised && given && even && args.sinks == nullptr && args.lse == nullptr;
}

template <class Args>
constexpr bool kIsPlain = std::is_same_v<Args, PlainArgs>;
template <class Args>
__device__ bool has_pages(const Args& args) {
  return kIsPlain<Args> || args.block_table != nullptr;
}
template <class Args>
__device__ bool has_lengths(const Args& args) {
  return kIsPlain<Args> || args.seq_lens != nullptr;
}

template <class Knobs>
using ArgsOf = std::conditional_t<kPlainOf<Knobs> == 1, PlainArgs, AttentionArgs>;

}  // namespace mirage::tile
