// Calls of attention: checks of paged or dense keys, lengths and masks, the choice of recipe, and
// the launch.
#include <cstring>
#include <utility>

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

using MaybeTensor = std::optional<Tensor>;

constexpr int64_t kHeadSizeStep = 8;      // elements of 16 bytes
constexpr int32_t kNoWindow = 1 << 30;    // further than any key
constexpr int64_t kMaxCount = 1LL << 31;  // sizes that kernels take are int32

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

const Value kNone{};

// What an op is given. G = Hq / Hkv query heads share a head of k and v.
struct AttentionInputs {
  // Values in the order of the schemas; mla_decode has q_rope in second place and k_rope for v.
  AttentionInputs(const Signature& signature, const Values& values)
      : op(signature.op),
        is_latent(std::strcmp(op, "mla_decode") == 0),
        q(*values[0].tensor),
        k(*values[is_latent ? 2 : 1].tensor),
        v(is_latent ? k : *values[2].tensor),
        q_rope((is_latent ? values[1] : kNone).tensor),
        k_rope((is_latent ? values[3] : kNone).tensor),
        block_table(values[is_latent ? 4 : 3].tensor),
        seq_lens(values[is_latent ? 5 : 4].tensor),
        cu_seqlens_q(values[is_latent ? 6 : 5].tensor),
        sinks((is_latent ? kNone : values[6]).tensor),
        max_q_len(values[7].integer),
        max_seq_len(values[8].integer),
        scale(values[9].number),
        causal(values[10].integer != 0),
        window_left(is_latent ? -1 : values[11].integer),
        logits_soft_cap(is_latent ? 0 : values[12].number),
        is_normed(values.size() > 13),
        q_weight((is_normed ? values[13] : kNone).tensor),
        k_weight((is_normed ? values[14] : kNone).tensor),
        q_bias((is_normed ? values[15] : kNone).tensor),
        k_bias((is_normed ? values[16] : kNone).tensor),
        eps((is_normed ? values[17] : kNone).number),
        weight_offset((is_normed ? values[18] : kNone).number),
        norm((is_normed ? values[19] : kNone).text) {}

  const char* op;
  bool is_latent;
  const Tensor& q;                     // [tokens, Hq, D]
  const Tensor &k, &v;                 // [pages, page size, Hkv, D], or [B, L, Hkv, D]
  const MaybeTensor &q_rope, &k_rope;  // what else they have: [tokens, Hq, P], [.., 1, P]
  const MaybeTensor& block_table;      // [B, ..] page numbers
  const MaybeTensor& seq_lens;         // [B] keys of each sequence; none: all L
  const MaybeTensor& cu_seqlens_q;     // [B + 1]; none: every sequence has tokens / B
  const MaybeTensor& sinks;            // [Hq]
  int64_t max_q_len, max_seq_len;      // bounds; -1: what the shapes allow
  double scale;
  bool causal;
  int64_t window_left;     // how far back a token sees; -1: to the first key
  double logits_soft_cap;  // 0: none
  bool is_normed;
  const MaybeTensor &q_weight, &k_weight, &q_bias, &k_bias;  // [D] or [heads, D]
  double eps, weight_offset;
  const std::string& norm;  // "rms" or "layer"; empty: q and k are used as they are
};

class AttentionCall : public Call {
 public:
  AttentionCall(const Signature& signature, const Values& values);

  Tensor new_result(size_t index) const override;
  void check_results(const Results& results) override;
  Way way() override;
  void launch(const Results& results) const override;
  std::string hint() const override;

 private:
  Argument argument(const char* name, const Tensor& tensor) const { return {in_.op, name, tensor}; }
  Argument q() const { return argument("q", in_.q); }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail("mirage_kernels::", in_.op, ": ", parts...);
  }
  void check_queries() const;
  void check_cache(const char* name, const Tensor& tensor) const;
  void check_latent() const;
  void check_batch();
  void check_query_tokens();
  void check_indices_of(const char* name, const Tensor& tensor, int64_t size) const;
  void check_sinks() const;
  void check_norms() const;
  void check_bound(const char* name, int64_t bound) const;
  void check_numbers() const;
  std::vector<Argument> tensors() const;
  const char* recipe() const;
  const char* norm_recipe() const;
  KernelQuery query(const char* recipe) const;
  AttentionArgs args() const;
  void add_vectors(AttentionArgs& args) const;
  const char* keys_name() const { return in_.is_latent ? "latent cache" : "k_cache"; }

  int64_t tokens() const { return in_.q.size(0); }
  int64_t query_heads() const { return in_.q.size(1); }
  int64_t head_size() const { return in_.q.size(2); }
  int64_t kv_heads() const { return in_.k.size(2); }
  // Of out; of lse the first two.
  std::vector<int64_t> result_sizes() const { return {tokens(), query_heads(), head_size()}; }

  AttentionInputs in_;
  int64_t batch_ = 0, q_len_ = 0, max_len_ = 0;
  const AttentionKernel* kernel_ = nullptr;
};

