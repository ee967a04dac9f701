// A signature becomes an op: what the dispatcher calls for it, and its schemas.
#pragma once

#include <torch/csrc/stable/library.h>

#include "signature.h"

namespace mirage {

// What the dispatcher calls: arguments on the stack, results in their place.
using Boxed = void (*)(StableIValue* stack, uint64_t arguments, uint64_t results);

struct Op {
  const Signature* signature;
  Boxed functional, into, check;
};

void call_functional(const Signature& signature, StableIValue* stack);
void call_into(const Signature& signature, StableIValue* stack);
void call_check(const Signature& signature, StableIValue* stack);

template <const Signature* kTable, size_t kIndex>
Op op_of() {
  return {kTable + kIndex,
          [](StableIValue* stack, uint64_t, uint64_t) { call_functional(kTable[kIndex], stack); },
          [](StableIValue* stack, uint64_t, uint64_t) { call_into(kTable[kIndex], stack); },
          [](StableIValue* stack, uint64_t, uint64_t) { call_check(kTable[kIndex], stack); }};
}

void define(const Signature& signature, torch::stable::detail::StableLibrary& library);
void implement(const Op& op, torch::stable::detail::StableLibrary& library);

}  // namespace mirage
