// Calls of the op in front of gqa, which norms and rotates queries and keys, and writes keys and
// values to a cache.
#include <utility>

#include <torch/csrc/stable/ops.h>

#include "append/append.h"
#include "arguments.h"
#include "assumptions.h"
#include "call.h"
#include "device.h"
#include "errors.h"

namespace mirage {
namespace {

using torch::headeronly::ScalarType;

constexpr const char* kOp = "qk_norm_rope_append";

// The caches are [pages, page size, Hkv, D].
struct AppendInputs {
  // Values in the order of the schema.
  explicit AppendInputs(const Values& values)
      : qkv(*values[0].tensor),
        q_weight(values[1].tensor),
        k_weight(values[2].tensor),
        q_bias(values[3].tensor),
        k_bias(values[4].tensor),
        cos_sin_cache(*values[5].tensor),
        positions(*values[6].tensor),
        k_cache(*values[7].tensor),
        v_cache(*values[8].tensor),
        slot_mapping(*values[9].tensor),
        num_heads(values[10].integer),
        num_kv_heads(values[11].integer),
        eps(values[12].number),
        weight_offset(values[13].number),
        norm(values[14].text),
        rope(values[15].text) {}

  const Tensor& qkv;  // [tokens, (Hq + 2 Hkv) * D]
  const MaybeTensor &q_weight, &k_weight, &q_bias, &k_bias;
  const Tensor& cos_sin_cache;  // [positions, rotated elements of D]: cosines, then sines
  const Tensor& positions;      // [tokens]
  const Tensor &k_cache, &v_cache;
  const Tensor& slot_mapping;  // [tokens]
  int64_t num_heads, num_kv_heads;
  double eps, weight_offset;
  const std::string &norm, &rope;

