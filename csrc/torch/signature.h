// An op as data: parameters over named dims, from which its checks, launch and schemas follow.
#pragma once

#include <string>
#include <vector>

namespace mirage {

enum class Kind {
  kRows,         // [..., K]: rows may be strided; what a kernel can't read is copied first
  kWeight,       // read where it lies
  kIndices,      // int32 or int64: which slice of stacks, dims "A ..", a token has
  kNumber,       // run-time scalar that is finite
  kNotNegative,  // run-time scalar that is finite and not negative
  kActivation,   // chooses the recipe
};

// `dims` writes each dim as a letter: "N K"; M stands for all leading dims of x, "2N" for twice N.
struct Parameter {
  const char* name;
  Kind kind;
  const char* dims = "";  // none: not a tensor
  // Kernels take an option only where their table row names it, or where their recipe is the
  // overload's own ("rms_norm_linear_residual"). For any other parameter that a call may leave out,
  // kernels have a place, and the row's `options` say that it may stay empty.
  bool option = false;
};

struct Signature {
  const char* op;        // "rms_norm_linear"
  const char* overload;  // "" or what makes it another signature: "residual"
  std::vector<Parameter> parameters;
  std::vector<Parameter> results;
  // Whether kernels of one recipe alone serve it, the overload's own, with a place for all options;
  // where there is none PyTorch's own program does.
  bool only_own = false;
};

// What a schema stands for. Programs are written in Python (kernels/library.py):
//   library  the whole op as PyTorch does it
//   around   the op without options, and what the options add before and after
enum class Form { kFunctional, kOut, kLibrary, kAround };

// A name below mirage_kernels:: {"_gated_mlp_library", "packed"}.
struct Name {
  std::string op;
  std::string overload;

  std::string text() const { return overload.empty() ? op : op + "." + overload; }
};
Name name_of(const Signature& signature, Form form);

// `types` gives each parameter's type in a schema: "Tensor", "Tensor?", "float", "str".
std::string schema_of(const Signature& signature, const std::vector<const char*>& types, Form form);

// [{"op", "overload", "parameters": [{"name", "dims", "kind"}], "results": [...]}, ...] as JSON.
std::string signatures_json(const std::vector<const Signature*>& signatures);

// The recipe whose kernels serve an op; nullptr for an activation that there is none for.
const char* recipe_of(const char* op, const std::string& activation);

}  // namespace mirage
