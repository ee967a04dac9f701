// The flags behind assumptions.h, and the private ops that set them.
#include "assumptions.h"

#include <atomic>

#include <torch/csrc/stable/library.h>

namespace mirage {
namespace {

std::atomic<bool> weights_constant{false}, history_constant{false};
thread_local bool just_computed = false;

}  // namespace

void set_constant_weights(bool constant) {
  weights_constant.store(constant, std::memory_order_relaxed);
}
void set_constant_history(bool constant) {
  history_constant.store(constant, std::memory_order_relaxed);
}
bool constant_history() { return history_constant.load(std::memory_order_relaxed); }

void set_fresh_weights(bool fresh) { just_computed = fresh; }
bool constant_weights() {
  return weights_constant.load(std::memory_order_relaxed) && !just_computed;
}

}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  m.def("_set_constant_weights(bool constant) -> ()");
  m.def("_set_fresh_weights(bool fresh) -> ()");
  m.def("_constant_weights() -> bool");
  m.def("_set_constant_history(bool constant) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CompositeExplicitAutograd, m) {
  m.impl("_set_constant_weights", TORCH_BOX(&mirage::set_constant_weights));
  m.impl("_set_fresh_weights", TORCH_BOX(&mirage::set_fresh_weights));
  m.impl("_constant_weights", TORCH_BOX(&mirage::constant_weights));
  m.impl("_set_constant_history", TORCH_BOX(&mirage::set_constant_history));
}
