// Ops that answer questions about the build itself, and add kernels to it; they work without a GPU.
#include <torch/csrc/stable/library.h>

#include <string>
#include <vector>

#include "device.h"
#include "errors.h"
#include "registry.h"
#include "signature.h"

namespace mirage {
namespace {

std::string table() { return kernel_table_json(); }

std::string arch() { return kArch; }

// `rows`: the address of what a shared object exports.
std::string add_kernels(int64_t rows, std::string file) {
  return add_rows(*reinterpret_cast<const KernelRows*>(rows), file);
}

std::string complaint(int64_t major, int64_t minor, std::string gpu) {
  return architecture_complaint(kArch, static_cast<int>(major), static_cast<int>(minor), gpu);
}

std::string not_covered(std::string op, std::string recipe, std::string dtype,
                        std::vector<std::string> names, std::vector<int64_t> sizes) {
  KernelQuery query{op.c_str(), recipe.c_str(), dtype.c_str(), {}, 0};
  for (size_t i = 0; i < names.size() && i < sizes.size() && i < 4; ++i) {
    query.dims[query.dim_count++] = {names[i].c_str(), sizes[i]};
  }
  return not_covered_sentence(query);
}

// "" for an activation or a norm that no recipe has.
std::string recipe(std::string op, std::string word) {
  const char* found = recipe_of(op.c_str(), word);
  return found == nullptr ? "" : found;
}

}  // namespace
}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  m.def("_kernel_table() -> str");
  m.def("_arch() -> str");
  m.def("_add_kernels(int rows, str file) -> str");
  m.def("_architecture_complaint(int major, int minor, str gpu) -> str");
  m.def("_recipe_of(str op, str word) -> str");
  m.def("_not_covered(str op, str recipe, str dtype, str[] names, int[] sizes) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CompositeExplicitAutograd, m) {
  m.impl("_kernel_table", TORCH_BOX(&mirage::table));
  m.impl("_arch", TORCH_BOX(&mirage::arch));
  m.impl("_add_kernels", TORCH_BOX(&mirage::add_kernels));
  m.impl("_architecture_complaint", TORCH_BOX(&mirage::complaint));
  m.impl("_recipe_of", TORCH_BOX(&mirage::recipe));
  m.impl("_not_covered", TORCH_BOX(&mirage::not_covered));
}
