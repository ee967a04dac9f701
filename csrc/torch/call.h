// One call of an op: arguments checked against the signature, and the program that serves them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "registry.h"
#include "signature.h"

namespace mirage {

// An argument as the call holds it; what it is follows from the parameter's kind.
struct Value {
  const Tensor* tensor = nullptr;  // nullptr where the call leaves it out
  double number = 0;
  const std::string* text = nullptr;
};

// Who computes the results.
enum class Way {
  kNobody,   // they have no elements
  kKernel,   // a kernel of the table
  kAround,   // a kernel too, with what it takes no option for done before and after
  kLibrary,  // PyTorch's own program
};

// One result or two; nullptr in place of the second.
using Results = std::array<const Tensor*, 2>;

class Call {
 public:
  // Checks every argument; values stand in the order of the signature's parameters.
  Call(const Signature& signature, const Value* values);

  Tensor new_result(size_t index) const;

  // Results that the caller brought: shape, dtype, and memory of their own.
  void check_results(const Results& results);

  // Throws where the table has no kernel for the call's static dims.
  Way way();

  // Launches the kernel that `way` found.
  void launch(const Results& results) const;

 private:
  struct Dim {
    char letter;
    int64_t size;
    size_t source;  // index of the parameter whose tensor said so
  };
  // A tensor to compare with the dims that its parameter names.
  struct Shaped {
    Argument argument;
    const char* dims;
    size_t index;  // of the parameter
  };
  static constexpr size_t kMaxDims = 4;

  const Tensor& x() const { return *values_[0].tensor; }
  Argument argument(size_t index) const;
  void check_tensor(size_t index);
  void check_scalar(size_t index);
  void check_shape(const Shaped& shaped);
  [[noreturn]] void fail_dims(const Shaped& shaped, size_t model) const;
  const Dim* find(char letter) const;
  int64_t tokens() const;
  KernelQuery query(const char* recipe) const;
  void find_kernel();
  bool kernel_reads_halves() const;
  bool kernel_takes_options() const;
  bool kernel_has_place(const Parameter& parameter) const;
  bool has_many_tokens() const;

  const Signature& signature_;
  const Value* values_;
  std::array<Dim, kMaxDims> dims_{};
  size_t dim_count_ = 0;
  const char* recipe_;
  const Kernel* kernel_ = nullptr;
  bool is_own_ = false;  // whether the kernel is of the overload's own recipe
};

}  // namespace mirage
