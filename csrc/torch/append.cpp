// The op in front of gqa: norms and rotates queries and keys, and writes keys and values to a
// cache.
#include <utility>

#include <torch/csrc/stable/ops.h>

#include "append/append.h"
#include "attention.h"
#include "device.h"
#include "errors.h"
#include "op.h"
#include "promises.h"

namespace mirage {

namespace {

using torch::headeronly::ScalarType;

constexpr const char* kOp = "qk_norm_rope_append";
const std::string kParameters =
    "Tensor qkv, Tensor q_weight, Tensor k_weight, Tensor? q_bias, Tensor? k_bias, Tensor "
    "cos_sin_cache, Tensor positions, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, "
    "int num_heads, int num_kv_heads, float eps, float weight_offset, str norm, str rope";

// In the order of the schema. The caches are [pages, page size, Hkv, D].
struct AppendInputs {
  Tensor qkv;  // [tokens, (Hq + 2 Hkv) * D]
  Tensor q_weight, k_weight;
  MaybeTensor q_bias, k_bias;
  Tensor cos_sin_cache;  // [positions, rotated elements of D]: cosines, then sines
  Tensor positions;      // [tokens]
  Tensor k_cache, v_cache;
  Tensor slot_mapping;  // [tokens]
  int64_t num_heads, num_kv_heads;
  double eps, weight_offset;
  std::string norm, rope;

  int64_t tokens() const { return qkv.size(0); }
  int64_t head_size() const { return k_cache.size(3); }
  int64_t rotated() const { return cos_sin_cache.size(1); }
  int64_t slots() const { return k_cache.size(0) * k_cache.size(1); }
};

Argument argument(const char* name, const Tensor& tensor) { return {kOp, name, tensor}; }

[[noreturn]] void fail_append(const std::string& sentence) {
  fail("mirage_kernels::", kOp, ": ", sentence);
}

void check_word(const char* name, const std::string& word, const std::vector<std::string>& known) {
  if (word == known[0] || word == known[1]) return;
  fail_append(std::string(name) + " is '" + word + "'; '" + known[0] + "' and '" + known[1] +
              "' work");
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

void check_weight(const AppendInputs& in, const Argument& weight, int64_t heads) {
  const int64_t size = in.head_size(), last = weight.tensor.dim() - 1;
  check_like(weight, argument("qkv", in.qkv));
  const bool fits = (last == 0 || (last == 1 && weight.tensor.size(0) == heads)) &&
                    weight.tensor.size(last) == size;
  if (!fits) {
    const std::string sizes = "[" + std::to_string(size) + "] or [" + std::to_string(heads) + ", " +
                              std::to_string(size) + "]";
    fail_shape(weight, {"[D] or [heads, D]", sizes, argument("k_cache", in.k_cache)});
  }
  check_in_place(weight);
}

void check_norm(const AppendInputs& in) {
  check_word("norm", in.norm, {"rms", "layer"});
  if (in.norm == "rms" && (in.q_bias || in.k_bias)) {
    fail_append("norm 'rms' takes no q_bias and no k_bias; 'layer' does");
  }
  check_weight(in, argument("q_weight", in.q_weight), in.num_heads);
  check_weight(in, argument("k_weight", in.k_weight), in.num_kv_heads);
  if (in.q_bias) check_weight(in, argument("q_bias", *in.q_bias), in.num_heads);
  if (in.k_bias) check_weight(in, argument("k_bias", *in.k_bias), in.num_kv_heads);
  check_not_negative(kOp, "eps", in.eps);
  check_finite(kOp, "weight_offset", in.weight_offset);
}

void check_rope(const AppendInputs& in) {
  const Argument qkv = argument("qkv", in.qkv), table = argument("cos_sin_cache", in.cos_sin_cache);
  check_word("rope", in.rope, {"neox", "interleaved"});
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
  check_norm(in);
  check_rope(in);
}

constexpr int64_t kMaxCount = 1LL << 31;  // sizes that the kernel takes are int32

// The kernel that serves a call; null where PyTorch's program does. Octets rotate with octets.
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
  args.centered = in.norm == "layer";
  args.constant_weights = constant_weights();
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

// The one place that decides who computes.
template <class... Arguments>
void compute(const AppendInputs& in, const Tensor& q, const Arguments&... arguments) {
  if (q.numel() == 0) return;
  if (const AppendFn kernel = kernel_for(in)) {
    return launch(kernel, args_of(in, q), in.qkv.get_device_index());
  }
  StableIValue stack[] = {torch::stable::detail::from(arguments)...,
                          torch::stable::detail::from(q)};
  const auto status = torch_call_dispatcher("mirage_kernels::_qk_norm_rope_append_library", "",
                                            stack, TORCH_ABI_VERSION);
  if (status != TORCH_SUCCESS) fail_program(kOp);
}

template <class Arguments>
struct AppendOp;

template <class... Arguments>
struct AppendOp<List<Arguments...>> {
  static Tensor append(Arguments... arguments) {
    const AppendInputs in{arguments...};
    check(in);
    const std::vector<int64_t> sizes{in.tokens(), in.num_heads, in.head_size()};
    Tensor q = torch::stable::new_empty(in.qkv, sizes);
    compute(in, q, arguments...);
    return q;
  }
};

using Append =
    AppendOp<List<Tensor, Tensor, Tensor, MaybeTensor, MaybeTensor, Tensor, Tensor, Tensor, Tensor,
                  Tensor, int64_t, int64_t, double, double, std::string, std::string>>;

}  // namespace
}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  m.def(("qk_norm_rope_append(" + mirage::kParameters + ") -> Tensor").c_str());
  m.def(
      ("_qk_norm_rope_append_library(" + mirage::kParameters + ", *, Tensor(c!) q) -> ()").c_str());
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CUDA, m) {
  m.impl("qk_norm_rope_append", TORCH_BOX(&mirage::Append::append));
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CPU, m) {
  m.impl("qk_norm_rope_append", TORCH_BOX(&mirage::Append::append));
}
