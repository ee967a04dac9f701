// Calls of attention: checks of paged or dense keys, lengths and masks, the choice of recipe, and
// the launch.
#include <utility>

#include <torch/csrc/stable/ops.h>

#include "arguments.h"
#include "assumptions.h"
#include "attention_inputs.h"
#include "attention_recipe.h"
#include "call.h"
#include "device.h"
#include "registry.h"
#include "workspace.h"

namespace mirage {
namespace {

constexpr int64_t kHeadSizeStep = 8;    // elements of 16 bytes
constexpr int32_t kNoWindow = 1 << 30;  // further than any key

Cache cache_of(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

const void* start_of(const MaybeTensor& tensor) {
  return tensor ? tensor->const_data_ptr() : nullptr;
}

// Queries are small: where their lines don't lie well, they are copied.
Tensor in_aligned_lines(const Tensor& tensor) {
  if (has_aligned_lines(tensor)) return tensor;
  const Tensor copy = torch::stable::clone(tensor);
  return has_aligned_lines(copy) ? copy : torch::stable::contiguous(copy);
}

const int32_t* indices_of(const MaybeTensor& tensor) {
  return static_cast<const int32_t*>(start_of(tensor));
}

// Kernels read int32 where it lies; int64 is copied by a small kernel of PyTorch's in front.
MaybeTensor as_int32(const MaybeTensor& given) {
  using torch::headeronly::ScalarType;
  if (!given || given->scalar_type() == ScalarType::Int) return given;
  return torch::stable::contiguous(torch::stable::to(*given, ScalarType::Int));
}

void check_queries(const AttentionInputs& in) {
  half_dtype(in.queries());
  if (in.q.dim() != 3) refuse(in, "q has ", in.q.dim(), " dims; [tokens, Hq, D] works");
  if (in.head_size() > 0 && in.head_size() % kHeadSizeStep == 0) return;
  refuse(in, "q has heads of size ", in.head_size(), "; multiples of ", kHeadSizeStep, " work");
}

// Heads and pages in other dims would pass for a cache of several heads.
void check_one_latent(const AttentionInputs& in) {
  if (in.kv_heads() != 1) {
    refuse(in, "kv_cache has ", in.kv_heads(), " heads, but all heads of q share one latent per ",
           "key; ", in.block_table ? "[pages, page size, 1, " : "[B, L, 1, ",
           "latent_dim + rope] works, or without the dim of heads");
  }
}

// What queries and keys have beside the latent: alike in all dims but the last.
void check_latent(const AttentionInputs& in) {
  const Argument q_rope = in.argument("rope part of q", *in.q_rope);
  const Argument k_rope = in.argument("rope part of kv_cache", *in.k_rope);
  check_like(q_rope, in.queries());
  check_like(k_rope, in.queries());
  check_shape(q_rope, "[tokens, Hq, P]", {in.tokens(), in.query_heads(), -1}, in.queries());
  const int64_t depth = in.q_rope->size(2);
  if (depth == 0 || depth % kHeadSizeStep != 0) {
    refuse(in, "the rope part of q has size ", depth, "; multiples of ", kHeadSizeStep, " work");
  }
  check_shape(k_rope, in.block_table ? "[pages, page size, 1, P]" : "[B, L, 1, P]",
              {in.k.size(0), in.k.size(1), in.kv_heads(), depth}, q_rope);
  check_lines(k_rope);
}

const char* cache_dims(const AttentionInputs& in) {
  if (in.is_latent) return in.block_table ? "[pages, page size, 1, C]" : "[B, L, 1, C]";
  return in.block_table ? "[pages, page size, Hkv, D]" : "[B, L, Hkv, D]";
}

void check_caches(const AttentionInputs& in) {
  const Argument k = in.keys(), v = in.argument("v_cache", in.v);
  check_like(k, in.queries());
  check_shape(k, cache_dims(in), {-1, -1, -1, in.head_size()}, in.queries());
  if (in.is_latent) check_one_latent(in);
  if (in.kv_heads() == 0 || in.query_heads() % in.kv_heads() != 0) {
    refuse(in, in.keys().name, " has ", in.kv_heads(), " heads, but q has ", in.query_heads(),
           "; a divisor of that works (which dim holds the heads follows from kv_layout)");
  }
  check_lines(k);
  if (in.is_latent) return check_latent(in);
  check_like(v, in.queries());
  check_shape(v, cache_dims(in), {in.k.size(0), in.k.size(1), in.kv_heads(), in.head_size()}, k);
  check_lines(v);
}

void check_indices_of(const AttentionInputs& in, const Argument& given, int64_t size) {
  check_table(given, in.queries());
  const Argument model = in.block_table ? in.argument("block_table", *in.block_table) : in.keys();
  check_shape(given, size == in.batch ? "[B]" : "[B + 1]", {size}, model);
}

// Sequences, and the most keys of one.
void check_batch(AttentionInputs& in) {
  int64_t capacity = in.k.size(1);
  in.batch = in.k.size(0);
  if (in.block_table) {
    const Tensor& table = *in.block_table;
    check_table(in.argument("block_table", table), in.queries());
    if (table.dim() != 2) {
      refuse(in, "block_table has ", table.dim(), " dims; [B, most pages of a sequence] works");
    }
    in.batch = table.size(0);
    capacity *= table.size(1);
    if (!in.seq_lens) {
      refuse(in, "seq_lens is missing; with block_table the keys of each sequence [B] are needed");
    }
  }
  if (in.seq_lens) check_indices_of(in, in.argument("seq_lens", *in.seq_lens), in.batch);
  const bool bounded = in.seq_lens && in.max_seq_len >= 0 && in.max_seq_len < capacity;
  in.max_len = bounded ? in.max_seq_len : capacity;
}

// The most query tokens of a sequence: bounded, or as many for each.
void check_query_tokens(AttentionInputs& in) {
  if (in.cu_seqlens_q) {
    check_indices_of(in, in.argument("cu_seqlens_q", *in.cu_seqlens_q), in.batch + 1);
    in.q_len = in.max_q_len < 0 ? in.tokens() : in.max_q_len;
    return;
  }
  in.q_len = in.batch > 0 ? in.tokens() / in.batch : 0;
  const bool fits_bound = in.max_q_len < 0 || in.max_q_len == in.q_len || in.batch == 0;
  if (in.q_len * in.batch == in.tokens() && fits_bound) return;
  const std::string each = in.max_q_len < 0 ? "as many" : std::to_string(in.max_q_len);
  refuse(in, "q has ", in.tokens(), " tokens, which is not ", each, " for each of ", in.batch,
         " sequences; without cu_seqlens_q it must be");
}

void check_sinks(const AttentionInputs& in) {
  if (!in.sinks) return;
  const Argument sinks = in.argument("sinks", *in.sinks);
  check_like(sinks, in.queries());
  check_shape(sinks, "[Hq]", {in.query_heads()}, in.queries());
  if (!in.sinks->is_contiguous()) refuse(in, "sinks is not contiguous; pass sinks.contiguous()");
}

void check_norms(const AttentionInputs& in) {
  const PerHeadShape of_q{in.query_heads(), in.head_size(), in.queries(), in.queries()};
  const PerHeadShape of_k{in.kv_heads(), in.head_size(), in.queries(), in.queries()};
  if (in.q_weight) check_per_head(in.argument("q_weight", *in.q_weight), of_q);
  if (in.q_bias) check_per_head(in.argument("q_bias", *in.q_bias), of_q);
  if (in.k_weight) check_per_head(in.argument("k_weight", *in.k_weight), of_k);
  if (in.k_bias) check_per_head(in.argument("k_bias", *in.k_bias), of_k);
}

void check_bound(const AttentionInputs& in, const char* name, int64_t bound) {
  if (bound < -1) refuse(in, name, " is ", bound, "; 0 or more works, or None");
}

void check_numbers(const AttentionInputs& in) {
  check_finite(in.op, "scale", in.scale);
  check_not_negative(in.op, "logits_soft_cap", in.logits_soft_cap);
  check_not_negative(in.op, "eps", in.eps);
  check_finite(in.op, "weight_offset", in.weight_offset);
  if (in.window_left < -1) {
    refuse(in, "window_left is ", in.window_left,
           "; the number of keys before its own that a token sees works, or -1 for all");
  }
  check_bound(in, "max_q_len", in.max_q_len);
  check_bound(in, "max_seq_len", in.max_seq_len);
  if (!in.norm.empty()) check_norm({in.op, "norm", in.norm}, in.q_bias || in.k_bias);
}

// By which recipe queries, keys and masks go together in a call.
const char* recipe_of(const AttentionInputs& in) {
  AttentionForm form{in.is_latent, in.norm};
  form.has_several_tokens = in.q_len > 1;
  form.is_causal = in.causal;
  form.has_window = in.window_left >= 0;
  form.has_cap = in.logits_soft_cap != 0;
  form.has_weight_offset = in.weight_offset != 0;
  form.has_norms_by_head = in.is_normed && (in.q_weight->dim() != 1 || in.k_weight->dim() != 1);
  return attention_recipe(form);
}

KernelQuery query_of(const AttentionInputs& in, const char* recipe) {
  const char* dtype = half_dtype(in.queries());
  if (!in.is_latent) return {in.op, recipe, dtype, {{"D", in.head_size()}}, 1};
  return {in.op, recipe, dtype, {{"C", in.head_size()}, {"P", in.q_rope->size(2)}}, 2};
}

// By recipe: weights; with LayerNorm each has a bias.
void add_vectors(const AttentionInputs& in, AttentionArgs& args) {
  int count = 0;
  for (const auto* vector : {&in.q_weight, &in.q_bias, &in.k_weight, &in.k_bias}) {
    const bool is_bias = vector == &in.q_bias || vector == &in.k_bias;
    if (is_bias && in.norm != "layer") continue;
    args.vectors[count] = start_of(*vector);
    args.vector_heads[count++] = *vector && (*vector)->dim() == 2 ? in.head_size() : 0;
  }
}

// Page tables and lengths as kernels read them.
struct Tables {
  explicit Tables(const AttentionInputs& in)
      : block_table(as_int32(in.block_table)),
        seq_lens(as_int32(in.seq_lens)),
        cu_seqlens_q(as_int32(in.cu_seqlens_q)),
        just_written(indices_of(block_table) != indices_of(in.block_table) ||
                     indices_of(seq_lens) != indices_of(in.seq_lens) ||
                     indices_of(cu_seqlens_q) != indices_of(in.cu_seqlens_q)) {}

  MaybeTensor block_table, seq_lens, cu_seqlens_q;
  bool just_written;  // by a copy, which is the kernel just before
};

AttentionArgs args_of(const AttentionInputs& in, const Tables& tables) {
  AttentionArgs args{};
  args.k = cache_of(in.k);
  args.v = cache_of(in.is_latent ? *in.k_rope : in.v);
  args.block_table = indices_of(tables.block_table);
  args.table_row = in.block_table ? tables.block_table->stride(0) : 0;
  args.page_size = static_cast<int32_t>(in.k.size(1));
  args.pages = static_cast<uint32_t>(in.k.size(0));
  args.seq_lens = indices_of(tables.seq_lens);
  args.first_tokens = indices_of(tables.cu_seqlens_q);
  add_vectors(in, args);
  args.scalars[0] = static_cast<float>(in.scale);
  args.scalars[1] = static_cast<float>(!in.norm.empty() ? in.eps : in.logits_soft_cap);
  args.scalars[2] = static_cast<float>(in.weight_offset);
  const bool windowed = in.window_left >= 0 && in.window_left < kNoWindow;
  args.integers[0] = windowed ? static_cast<int32_t>(in.window_left) + 1 : kNoWindow;
  args.first_window = windowed ? static_cast<int32_t>(in.window_left) : -1;
  args.sinks = start_of(in.sinks);
  args.B = static_cast<int32_t>(in.batch);
  args.Hkv = static_cast<int32_t>(in.kv_heads());
  args.G = static_cast<int32_t>(in.query_heads() / in.kv_heads());
  args.q_len = static_cast<int32_t>(in.q_len);
  args.max_len = static_cast<int32_t>(in.max_len);
  args.constant_weights = constant_weights();
  args.constant_history = in.block_table && !tables.just_written && constant_history();
  return args;
}

class AttentionCall : public Call {
 public:
  AttentionCall(const Signature& signature, const Values& values)
      : in_(signature, values), signature_(signature), values_(values) {
    check_queries(in_);
    check_caches(in_);
    check_batch(in_);
    check_query_tokens(in_);
    check_numbers(in_);
    check_sinks(in_);
    check_norms(in_);
  }

  Tensor new_result(size_t index) const override {
    if (index == 0) return torch::stable::new_empty(in_.q, in_.out_sizes());
    return torch::stable::new_empty(in_.q, in_.lse_sizes(), torch::headeronly::ScalarType::Float);
  }

  // The second one, lse, may be absent.
  void check_results(const Results& results) override {
    std::vector<Argument> others = given_tensors(signature_, values_);
    const Argument out = in_.argument("out", results[0]);
    check_like(out, in_.queries());
    check_shape(out, "[tokens, Hq, D]", in_.out_sizes(), in_.queries());
    check_lines(out);
    check_own_elements(out);
    check_apart(out, others);
    if (results.size() == 1) return;
    others.push_back(out);
    check_lse(in_.argument("lse", results[1]), others);
  }

  Way way() override {
    if (in_.tokens() == 0 || in_.query_heads() == 0 || in_.batch == 0) return Way::kNobody;
    if (!is_on_gpu(in_.q)) return Way::kLibrary;
    check_device(in_.q.get_device_index());
    const bool countable =
        in_.tokens() < kMaxCount && in_.max_len < kMaxCount && in_.batch < kMaxCount;
    recipe_ = recipe_of(in_);
    if (recipe_ == nullptr || in_.max_len == 0 || in_.q_len == 0 || !countable) {
      return Way::kLibrary;
    }
    kernel_ = find_attention_kernel(query_of(in_, recipe_));
    return kernel_ == nullptr ? Way::kLibrary : Way::kKernel;
  }

  void launch(const Results& results) const override;

  std::string hint() const override {
    if (recipe_ == nullptr) return "";
    return "; it ran because there is no kernel: " + not_covered_sentence(query_of(in_, recipe_));
  }

 private:
  void check_lse(const Argument& lse, const std::vector<Argument>& others) const {
    const bool is_float = lse.tensor.scalar_type() == torch::headeronly::ScalarType::Float;
    if (!is_float || !has_shape(lse.tensor, in_.lse_sizes()) || !lse.tensor.is_contiguous()) {
      refuse(in_, "lse is no contiguous float32 tensor of shape ", text_of(in_.lse_sizes()),
             "; one from torch.empty is");
    }
    check_device_like(lse, in_.queries());
    check_apart(lse, others);
  }

  AttentionInputs in_;
  const Signature& signature_;
  const Values& values_;
  const char* recipe_ = nullptr;
  const AttentionKernel* kernel_ = nullptr;
};

void AttentionCall::launch(const Results& results) const {
  const Tensor& out = results[0];
  const Tensor q = in_aligned_lines(in_.q);
  const Tensor more = in_aligned_lines(in_.is_latent ? *in_.q_rope : in_.q);
  const int32_t device_index = in_.q.get_device_index();
  const Tables tables(in_);  // is read until the launch
  AttentionArgs args = args_of(in_, tables);
  args.q = {q.const_data_ptr(), q.stride(0), q.stride(1)};
  args.more_q = {more.const_data_ptr(), more.stride(0), more.stride(1)};
  args.out = out.mutable_data_ptr();
  args.out_token = out.stride(0);
  args.out_head = out.stride(1);
  args.lse = results.size() > 1 ? static_cast<float*>(results[1].mutable_data_ptr()) : nullptr;
  args.multiprocessors = multiprocessors(device_index);
  const Tensor workspace = new_workspace(kernel_->workspace(args), in_.q);
  args.workspace = workspace.mutable_data_ptr();
  args.nonce = next_launch_tag();
  launch_on(device_index, kernel_->name,
            [&](cudaStream_t stream) { return kernel_->launch(args, stream); });
}

}  // namespace

std::unique_ptr<Call> attention_call(const Signature& signature, const Values& values) {
  return std::make_unique<AttentionCall>(signature, values);
}

}  // namespace mirage
