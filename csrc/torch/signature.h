// An op as data: parameters over named dims, from which its schemas, checks and launch follow.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/stable/tensor.h>

namespace mirage {

class Call;

enum class Kind {
  kRows,         // [..., K]: rows may be strided; what a kernel can't read is copied first
  kAddend,       // the same, each element read only by the thread that writes the result's element:
                 // the result may be written over it
  kWeight,       // read where it lies
  kIndices,      // int32 or int64: which slice of stacks, dims "A ..", a token has
  kNumber,       // run-time scalar that is finite
  kNotNegative,  // run-time scalar that is finite and not negative
  kActivation,   // chooses the recipe
  kOwn,          // what the op's own call makes of it
};

// `dims` writes each dim as a letter: "N K"; M stands for all leading dims of x, "2N" for twice N.
struct Parameter {
  const char* name;
  const char* type;  // in a schema: "Tensor?"
  Kind kind = Kind::kOwn;
  const char* dims = "";  // none: not a tensor, or one that only its op knows
  // Kernels take an option only where their table row names it, or where their recipe is the
  // overload's own ("rms_norm_linear_residual"). For any other parameter that a call may leave out,
  // kernels have a place, and the row's `options` say that it may stay empty.
  bool option = false;
  const char* label = nullptr;  // what sentences call it where not by its name
};

// An argument as a call holds it; what it is follows from the parameter's type.
struct Value {
  std::optional<torch::stable::Tensor> tensor;  // none where the call leaves it out
  double number = 0;
  int64_t integer = 0;
  std::string text;
};
using Values = std::vector<Value>;  // in the order of the parameters

struct Signature {
  const char* op;        // "rms_norm_linear"
  const char* overload;  // "" or what makes it another signature: "residual"
  std::vector<Parameter> parameters;
  std::vector<Parameter> results;
  // Checks every argument.
  std::unique_ptr<Call> (*call)(const Signature&, const Values&);
  // Dims that kernels are compiled for; none: all that the parameters name but M.
  const char* static_dims = "";
  // Whether kernels of one recipe alone serve it, the overload's own, with a place for all options;
  // where there is none PyTorch's own program does.
  bool only_own = false;
};

// What a schema stands for. The first two end with `assume`; some are programs in Python:
//   library    the whole op as PyTorch does it (kernels/library.py)
//   composite  the op without options, and what these add before and after (kernels/composite.py)
//   check      the checks alone, for calls that Python computes
//   values     what checking mode says of lengths, tables and ids (kernels/checking.py)
enum class Form { kFunctional, kOut, kCheck, kLibrary, kComposite, kValues };
constexpr Form kForms[] = {Form::kFunctional, Form::kOut,       Form::kCheck,
                           Form::kLibrary,    Form::kComposite, Form::kValues};

// A name below mirage_kernels:: {"_gated_mlp_library", "packed"}.
struct Name {
  std::string op;
  std::string overload;

  std::string text() const { return overload.empty() ? op : op + "." + overload; }
};
Name name_of(const Signature& signature, Form form);

// What sentences call a parameter.
const char* label_of(const Parameter& parameter);

// Whether a call has lengths, tables or ids, whose values may be wrong.
bool has_values(const Signature& signature);

// Whether an op writes into its arguments: then it has no form with `out`.
bool is_in_place(const Signature& signature);

std::string schema_of(const Signature& signature, Form form);

// {"op", "overload", "static_dims", "in_place", "only_own", "parameters": [{"name", "dims", "kind",
// "label"}, ...],
// "results": [...]} as JSON.
std::string json_of(const Signature& signature);

// The recipe whose kernels serve an op, by the activation or norm of a call where it takes one;
// nullptr for a word that there is none for.
const char* recipe_of(const char* op, const std::string& word);

}  // namespace mirage
