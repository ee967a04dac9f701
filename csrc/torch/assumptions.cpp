// The assumptions of the call that a thread runs.
#include "assumptions.h"

#include <torch/csrc/stable/library.h>

namespace mirage {
namespace {

thread_local int64_t current = 0;

int64_t current_assumptions() { return current; }

}  // namespace

AssumptionScope::AssumptionScope(int64_t assume) : before_(current) {
  if (assume != kAsAround) current = assume;
}

AssumptionScope::~AssumptionScope() { current = before_; }

bool constant_weights() { return (current & kConstantWeights) != 0; }
bool constant_history() { return (current & kConstantHistory) != 0; }

}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) { m.def("_assumptions() -> int"); }

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CompositeExplicitAutograd, m) {
  m.impl("_assumptions", TORCH_BOX(&mirage::current_assumptions));
}
