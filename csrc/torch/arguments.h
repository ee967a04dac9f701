// Checks of tensor arguments, shared by every op: each failure is one sentence that names the op,
// the argument, what was given and what would work.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

namespace mirage {

using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

struct Argument {
  const char* op;    // "rms_norm_linear"
  const char* name;  // "weight"
  const Tensor& tensor;
};

// Emitted kernels load 16 bytes at a time.
constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kMaxCount = 1LL << 31;  // sizes that kernels take are int32

// "fp16" or "bf16", the only dtypes that kernels exist for; anything else throws.
const char* half_dtype(const Argument& argument);

// Same device as `model`.
void check_device_like(const Argument& argument, const Argument& model);

// Same dtype and device as `model`.
void check_like(const Argument& argument, const Argument& model);

// A tensor [..., K] has at least one dim.
void check_has_rows(const Argument& argument);

// Throws: `argument` has not the shape that follows from `model`.
struct Expected {
  std::string dims;   // "[N, K]"
  std::string sizes;  // "[any, 4096]"
  Argument model;
};
[[noreturn]] void fail_shape(const Argument& argument, const Expected& expected);

// Whether a tensor has these sizes; -1: any.
bool has_shape(const Tensor& tensor, const std::vector<int64_t>& sizes);

// "[any, 4096]"
std::string text_of(const std::vector<int64_t>& sizes);

// Throws where the tensor has not these sizes; `dims` names them: "[tokens, Hq, D]".
void check_shape(const Argument& argument, const char* dims, const std::vector<int64_t>& sizes,
                 const Argument& model);

// A norm's weight or bias, for all heads or by head: [D] or [heads, D], of the dtype of `like`,
// read where it lies. `model` is the tensor that says D.
struct PerHeadShape {
  int64_t heads, head_size;
  Argument model, like;
};
void check_per_head(const Argument& argument, const PerHeadShape& shape);

// A word that chooses; `works` lists those that an op knows: "'rms' and 'layer'".
struct Word {
  const char* op;
  const char* name;
  const std::string& word;
};
[[noreturn]] void fail_word(const Word& word, const char* works);

// What q and k are normed by: "rms", which takes no biases, or "layer".
void check_norm(const Word& norm, bool has_bias);

// An integer dtype, on the device of `model`.
void check_indices(const Argument& argument, const Argument& model);

// An integer dtype, its last dim contiguous, on the device of `model`: page tables and lengths.
void check_table(const Argument& argument, const Argument& model);

// A tensor [.., D] whose lines [D] kernels read or write where they lie: D contiguous, the address
// and the steps between lines multiples of 16 bytes.
void check_lines(const Argument& argument);

// Whether check_lines would let it pass.
bool has_aligned_lines(const Tensor& tensor);

// An op writes `out` while it still reads its inputs: no byte may be shared.
void check_apart(const Argument& out, const std::vector<Argument>& inputs);

// A result is written where it lies: no two of its elements may be one.
void check_own_elements(const Argument& result);

// A weight is read where it lies: contiguous, from a multiple of 16 bytes on.
void check_in_place(const Argument& weight);

// An op writes `out` where it lies, while it still reads its inputs: no byte may be shared.
void check_out(const Argument& out, const std::vector<Argument>& inputs);

// A scalar that must be finite, in float32 too, as kernels take it.
void check_finite(const char* op, const char* name, double value);

// The same, and not negative.
void check_not_negative(const char* op, const char* name, double value);

// A tensor [..., K] as rows for a kernel. `tensor` keeps the memory alive.
struct Rows {
  Tensor tensor;
  int64_t count;   // product of the leading dims
  int64_t stride;  // elements from one row to the next
};

// Views x as rows without a copy where its leading dims collapse into one 16-byte aligned stride,
// otherwise copies it.
Rows rows_of(const Tensor& x);

}  // namespace mirage