AttentionCall::AttentionCall(const Signature& signature, const Values& values)
    : in_(signature, values) {
  check_queries();
  check_cache(keys_name(), in_.k);
  check_cache("v_cache", in_.v);
  if (in_.is_latent) check_latent();
  check_batch();
  check_query_tokens();
  check_numbers();
  check_sinks();
  check_norms();
}

void AttentionCall::check_queries() const {
  half_dtype(q());
  if (in_.q.dim() != 3) refuse("q has ", in_.q.dim(), " dims; [tokens, Hq, D] works");
  if (head_size() > 0 && head_size() % kHeadSizeStep == 0) return;
  refuse("q has heads of size ", head_size(), "; multiples of ", kHeadSizeStep, " work");
}

void AttentionCall::check_cache(const char* name, const Tensor& tensor) const {
  const Argument given = argument(name, tensor);
  check_like(given, q());
  const std::string dims = std::string(in_.block_table ? "[pages, page size, " : "[B, L, ") +
                           (in_.is_latent ? "1, C]" : "Hkv, D]");
  if (&tensor == &in_.k) {
    check_shape(given, dims, {-1, -1, -1, head_size()}, q());
  } else {
    check_shape(given, dims, {in_.k.size(0), in_.k.size(1), kv_heads(), head_size()},
                argument(keys_name(), in_.k));
  }
  if (kv_heads() == 0 || query_heads() % kv_heads() != 0) {
    refuse(keys_name(), " has ", kv_heads(), " heads, but q has ", query_heads(),
           "; a divisor of that works (which dim holds the heads follows from kv_layout)");
  }
  check_lines(given);
}

// What queries and keys have beside the latent: alike in all dims but the last.
void AttentionCall::check_latent() const {
  const Argument q_rope = argument("rope part of q", *in_.q_rope);
  const Argument k_rope = argument("rope part of the cache", *in_.k_rope);
  check_like(q_rope, q());
  check_like(k_rope, q());
  check_shape(q_rope, "[tokens, Hq, P]", {tokens(), query_heads(), -1}, q());
  const int64_t depth = in_.q_rope->size(2);
  if (depth == 0 || depth % kHeadSizeStep != 0) {
    refuse("the rope part of q has size ", depth, "; multiples of ", kHeadSizeStep, " work");
  }
  check_shape(k_rope, in_.block_table ? "[pages, page size, 1, P]" : "[B, L, 1, P]",
              {in_.k.size(0), in_.k.size(1), kv_heads(), depth}, q_rope);
  check_lines(k_rope);
}

void AttentionCall::check_indices_of(const char* name, const Tensor& tensor, int64_t size) const {
  const Argument given = argument(name, tensor);
  check_int32(given, q());
  const Argument model =
      in_.block_table ? argument("block_table", *in_.block_table) : argument(keys_name(), in_.k);
  check_shape(given, size == batch_ ? "[B]" : "[B + 1]", {size}, model);
}

// Sequences, and the most keys of one.
void AttentionCall::check_batch() {
  int64_t capacity = in_.k.size(1);
  batch_ = in_.k.size(0);
  if (in_.block_table) {
    const Tensor& table = *in_.block_table;
    check_int32(argument("block_table", table), q());
    if (table.dim() != 2) {
      refuse("block_table has ", table.dim(), " dims; [B, most pages of a sequence] works");
    }
    batch_ = table.size(0);
    capacity *= table.size(1);
    if (!in_.seq_lens) {
      refuse("seq_lens is missing; with block_table the keys of each sequence [B] are needed");
    }
  }
  if (in_.seq_lens) check_indices_of("seq_lens", *in_.seq_lens, batch_);
  const bool bounded = in_.seq_lens && in_.max_seq_len >= 0 && in_.max_seq_len < capacity;
  max_len_ = bounded ? in_.max_seq_len : capacity;
}

// The most query tokens of a sequence: bounded, or as many for each.
void AttentionCall::check_query_tokens() {
  if (in_.cu_seqlens_q) {
    check_indices_of("cu_seqlens_q", *in_.cu_seqlens_q, batch_ + 1);
    q_len_ = in_.max_q_len < 0 ? tokens() : in_.max_q_len;
    return;
  }
  q_len_ = batch_ > 0 ? tokens() / batch_ : 0;
  const bool fits_bound = in_.max_q_len < 0 || in_.max_q_len == q_len_ || batch_ == 0;
  if (q_len_ * batch_ == tokens() && fits_bound) return;
  const std::string each = in_.max_q_len < 0 ? "as many" : std::to_string(in_.max_q_len);
  refuse("q has ", tokens(), " tokens, which is not ", each, " for each of ", batch_,
         " sequences; without cu_seqlens_q it must be");
}