  int64_t tokens() const { return qkv.size(0); }
  int64_t head_size() const { return k_cache.size(3); }
  int64_t rotated() const { return cos_sin_cache.size(1); }
  int64_t slots() const { return k_cache.size(0) * k_cache.size(1); }
};

Argument argument(const char* name, const Tensor& tensor) { return {kOp, name, tensor}; }

[[noreturn]] void fail_append(const std::string& sentence) {
  fail("mirage_kernels::", kOp, ": ", sentence);
}

void check_caches(const AppendInputs& in) {
  const Argument qkv = argument("qkv", in.qkv);
  const std::pair<const char*, const Tensor*> caches[] = {{"k_cache", &in.k_cache},
                                                          {"v_cache", &in.v_cache}};
  for (const auto& [name, cache] : caches) {
    const Argument given = argument(name, *cache);
    check_like(given, qkv);
    const bool fits = cache->dim() == 4 && cache->size(0) == in.k_cache.size(0) &&
                      cache->size(1) == in.k_cache.size(1) && cache->size(2) == in.num_kv_heads &&
                      cache->size(3) == in.head_size();
    if (!fits) {
      const std::string heads = std::to_string(in.num_kv_heads);
      fail_shape(given, {"[pages, page size, Hkv, D]", "[any, any, " + heads + ", any]", qkv});
    }
    check_lines(given);
    check_own_elements(given);
  }
  if (in.k_cache.numel() == 0 || in.k_cache.const_data_ptr() != in.v_cache.const_data_ptr()) return;
  fail_append("k_cache and v_cache start at one address; each needs memory of its own");
}

void check_qkv(const AppendInputs& in) {
  if (in.qkv.dim() != 2) {
    fail_append("qkv has " + std::to_string(in.qkv.dim()) +
                " dims; [tokens, (Hq + 2 Hkv) * D] works");
  }
  const int64_t width = (in.num_heads + 2 * in.num_kv_heads) * in.head_size();
  if (in.qkv.size(1) == width) return;
  fail_shape(argument("qkv", in.qkv),
             {"[tokens, (Hq + 2 Hkv) * D]", "[any, " + std::to_string(width) + "]",
              argument("k_cache", in.k_cache)});
}

// Without a norm nothing is read of what norms have.
void check_no_norm(const AppendInputs& in) {
  const std::pair<const char*, const MaybeTensor*> given[] = {{"q_weight", &in.q_weight},
                                                              {"k_weight", &in.k_weight},
                                                              {"q_bias", &in.q_bias},
                                                              {"k_bias", &in.k_bias}};
  for (const auto& [name, tensor] : given) {
    if (*tensor) fail_append(std::string("norm 'none' takes no ") + name + "; 'rms' does");
  }
}

void check_norms(const AppendInputs& in) {
  if (in.norm == "none") return check_no_norm(in);
  if (!in.q_weight || !in.k_weight) {
    const char* missing = in.q_weight ? "k_weight" : "q_weight";
    fail_append(std::string(missing) + " is None; a tensor works, or norm 'none'");
  }
  check_norm({kOp, "norm", in.norm}, in.q_bias || in.k_bias);
  const Argument qkv = argument("qkv", in.qkv), model = argument("k_cache", in.k_cache);
  const PerHeadShape of_q{in.num_heads, in.head_size(), model, qkv};
  const PerHeadShape of_k{in.num_kv_heads, in.head_size(), model, qkv};
  check_per_head(argument("q_weight", *in.q_weight), of_q);
  check_per_head(argument("k_weight", *in.k_weight), of_k);
  if (in.q_bias) check_per_head(argument("q_bias", *in.q_bias), of_q);
  if (in.k_bias) check_per_head(argument("k_bias", *in.k_bias), of_k);
  check_not_negative(kOp, "eps", in.eps);
  check_finite(kOp, "weight_offset", in.weight_offset);
}

void check_rope(const AppendInputs& in) {
  const Argument qkv = argument("qkv", in.qkv), table = argument("cos_sin_cache", in.cos_sin_cache);
  if (in.rope != "neox" && in.rope != "interleaved") {
    fail_word({kOp, "rope", in.rope}, "'neox' and 'interleaved'");
  }
  check_device_like(table, qkv);
  if (in.cos_sin_cache.scalar_type() != ScalarType::Float) check_like(table, qkv);
  if (in.cos_sin_cache.dim() != 2 || in.cos_sin_cache.size(1) > in.head_size() ||
      in.cos_sin_cache.size(1) % 2 != 0) {
    const std::string size = std::to_string(in.head_size());
    fail_shape(table, {"[positions, rotated]", "[any, even, at most " + size + "]",
                       argument("k_cache", in.k_cache)});
  }
  for (const Argument& indices :
       {argument("positions", in.positions), argument("slot_mapping", in.slot_mapping)}) {
    check_indices(indices, qkv);
    if (indices.tensor.dim() == 1 && indices.tensor.size(0) == in.tokens()) continue;
    fail_shape(indices, {"[tokens]", "[" + std::to_string(in.tokens()) + "]", qkv});
  }
}

void check(const AppendInputs& in) {
  half_dtype(argument("qkv", in.qkv));
  if (in.num_heads < 1 || in.num_kv_heads < 1) {
    fail_append("num_heads is " + std::to_string(in.num_heads) + " and num_kv_heads " +
                std::to_string(in.num_kv_heads) + "; positive numbers work");
  }
  check_caches(in);
  check_qkv(in);
  check_norms(in);
  check_rope(in);
}

// The kernel that serves a call; null where PyTorch's program does. Vectors rotate with vectors.
AppendFn kernel_for(const AppendInputs& in) {
  if (!is_on_gpu(in.qkv)) return nullptr;
  check_device(in.qkv.get_device_index());
  const int64_t rotated_step = in.rope == "neox" ? 16 : 8;
  const bool aligned = has_aligned_lines(in.qkv) && has_aligned_lines(in.cos_sin_cache);
  const bool countable = in.tokens() < kMaxCount && in.slots() < kMaxCount;
  if (!aligned || !countable || in.rotated() % rotated_step != 0) return nullptr;
  return find_append_kernel(half_dtype(argument("qkv", in.qkv)), in.head_size());
}

PerHead per_head(const MaybeTensor& tensor) {
  if (!tensor) return {};
  return {tensor->const_data_ptr(), tensor->dim() == 2 ? tensor->size(1) : 0};
}

PerToken per_token(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.stride(0), tensor.scalar_type() == ScalarType::Long};
}

WrittenCache written(const Tensor& cache) {
  return {cache.mutable_data_ptr(), cache.stride(0), cache.stride(1), cache.stride(2)};
}

AppendArgs args_of(const AppendInputs& in, const Tensor& q) {
  AppendArgs args{};
  args.qkv = in.qkv.const_data_ptr();
  args.qkv_token = in.qkv.stride(0);
  args.q_weight = per_head(in.q_weight);
  args.k_weight = per_head(in.k_weight);
  args.q_bias = per_head(in.q_bias);
  args.k_bias = per_head(in.k_bias);
  args.angles = in.cos_sin_cache.const_data_ptr();
  args.angles_row = in.cos_sin_cache.stride(0);
  args.positions_end = in.cos_sin_cache.size(0);
  args.float_angles = in.cos_sin_cache.scalar_type() == ScalarType::Float;
  args.interleaved = in.rope == "interleaved";
  args.norm = in.norm == "none"    ? HeadNorm::kNone
              : in.norm == "layer" ? HeadNorm::kLayer
                                   : HeadNorm::kRms;
  args.constant_weights = constant_weights();
  args.constant_history = constant_history();
  args.positions = per_token(in.positions);
  args.slots = per_token(in.slot_mapping);
  args.k = written(in.k_cache);
  args.v = written(in.v_cache);
  args.page_size = static_cast<int32_t>(in.k_cache.size(1));
  args.slots_end = static_cast<int32_t>(in.slots());
  args.q = q.mutable_data_ptr();
  args.tokens = static_cast<int32_t>(in.tokens());
  args.Hq = static_cast<int32_t>(in.num_heads);
  args.Hkv = static_cast<int32_t>(in.num_kv_heads);
  args.rotated = static_cast<int32_t>(in.rotated());
  args.eps = static_cast<float>(in.eps);
  args.weight_offset = static_cast<float>(in.weight_offset);
  return args;
}

class AppendCall : public Call {
 public:
  explicit AppendCall(const Values& values) : in_(values) { check(in_); }

  Tensor new_result(size_t) const override {
    const std::vector<int64_t> sizes{in_.tokens(), in_.num_heads, in_.head_size()};
    return torch::stable::new_empty(in_.qkv, sizes);
  }

  void check_results(const Results&) override {}  // it always makes its own

  Way way() override {
    if (in_.tokens() == 0 || in_.head_size() == 0) return Way::kNobody;
    kernel_ = kernel_for(in_);
    return kernel_ == nullptr ? Way::kLibrary : Way::kKernel;
  }

  void launch(const Results& results) const override {
    const AppendArgs args = args_of(in_, results[0]);
    launch_on(in_.qkv.get_device_index(), kOp,
              [&](cudaStream_t stream) { return kernel_(args, stream); });
  }

 private:
  AppendInputs in_;
  AppendFn kernel_ = nullptr;
};

}  // namespace

std::unique_ptr<Call> append_call(const Signature&, const Values& values) {
  return std::make_unique<AppendCall>(values);
}

}  // namespace mirage
