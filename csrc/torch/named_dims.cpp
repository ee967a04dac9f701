// Calls whose arguments have named dims: checks, the choice of program, and the launch.
#include <algorithm>
#include <array>
#include <sstream>

#include <torch/csrc/stable/ops.h>

#include "arguments.h"
#include "assumptions.h"
#include "call.h"
#include "device.h"
#include "errors.h"
#include "registry.h"
#include "workspace.h"

namespace mirage {
namespace {

constexpr char kTokens = 'M';  // all leading dims of x
constexpr char kSlices = 'A';  // of stacks, as many as a call brings

struct Axis {
  char letter;
  int64_t factor;  // 2 in "2N"
};

template <class Visit>
void for_each_axis(const char* dims, Visit visit) {
  int64_t factor = 1;
  for (const char* at = dims; *at != '\0'; ++at) {
    if (*at == ' ') continue;
    if (*at >= '0' && *at <= '9') {
      factor = *at - '0';
      continue;
    }
    visit(Axis{*at, factor});
    factor = 1;
  }
}

bool is_tensor(const Parameter& parameter) { return parameter.dims[0] != '\0'; }

// Table rows and sentences name dims by text.
const char* text_of(char letter) {
  static const char letters[] = "A\0B\0C\0D\0E\0F\0G\0H\0I\0J\0K\0L\0M\0N\0O\0P\0Q\0R\0S\0T";
  return letters + 2 * (letter - 'A');
}

// The two weights that lie in one, "2N K": where the second begins.
const char* second_half(const Tensor& packed) {
  const int64_t bytes = packed.numel() * static_cast<int64_t>(packed.element_size());
  return static_cast<const char*>(packed.const_data_ptr()) + bytes / 2;
}

bool is_packed(const Parameter& parameter) { return parameter.dims[0] == '2'; }

// What an overload adds to the name of a recipe: "_residual". How weights lie is no other recipe.
std::string own_ending(const Signature& signature) {
  std::string overload = signature.overload;
  const std::string packed = "packed";
  if (overload.compare(0, packed.size(), packed) == 0) {
    overload.erase(0, std::min(overload.size(), packed.size() + 1));
  }
  return overload.empty() ? "" : "_" + overload;
}

class NamedDimsCall : public Call {
 public:
  NamedDimsCall(const Signature& signature, const Values& values);

  Tensor new_result(size_t index) const override;
  void check_results(const Results& results) override;
  Way way() override;
  void launch(const Results& results) const override;

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
  std::vector<Argument> apart_from(const Tensor& result) const;
  int64_t tokens() const;
  KernelQuery query(const char* recipe) const;
  void find_kernel();
  bool kernel_reads_halves() const;
  bool kernel_takes_options() const;
  bool kernel_has_place(const Parameter& parameter) const;
  bool has_many_tokens() const;