void AttentionCall::check_sinks() const {
  if (!in_.sinks) return;
  const Argument sinks = argument("sinks", *in_.sinks);
  check_like(sinks, q());
  check_shape(sinks, "[Hq]", {query_heads()}, q());
  if (!in_.sinks->is_contiguous()) refuse("sinks is not contiguous; pass sinks.contiguous()");
}

void AttentionCall::check_norms() const {
  const PerHeadShape of_q{query_heads(), head_size(), q(), q()};
  const PerHeadShape of_k{kv_heads(), head_size(), q(), q()};
  if (in_.q_weight) check_per_head(argument("q_weight", *in_.q_weight), of_q);
  if (in_.q_bias) check_per_head(argument("q_bias", *in_.q_bias), of_q);
  if (in_.k_weight) check_per_head(argument("k_weight", *in_.k_weight), of_k);
  if (in_.k_bias) check_per_head(argument("k_bias", *in_.k_bias), of_k);
}

void AttentionCall::check_bound(const char* name, int64_t bound) const {
  if (bound < -1) refuse(name, " is ", bound, "; 0 or more works, or None");
}

void AttentionCall::check_numbers() const {
  check_finite(in_.op, "scale", in_.scale);
  check_not_negative(in_.op, "logits_soft_cap", in_.logits_soft_cap);
  check_not_negative(in_.op, "eps", in_.eps);
  check_finite(in_.op, "weight_offset", in_.weight_offset);
  if (in_.window_left < -1) {
    refuse("window_left is ", in_.window_left,
           "; the number of keys before its own that a token sees works, or -1 for all");
  }
  check_bound("max_q_len", in_.max_q_len);
  check_bound("max_seq_len", in_.max_seq_len);
  if (!in_.norm.empty()) check_norm({in_.op, "norm", in_.norm}, in_.q_bias || in_.k_bias);
}

Tensor AttentionCall::new_result(size_t index) const {
  std::vector<int64_t> sizes = result_sizes();
  if (index == 0) return torch::stable::new_empty(in_.q, sizes);
  sizes.pop_back();
  return torch::stable::new_empty(in_.q, sizes, torch::headeronly::ScalarType::Float);
}

std::vector<Argument> AttentionCall::tensors() const {
  std::vector<Argument> given{q(), argument(keys_name(), in_.k), argument("v_cache", in_.v)};
  const std::pair<const char*, const MaybeTensor*> optional[] = {
      {"block_table", &in_.block_table},
      {"seq_lens", &in_.seq_lens},
      {"cu_seqlens_q", &in_.cu_seqlens_q},
      {"sinks", &in_.sinks},
      {"q_weight", &in_.q_weight},
      {"k_weight", &in_.k_weight},
      {"q_bias", &in_.q_bias},
      {"k_bias", &in_.k_bias},
      {"rope part of q", &in_.q_rope},
      {"rope part of the cache", &in_.k_rope},
  };
  for (const auto& [name, tensor] : optional) {
    if (*tensor) given.push_back(argument(name, **tensor));
  }
  return given;
}

// The second one, lse, may be absent.
void AttentionCall::check_results(const Results& results) {
  const Argument out = argument("out", results[0]);
  std::vector<Argument> others = tensors();
  check_like(out, q());
  check_shape(out, "[tokens, Hq, D]", result_sizes(), q());
  check_lines(out);
  check_own_elements(out);
  check_apart(out, others);
  if (results.size() == 1) return;
  const Argument lse = argument("lse", results[1]);
  const std::vector<int64_t> sizes{tokens(), query_heads()};
  const bool is_float = lse.tensor.scalar_type() == torch::headeronly::ScalarType::Float;
  if (!is_float || !has_shape(lse.tensor, sizes) || !lse.tensor.is_contiguous()) {
    refuse("lse is no contiguous float32 tensor of shape ", text_of(sizes),
           "; one from torch.empty is");
  }
  check_device_like(lse, q());
  others.push_back(out);
  check_apart(lse, others);
}

// Whether a kernel norms queries and keys as the call wants; RMS kernels take weights [D] only.
const char* AttentionCall::norm_recipe() const {
  const bool shared = in_.q_weight->dim() == 1 && in_.k_weight->dim() == 1;
  if (in_.norm == "rms") return shared ? "qk_norm_attention" : nullptr;
  return in_.weight_offset == 0 ? "qk_layer_norm_attention" : nullptr;
}

