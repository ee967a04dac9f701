// The sentences behind arguments.h.
#include "arguments.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include <torch/csrc/stable/ops.h>

#include "errors.h"

namespace mirage {
namespace {

using torch::headeronly::ScalarType;

std::string text_of(const Tensor& tensor) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < tensor.dim(); ++i) sizes.push_back(tensor.size(i));
  return mirage::text_of(sizes);
}

std::string device_of(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  if (tensor.is_cuda()) return "cuda:" + std::to_string(tensor.get_device_index());
  return "a device other than cpu and cuda";
}

bool same_device(const Tensor& a, const Tensor& b) {
  return a.is_cuda() == b.is_cuda() && a.is_cpu() == b.is_cpu() &&
         a.get_device_index() == b.get_device_index();
}

std::string place(const Argument& argument) {
  return std::string("mirage_kernels::") + argument.op + ": " + argument.name;
}

// The dtype as Python writes it.
std::string dtype_of(const Tensor& tensor) {
  static constexpr std::pair<ScalarType, const char*> kNames[] = {
      {ScalarType::Half, "float16"},
      {ScalarType::BFloat16, "bfloat16"},
      {ScalarType::Float, "float32"},
      {ScalarType::Double, "float64"},
      {ScalarType::Char, "int8"},
      {ScalarType::Short, "int16"},
      {ScalarType::Int, "int32"},
      {ScalarType::Long, "int64"},
      {ScalarType::Byte, "uint8"},
      {ScalarType::Bool, "bool"},
      {ScalarType::Float8_e4m3fn, "float8_e4m3fn"},
      {ScalarType::Float8_e5m2, "float8_e5m2"},
      {ScalarType::ComplexFloat, "complex64"},
      {ScalarType::ComplexDouble, "complex128"},
  };
  for (const auto& [dtype, name] : kNames) {
    if (tensor.scalar_type() == dtype) return name;
  }
  return torch::headeronly::toString(tensor.scalar_type());
}

// None from Python arrives as a tensor that is not defined.
void check_given(const Argument& argument) {
  if (!argument.tensor.defined()) fail(place(argument), " is None; a tensor works");
}

uintptr_t address(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
}

// Bytes from the first to behind the last element, for strides that are not negative.
int64_t extent_bytes(const Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return (last + 1) * static_cast<int64_t>(tensor.element_size());
}

bool are_disjoint(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return true;
  const uintptr_t a_begin = address(a), b_begin = address(b);
  return a_begin + extent_bytes(a) <= b_begin || b_begin + extent_bytes(b) <= a_begin;
}

// The one stride that the leading dims collapse into, where they do.
std::optional<int64_t> collapsed_row_stride(const Tensor& x) {
  const int64_t depth = x.dim() - 1;
  const int64_t depth_size = x.size(depth);
  if (depth_size > 1 && x.stride(depth) != 1) return std::nullopt;
  std::optional<int64_t> stride;
  int64_t rows = 1;  // rows covered by the dims seen so far, from the last leading dim outwards
  for (int64_t i = depth - 1; i >= 0; --i) {
    if (x.size(i) == 1) continue;
    if (!stride) {
      stride = x.stride(i);
    } else if (x.stride(i) != *stride * rows) {
      return std::nullopt;
    }
    rows *= x.size(i);
  }
  return stride.value_or(depth_size);
}

bool is_aligned(const Tensor& x, int64_t row_stride) {
  const int64_t row_bytes = row_stride * static_cast<int64_t>(x.element_size());
  return address(x) % kAlignmentBytes == 0 && row_bytes % kAlignmentBytes == 0;
}

}  // namespace

const char* half_dtype(const Argument& argument) {
  check_given(argument);
  const ScalarType dtype = argument.tensor.scalar_type();
  if (dtype == ScalarType::Half) return "fp16";
  if (dtype == ScalarType::BFloat16) return "bf16";
  fail(place(argument), " has dtype ", dtype_of(argument.tensor), "; float16 and bfloat16 work");
}