  const Signature& signature_;
  const Values& values_;
  std::array<Dim, kMaxDims> dims_{};
  size_t dim_count_ = 0;
  const char* recipe_;
  const Kernel* kernel_ = nullptr;
  bool is_own_ = false;  // whether the kernel is of the overload's own recipe
};

NamedDimsCall::NamedDimsCall(const Signature& signature, const Values& values)
    : signature_(signature), values_(values), recipe_(signature.op) {
  half_dtype(argument(0));
  check_has_rows(argument(0));
  for (size_t i = 0; i < signature.parameters.size(); ++i) {
    is_tensor(signature.parameters[i]) ? check_tensor(i) : check_scalar(i);
  }
}

Argument NamedDimsCall::argument(size_t index) const {
  return {signature_.op, signature_.parameters[index].name, *values_[index].tensor};
}

void NamedDimsCall::check_tensor(size_t index) {
  if (!values_[index].tensor) return;
  const Parameter& parameter = signature_.parameters[index];
  const Argument given = argument(index);
  parameter.kind == Kind::kIndices ? check_indices(given, argument(0))
                                   : check_like(given, argument(0));
  check_shape({given, parameter.dims, index});
  if (parameter.kind == Kind::kWeight) check_in_place(given);
}

void NamedDimsCall::check_scalar(size_t index) {
  const Parameter& parameter = signature_.parameters[index];
  if (parameter.kind == Kind::kNotNegative) {
    check_not_negative(signature_.op, parameter.name, values_[index].number);
  }
  if (parameter.kind == Kind::kNumber) {
    check_finite(signature_.op, parameter.name, values_[index].number);
  }
  if (parameter.kind != Kind::kActivation) return;
  recipe_ = recipe_of(signature_.op, values_[index].text);
  if (recipe_ != nullptr) return;
  fail_word({signature_.op, parameter.name, values_[index].text},
            "'silu', 'gelu', 'gelu_tanh' and 'relu'");
}

// Dims that no tensor has named before take their size from this one.
void NamedDimsCall::check_shape(const Shaped& shaped) {
  const Tensor& tensor = shaped.argument.tensor;
  const int64_t rank = tensor.dim(), leading = x().dim() - 1;
  int64_t at = 0;
  std::optional<size_t> model;  // whose shape this one contradicts
  for_each_axis(shaped.dims, [&](Axis axis) {
    if (axis.letter == kTokens) {
      for (int64_t i = 0; i < leading; ++i, ++at) {
        if (at >= rank || tensor.size(at) != x().size(i)) model = model.value_or(0);
      }
      return;
    }
    const int64_t size = at < rank ? tensor.size(at) : 0;
    ++at;
    const Dim* known = find(axis.letter);
    if (known == nullptr) {
      dims_.at(dim_count_++) = {axis.letter, size / axis.factor, shaped.index};
      if (size % axis.factor != 0) model = model.value_or(0);
    } else if (known->size * axis.factor != size) {
      model = model.value_or(known->source);
    }
  });
  if (at != rank) model = 0;
  if (model) fail_dims(shaped, *model);
}

void NamedDimsCall::fail_dims(const Shaped& shaped, size_t model) const {
  std::ostringstream dims, sizes;
  const auto comma = [](const std::ostringstream& text) {
    return text.str().size() > 1 ? ", " : "";
  };
  dims << "[";
  sizes << "[";
  for_each_axis(shaped.dims, [&](Axis axis) {
    dims << comma(dims);
    if (axis.letter == kTokens) {
      dims << "...";
      for (int64_t i = 0; i + 1 < x().dim(); ++i) sizes << comma(sizes) << x().size(i);
      return;
    }
    sizes << comma(sizes);
    if (axis.factor > 1) dims << axis.factor << " ";
    dims << axis.letter;
    const Dim* known = find(axis.letter);
    if (known != nullptr && known->source != shaped.index) {
      sizes << known->size * axis.factor;
    } else {
      sizes << (axis.factor > 1 ? "any even" : "any");
    }
  });
  dims << "]";
  sizes << "]";
  fail_shape(shaped.argument, {dims.str(), sizes.str(), argument(model)});
}

const NamedDimsCall::Dim* NamedDimsCall::find(char letter) const {
  for (size_t i = 0; i < dim_count_; ++i) {
    if (dims_[i].letter == letter) return &dims_[i];
  }
  return nullptr;
}

Tensor NamedDimsCall::new_result(size_t index) const {
  std::vector<int64_t> shape;
  shape.reserve(x().dim());
  for_each_axis(signature_.results[index].dims, [&](Axis axis) {
    if (axis.letter != kTokens) return shape.push_back(find(axis.letter)->size);
    for (int64_t i = 0; i + 1 < x().dim(); ++i) shape.push_back(x().size(i));
  });
  return torch::stable::new_empty(x(), shape);
}

// The tensors that a result may not touch: all but an addend that it takes the very place of.
std::vector<Argument> NamedDimsCall::apart_from(const Tensor& result) const {
  std::vector<Argument> others;
  for (size_t i = 0; i < signature_.parameters.size(); ++i) {
    if (!values_[i].tensor) continue;
    const Tensor& given = *values_[i].tensor;
    const bool is_same = given.const_data_ptr() == result.const_data_ptr() && given.is_contiguous();
    if (signature_.parameters[i].kind != Kind::kAddend || !is_same) others.push_back(argument(i));
  }
  return others;
}

void NamedDimsCall::check_results(const Results& results) {
  std::vector<Argument> made;
  for (size_t i = 0; i < signature_.results.size(); ++i) {
    const Parameter& parameter = signature_.results[i];
    const Argument result{signature_.op, parameter.name, results[i]};
    check_like(result, argument(0));
    check_shape({result, parameter.dims, signature_.parameters.size()});
    check_out(result, apart_from(results[i]));
    check_apart(result, made);
    made.push_back(result);
  }
}

int64_t NamedDimsCall::tokens() const {
  int64_t count = 1;
  for (int64_t i = 0; i + 1 < x().dim(); ++i) count *= x().size(i);
  return count;
}

KernelQuery NamedDimsCall::query(const char* recipe) const {
  KernelQuery query{signature_.op, recipe, half_dtype(argument(0)), {}, 0};
  for (size_t i = 0; i < dim_count_; ++i) {
    if (dims_[i].letter == kSlices) continue;
    query.dims[query.dim_count++] = {text_of(dims_[i].letter), dims_[i].size};
  }
  return query;
}

// A kernel of the overload's own recipe, as long as tokens are few enough for it; of the recipe; or
// of its sibling that has the options as inputs.
void NamedDimsCall::find_kernel() {
  const std::string ending = own_ending(signature_);
  if (!ending.empty() || signature_.only_own) {
    kernel_ = mirage::find_kernel(query((recipe_ + ending).c_str()));
    is_own_ = kernel_ != nullptr && !has_many_tokens();
    if (is_own_ || signature_.only_own) return;
  }
  const Kernel* own = kernel_;
  kernel_ = mirage::find_kernel(query(recipe_));
  if (kernel_ != nullptr && kernel_takes_options()) return;
  const std::string full = std::string(recipe_) + "_full";
  const Kernel* with_options = mirage::find_kernel(query(full.c_str()));
  if (with_options != nullptr) kernel_ = with_options;
  if (kernel_ == nullptr) kernel_ = own;
  if (kernel_ == nullptr) fail(not_covered_sentence(query(recipe_)));
}

Way NamedDimsCall::way() {
  const int64_t count = tokens();
  if (count == 0) return Way::kNobody;
  if (!is_on_gpu(x())) return Way::kLibrary;
  check_device(x().get_device_index());
  find_kernel();
  if (kernel_ == nullptr) return Way::kLibrary;
  if (has_many_tokens() || !kernel_reads_halves()) return Way::kLibrary;
  return kernel_takes_options() ? Way::kKernel : Way::kComposite;
}

// More than those for which the kernel is meant.
bool NamedDimsCall::has_many_tokens() const {
  return kernel_->max_tokens > 0 && tokens() > kernel_->max_tokens;
}

bool NamedDimsCall::kernel_reads_halves() const {
  for (size_t i = 0; i < signature_.parameters.size(); ++i) {
    if (!is_packed(signature_.parameters[i])) continue;
    const auto start = reinterpret_cast<uintptr_t>(second_half(*values_[i].tensor));
    if (start % kAlignmentBytes != 0) return false;
  }
  return true;
}

bool NamedDimsCall::kernel_takes_options() const {
  for (size_t i = 0; i < signature_.parameters.size(); ++i) {
    const Parameter& parameter = signature_.parameters[i];
    const Value& value = values_[i];
    const bool given = value.tensor.has_value() || value.number != 0;
    // An option counts where it is given, any other tensor where it is not.
    const bool counts = parameter.option ? given : is_tensor(parameter) && !given;
    if (counts && !kernel_has_place(parameter)) return false;
  }
  return true;
}

// A kernel of the overload's own recipe has a place for every parameter that its calls give.
bool NamedDimsCall::kernel_has_place(const Parameter& parameter) const {
  return (is_own_ && parameter.option) || takes(*kernel_, parameter.name);
}

void NamedDimsCall::launch(const Results& results) const {
  LaunchArgs args{};
  std::vector<Rows> kept;  // copies that are read until the launch
  int inputs = 0, scalars = 0;
  for (size_t i = 0; i < signature_.parameters.size(); ++i) {
    const Parameter& parameter = signature_.parameters[i];
    if (parameter.option && !kernel_has_place(parameter)) continue;
    const Tensor* tensor = values_[i].tensor ? &*values_[i].tensor : nullptr;
    if (!is_tensor(parameter)) {
      if (parameter.kind == Kind::kActivation) continue;
      args.scalars[scalars++] = static_cast<float>(values_[i].number);
    } else if (parameter.kind == Kind::kIndices) {
      const bool moved = !tensor->is_contiguous();
      kept.push_back({moved ? torch::stable::contiguous(*tensor) : *tensor, tokens(), 1});
      args.slice_ids = kept.back().tensor.const_data_ptr();
      args.wide_ids = tensor->element_size() == sizeof(int64_t);
      args.slices = find(kSlices)->size;
    } else if (tensor == nullptr) {
      ++inputs;
    } else if (parameter.kind == Kind::kRows || parameter.kind == Kind::kAddend) {
      kept.push_back(rows_of(*tensor));
      args.inputs[inputs] = kept.back().tensor.const_data_ptr();
      args.row_strides[inputs++] = kept.back().stride;
    } else {
      args.inputs[inputs] = tensor->const_data_ptr();
      args.row_strides[inputs++] = tensor->size(tensor->dim() - 1);
      if (!is_packed(parameter)) continue;
      args.inputs[inputs] = second_half(*tensor);
      args.row_strides[inputs] = args.row_strides[inputs - 1];
      ++inputs;
    }
  }
  for (size_t i = 0; i < signature_.results.size(); ++i) {
    args.outputs[i] = results[i].mutable_data_ptr();
  }
  args.dims[0] = tokens();
  args.constant_weights = constant_weights();
  std::optional<Tensor> workspace;  // is written and read until the kernel ends
  if (kernel_->workspace != nullptr) {
    workspace = new_workspace(kernel_->workspace(args), x());
    args.workspace = workspace->mutable_data_ptr();
    args.nonce = next_launch_tag();
  }
  launch_on(x().get_device_index(), kernel_->name,
            [&](cudaStream_t stream) { return kernel_->launch(args, stream); });
}

}  // namespace

std::unique_ptr<Call> named_dims_call(const Signature& signature, const Values& values) {
  return std::make_unique<NamedDimsCall>(signature, values);
}

}  // namespace mirage