// nullptr where no recipe says what the call computes. Recipes that know windows are causal; for a
// sequence's only query token, which sees all keys, causal or not is the same.
const char* AttentionCall::recipe() const {
  const bool one_token = q_len_ <= 1;
  const bool by_place = in_.window_left >= 0 || (in_.causal && !one_token);
  const bool capped = in_.logits_soft_cap != 0;
  if (in_.is_latent) return by_place ? nullptr : "mla_decode";
  if (!in_.norm.empty()) {
    return by_place || capped ? nullptr : norm_recipe();
  }
  if (!by_place && !capped) return "gqa";
  if (!in_.causal && !one_token) return nullptr;
  return capped ? "gqa_full" : "sliding_window_attention";
}

KernelQuery AttentionCall::query(const char* recipe) const {
  const char* dtype = half_dtype(q());
  if (!in_.is_latent) return {in_.op, recipe, dtype, {{"D", head_size()}}, 1};
  return {in_.op, recipe, dtype, {{"C", head_size()}, {"P", in_.q_rope->size(2)}}, 2};
}

Way AttentionCall::way() {
  if (tokens() == 0 || query_heads() == 0 || batch_ == 0) return Way::kNobody;
  if (!is_on_gpu(in_.q)) return Way::kLibrary;
  check_device(in_.q.get_device_index());
  const bool countable = tokens() < kMaxCount && max_len_ < kMaxCount && batch_ < kMaxCount;
  const char* wanted = recipe();
  if (wanted == nullptr || max_len_ == 0 || q_len_ == 0 || !countable) return Way::kLibrary;
  kernel_ = find_attention_kernel(query(wanted));
  return kernel_ == nullptr ? Way::kLibrary : Way::kKernel;
}

std::string AttentionCall::hint() const {
  if (!is_on_gpu(in_.q) || kernel_ != nullptr || recipe() == nullptr) return "";
  return "; it ran because there is no kernel: " + not_covered_sentence(query(recipe()));
}

// By recipe: weights; with LayerNorm each has a bias.
void AttentionCall::add_vectors(AttentionArgs& args) const {
  int count = 0;
  for (const auto* vector : {&in_.q_weight, &in_.q_bias, &in_.k_weight, &in_.k_bias}) {
    const bool is_bias = vector == &in_.q_bias || vector == &in_.k_bias;
    if (is_bias && in_.norm != "layer") continue;
    args.vectors[count] = start_of(*vector);
    args.vector_heads[count++] = *vector && (*vector)->dim() == 2 ? head_size() : 0;
  }
}

AttentionArgs AttentionCall::args() const {
  AttentionArgs args{};
  args.k = cache_of(in_.k);
  args.v = cache_of(in_.is_latent ? *in_.k_rope : in_.v);
  args.block_table = indices_of(in_.block_table);
  args.table_row = in_.block_table ? in_.block_table->stride(0) : 0;
  args.page_size = static_cast<int32_t>(in_.k.size(1));
  args.pages = static_cast<uint32_t>(in_.k.size(0));
  args.seq_lens = indices_of(in_.seq_lens);
  args.first_tokens = indices_of(in_.cu_seqlens_q);
  add_vectors(args);
  args.scalars[0] = static_cast<float>(in_.scale);
  args.scalars[1] = static_cast<float>(!in_.norm.empty() ? in_.eps : in_.logits_soft_cap);
  args.scalars[2] = static_cast<float>(in_.weight_offset);
  const bool windowed = in_.window_left >= 0 && in_.window_left < kNoWindow;
  args.integers[0] = windowed ? static_cast<int32_t>(in_.window_left) + 1 : kNoWindow;
  args.first_window = windowed ? static_cast<int32_t>(in_.window_left) : -1;
  args.sinks = start_of(in_.sinks);
  args.B = static_cast<int32_t>(batch_);
  args.Hkv = static_cast<int32_t>(kv_heads());
  args.G = static_cast<int32_t>(query_heads() / kv_heads());
  args.q_len = static_cast<int32_t>(q_len_);
  args.max_len = static_cast<int32_t>(max_len_);
  args.constant_weights = constant_weights();
  args.constant_history = in_.block_table && constant_history();
  return args;
}

void AttentionCall::launch(const Results& results) const {
  const Tensor& out = results[0];
  const Tensor q = in_aligned_lines(in_.q);
  const Tensor more = in_aligned_lines(in_.is_latent ? *in_.q_rope : in_.q);
  const int32_t device_index = in_.q.get_device_index();
  AttentionArgs args = this->args();
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