void check_device_like(const Argument& argument, const Argument& model) {
  check_given(argument);
  if (same_device(argument.tensor, model.tensor)) return;
  fail(place(argument), " is on ", device_of(argument.tensor), ", but ", model.name, " is on ",
       device_of(model.tensor), "; move both to one device");
}

void check_like(const Argument& argument, const Argument& model) {
  check_given(argument);
  if (argument.tensor.scalar_type() != model.tensor.scalar_type()) {
    fail(place(argument), " has dtype ", dtype_of(argument.tensor), ", but ", model.name, " has ",
         dtype_of(model.tensor), "; give both the same dtype");
  }
  check_device_like(argument, model);
}

void check_indices(const Argument& argument, const Argument& model) {
  check_given(argument);
  const ScalarType dtype = argument.tensor.scalar_type();
  if (dtype != ScalarType::Int && dtype != ScalarType::Long) {
    fail(place(argument), " has dtype ", dtype_of(argument.tensor), "; int32 and int64 work");
  }
  check_device_like(argument, model);
}

void check_has_rows(const Argument& argument) {
  if (argument.tensor.dim() > 0) return;
  fail(place(argument), " has no dims; a tensor [..., K] with at least one works");
}

void fail_shape(const Argument& argument, const Expected& expected) {
  fail(place(argument), " has shape ", text_of(argument.tensor), ", but ", expected.model.name,
       " of shape ", text_of(expected.model.tensor), " needs ", expected.dims, " = ",
       expected.sizes);
}

bool has_shape(const Tensor& tensor, const std::vector<int64_t>& sizes) {
  if (tensor.dim() != static_cast<int64_t>(sizes.size())) return false;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (sizes[i] >= 0 && tensor.size(i) != sizes[i]) return false;
  }
  return true;
}

std::string text_of(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (int64_t size : sizes) {
    text += (text.size() > 1 ? ", " : "") + (size < 0 ? "any" : std::to_string(size));
  }
  return text + "]";
}

void check_shape(const Argument& argument, const char* dims, const std::vector<int64_t>& sizes,
                 const Argument& model) {
  if (has_shape(argument.tensor, sizes)) return;
  fail_shape(argument, {dims, text_of(sizes), model});
}

void check_per_head(const Argument& argument, const PerHeadShape& shape) {
  check_like(argument, shape.like);
  const std::vector<int64_t> one{shape.head_size}, each{shape.heads, shape.head_size};
  if (!has_shape(argument.tensor, one) && !has_shape(argument.tensor, each)) {
    const std::string sizes = text_of(one) + " or " + text_of(each);
    fail_shape(argument, {"[D] or [heads, D]", sizes, shape.model});
  }
  check_in_place(argument);
}

void fail_word(const Word& word, const char* works) {
  fail("mirage_kernels::", word.op, ": ", word.name, " is '", word.word, "'; ", works, " work");
}

void check_norm(const Word& norm, bool has_bias) {
  if (norm.word == "layer") return;
  if (norm.word != "rms") fail_word(norm, "'rms' and 'layer'");
  if (!has_bias) return;
  fail("mirage_kernels::", norm.op, ": norm 'rms' takes no q_bias and no k_bias; 'layer' does");
}

void check_in_place(const Argument& weight) {
  if (!weight.tensor.is_contiguous()) {
    fail(place(weight), " of shape ", text_of(weight.tensor), " is not contiguous; pass ",
         weight.name, ".contiguous(), made once and kept");
  }
  if (address(weight.tensor) % kAlignmentBytes != 0) {
    fail(place(weight), " does not start at a multiple of ", kAlignmentBytes, " bytes; pass ",
         weight.name, ".clone(), made once and kept");
  }
}

void check_out(const Argument& out, const std::vector<Argument>& inputs) {
  if (!out.tensor.is_contiguous() || address(out.tensor) % kAlignmentBytes != 0) {
    fail(place(out), " of shape ", text_of(out.tensor), " is not contiguous from a multiple of ",
         kAlignmentBytes, " bytes on; a tensor from torch.empty is");
  }
  check_apart(out, inputs);
}

