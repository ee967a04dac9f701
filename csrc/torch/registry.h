// The emitted table of kernels and those that were loaded, asked by recipe, dtype and static dims.
#pragma once

#include <string>

#include "rows.h"

namespace mirage {

// What a call needs. `dims` are the static dims of the recipe, in recipe order.
struct KernelQuery {
  const char* op;
  const char* recipe;
  const char* dtype;
  StaticDim dims[4];
  int dim_count;
};

// Returns nullptr where no kernel of the table serves the query.
const Kernel* find_kernel(const KernelQuery& query);

// The same in the table of attention, whose kernels take other arguments.
const AttentionKernel* find_attention_kernel(const KernelQuery& query);

// Says whether a kernel takes one of its recipe's optional inputs.
bool takes(const Kernel& kernel, const char* option);

// Says what is missing, names the nearest covered shapes and the command that generates the
// query's.
std::string not_covered_sentence(const KernelQuery& query);

// Adds the kernels of a loaded file, which go before those of the same key that the library was
// built with; from any thread. Returns what is wrong with them, empty where they are there now.
std::string add_rows(const KernelRows& rows, const std::string& file);

// All kernels as JSON; "file" is where a loaded one is from:
// [{"name", "arch", "recipe", "dtype", "dims": {"K": 4096, ...}, "max_tokens", "options", "file"},
// ...].
std::string kernel_table_json();

}  // namespace mirage
