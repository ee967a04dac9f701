// One call of an op: arguments checked, and the program that serves them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "signature.h"

namespace mirage {

// Who computes the results.
enum class Way {
  kNobody,     // they have no elements
  kKernel,     // a kernel of this build
  kComposite,  // a kernel too, with what it takes no option for done before and after
  kLibrary,    // PyTorch's own program
};

using Results = std::vector<Tensor>;

// The tensors that a call gives, by the labels of their parameters.
std::vector<Argument> given_tensors(const Signature& signature, const Values& values);

// Made by Signature::call, which checks the arguments; they outlive the call.
class Call {
 public:
  virtual ~Call() = default;

  virtual Tensor new_result(size_t index) const = 0;

  // Results that the caller brought: shape, dtype, and memory of their own.
  virtual void check_results(const Results& results) = 0;

  // Finds the kernel that serves the call; may throw where there is none.
  virtual Way way() = 0;

  // Launches the kernel that `way` found.
  virtual void launch(const Results& results) const = 0;

  // What to add to the error of PyTorch's program: how to get a kernel, where there is none.
  virtual std::string hint() const { return ""; }
};

// The ops whose arguments have named dims, any of the same letter alike.
std::unique_ptr<Call> named_dims_call(const Signature& signature, const Values& values);

// gqa, qk_norm_attention, mla_decode: paged or dense keys, lengths, masks.
std::unique_ptr<Call> attention_call(const Signature& signature, const Values& values);

// qk_norm_rope_append, which writes to a paged cache.
std::unique_ptr<Call> append_call(const Signature& signature, const Values& values);

}  // namespace mirage