void check_apart(const Argument& out, const std::vector<Argument>& inputs) {
  for (const Argument& input : inputs) {
    if (are_disjoint(out.tensor, input.tensor)) continue;
    fail(place(out), " shares memory with ", input.name, "; give it memory of its own");
  }
}

// Dims from the smallest step to the largest: each must step over all that the ones before it hold.
void check_own_elements(const Argument& result) {
  const Tensor& tensor = result.tensor;
  if (tensor.numel() == 0) return;
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) dims.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) {
      fail(place(result), " has elements that share memory; a tensor from torch.empty has none");
    }
    extent += (size - 1) * stride;
  }
}

void check_table(const Argument& argument, const Argument& model) {
  check_indices(argument, model);
  const int64_t last = argument.tensor.dim() - 1;
  if (last < 0 || argument.tensor.size(last) <= 1 || argument.tensor.stride(last) == 1) return;
  fail(place(argument), " has stride ", argument.tensor.stride(last),
       " in its last dim; a tensor works whose last dim is contiguous (stride 1)");
}

void check_lines(const Argument& argument) {
  const Tensor& tensor = argument.tensor;
  const int64_t last = tensor.dim() - 1;
  const int64_t step = kAlignmentBytes / static_cast<int64_t>(tensor.element_size());
  if (tensor.size(last) > 1 && tensor.stride(last) != 1) {
    fail(place(argument), " has stride ", tensor.stride(last),
         " in its last dim; a view works whose last dim is contiguous (stride 1)");
  }
  for (int64_t i = 0; i < last; ++i) {
    if (tensor.size(i) <= 1 || tensor.stride(i) % step == 0) continue;
    fail(place(argument), " has stride ", tensor.stride(i), " in dim ", i, "; multiples of ", step,
         " elements (", kAlignmentBytes, " bytes) work");
  }
  if (tensor.numel() == 0 || address(tensor) % kAlignmentBytes == 0) return;
  fail(place(argument), " does not start at a multiple of ", kAlignmentBytes,
       " bytes; a tensor from torch.empty does, and so do its slices at multiples of ", step,
       " elements");
}

bool has_aligned_lines(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  const int64_t step = kAlignmentBytes / static_cast<int64_t>(tensor.element_size());
  if (tensor.size(last) > 1 && tensor.stride(last) != 1) return false;
  for (int64_t i = 0; i < last; ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) % step != 0) return false;
  }
  return address(tensor) % kAlignmentBytes == 0;
}

void check_finite(const char* op, const char* name, double value) {
  if (!std::isfinite(value)) {
    fail("mirage_kernels::", op, ": ", name, " is ", value, "; a finite number works");
  }
  if (std::abs(value) <= std::numeric_limits<float>::max()) return;
  fail("mirage_kernels::", op, ": ", name, " is ", value, "; a number that fits float32 works");
}

void check_not_negative(const char* op, const char* name, double value) {
  if (std::isfinite(value) && value >= 0) return check_finite(op, name, value);
  fail("mirage_kernels::", op, ": ", name, " is ", value,
       "; a finite number that is not negative works, such as 1e-6");
}

Rows rows_of(const Tensor& x) {
  const int64_t depth = x.size(x.dim() - 1);
  int64_t count = 1;
  for (int64_t i = 0; i + 1 < x.dim(); ++i) count *= x.size(i);
  const std::optional<int64_t> stride = collapsed_row_stride(x);
  if (stride && is_aligned(x, *stride)) return {x, count, *stride};
  // contiguous() hands a contiguous but unaligned tensor back as it is; clone() really copies.
  const bool moved = !x.is_contiguous();
  return {moved ? torch::stable::contiguous(x) : torch::stable::clone(x), count, depth};
}

}  // namespace mirage
