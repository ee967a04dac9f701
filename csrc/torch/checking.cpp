// Checking mode, asked for by the environment of the process.
#include "checking.h"

#include <cstdlib>
#include <string>

#include <torch/csrc/stable/library.h>

#include "device.h"

namespace mirage {
namespace {

bool is_asked_for() {
  const char* said = std::getenv("MIRAGE_KERNELS_CHECK");
  return said != nullptr && *said != '\0' && std::string(said) != "0";
}

}  // namespace

bool is_checking() {
  static const bool asked = is_asked_for();
  return asked;
}

bool looks_at_values(const Tensor& x) { return is_checking() || !is_on_gpu(x); }

}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) { m.def("_is_checking() -> bool"); }

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CompositeExplicitAutograd, m) {
  m.impl("_is_checking", TORCH_BOX(&mirage::is_checking));
}
