// Checks, the choice of recipe and the launch of attention.
#include "attention.h"

#include <utility>

#include <torch/csrc/stable/ops.h>

#include "device.h"
#include "errors.h"
#include "nonce.h"
#include "promises.h"

namespace mirage {
namespace {

constexpr int64_t kHeadSizeStep = 8;      // elements of 16 bytes
constexpr int32_t kNoWindow = 1 << 30;    // further than any key
constexpr int64_t kMaxCount = 1LL << 31;  // sizes that kernels take are int32

std::string list_of(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (int64_t size : sizes) {
    text += (text.size() > 1 ? ", " : "") + (size < 0 ? "any" : std::to_string(size));
  }
  return text + "]";
}

bool has_shape(const Tensor& tensor, const std::vector<int64_t>& sizes) {
  if (tensor.dim() != static_cast<int64_t>(sizes.size())) return false;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (sizes[i] >= 0 && tensor.size(i) != sizes[i]) return false;
  }
  return true;
}

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

}  // namespace

AttentionCall::AttentionCall(AttentionInputs inputs) : in_(std::move(inputs)) {
  check_queries();
  check_cache(keys_name(), in_.k);
  check_cache("v_cache", in_.v);
  if (in_.q_rope) check_latent();
  check_batch();
  check_numbers();
  if (in_.sinks) {
    const Argument sinks = argument("sinks", *in_.sinks);
    check_like(sinks, argument("q", in_.q));
    if (!has_shape(*in_.sinks, {query_heads()})) {
      fail_shape(sinks, {"[Hq]", list_of({query_heads()}), argument("q", in_.q)});
    }
    if (!in_.sinks->is_contiguous()) {
      fail("mirage_kernels::", in_.op, ": sinks is not contiguous; pass sinks.contiguous()");
    }
  }
  check_per_head("q_weight", in_.q_weight, query_heads());
  check_per_head("q_bias", in_.q_bias, query_heads());
  check_per_head("k_weight", in_.k_weight, kv_heads());
  check_per_head("k_bias", in_.k_bias, kv_heads());
}

Argument AttentionCall::argument(const char* name, const Tensor& tensor) const {
  return {in_.op, name, tensor};
}

void AttentionCall::check_queries() const {
  const Argument q = argument("q", in_.q);
  half_dtype(q);
  if (in_.q.dim() != 3) {
    fail("mirage_kernels::", in_.op, ": q has ", in_.q.dim(), " dims; [tokens, Hq, D] works");
  }
  if (head_size() > 0 && head_size() % kHeadSizeStep == 0) return;
  fail("mirage_kernels::", in_.op, ": q has heads of size ", head_size(), "; multiples of ",
       kHeadSizeStep, " work");
}

void AttentionCall::check_cache(const char* name, const Tensor& tensor) const {
  const Argument given = argument(name, tensor), q = argument("q", in_.q);
  check_like(given, q);
  const bool is_k = &tensor == &in_.k;
  const std::vector<int64_t> sizes =
      is_k ? std::vector<int64_t>{-1, -1, -1, head_size()}
           : std::vector<int64_t>{in_.k.size(0), in_.k.size(1), kv_heads(), head_size()};
  if (!has_shape(tensor, sizes)) {
    const std::string dims = std::string(in_.block_table ? "[pages, page size, " : "[B, L, ") +
                             (in_.k_rope ? "1, C]" : "Hkv, D]");
    fail_shape(given, {dims, list_of(sizes), is_k ? q : argument(keys_name(), in_.k)});
  }
  if (kv_heads() == 0 || query_heads() % kv_heads() != 0) {
    fail("mirage_kernels::", in_.op, ": ", keys_name(), " has ", kv_heads(), " heads, but q has ",
         query_heads(),
         "; a divisor of that works (which dim holds the heads follows from kv_layout)");
  }
  check_lines(given);
}

// What queries and keys have beside the latent: alike in all dims but the last.
void AttentionCall::check_latent() const {
  const Argument q = argument("rope part of q", *in_.q_rope);
  const Argument k = argument("rope part of the cache", *in_.k_rope);
  check_like(q, argument("q", in_.q));
  check_like(k, argument("q", in_.q));
  if (!has_shape(*in_.q_rope, {tokens(), query_heads(), -1})) {
    fail_shape(q,
               {"[tokens, Hq, P]", list_of({tokens(), query_heads(), -1}), argument("q", in_.q)});
  }
  const int64_t depth = in_.q_rope->size(2);
  if (depth == 0 || depth % kHeadSizeStep != 0) {
    fail("mirage_kernels::", in_.op, ": the rope part of q has size ", depth, "; multiples of ",
         kHeadSizeStep, " work");
  }
  const std::vector<int64_t> sizes{in_.k.size(0), in_.k.size(1), kv_heads(), depth};
  if (!has_shape(*in_.k_rope, sizes))
    fail_shape(k,
               {in_.block_table ? "[pages, page size, 1, P]" : "[B, L, 1, P]", list_of(sizes), q});
  check_lines(k);
}

void AttentionCall::check_indices_of(const char* name, const Tensor& tensor, int64_t size) const {
  const Argument given = argument(name, tensor), q = argument("q", in_.q);
  check_int32(given, q);
  if (has_shape(tensor, {size})) return;
  const bool by_table = in_.block_table.has_value();
  const Argument model =
      by_table ? argument("block_table", *in_.block_table) : argument(keys_name(), in_.k);
  fail_shape(given, {size == batch_ ? "[B]" : "[B + 1]", list_of({size}), model});
}

// Sizes that follow from several arguments: sequences, query tokens and keys of each.
void AttentionCall::check_batch() {
  int64_t capacity = in_.k.size(1);
  batch_ = in_.k.size(0);
  if (in_.block_table) {
    const Argument table = argument("block_table", *in_.block_table);
    check_int32(table, argument("q", in_.q));
    if (table.tensor.dim() != 2) {
      fail("mirage_kernels::", in_.op, ": block_table has ", table.tensor.dim(),
           " dims; [B, most pages of a sequence] works");
    }
    batch_ = table.tensor.size(0);
    capacity *= table.tensor.size(1);
    if (!in_.seq_lens) {
      fail("mirage_kernels::", in_.op, ": seq_lens is missing; with block_table the keys of each ",
           "sequence [B] are needed");
    }
  }
  if (in_.seq_lens) check_indices_of("seq_lens", *in_.seq_lens, batch_);
  const bool bounded = in_.seq_lens && in_.max_seq_len >= 0 && in_.max_seq_len < capacity;
  max_len_ = bounded ? in_.max_seq_len : capacity;
  if (in_.cu_seqlens_q) {
    check_indices_of("cu_seqlens_q", *in_.cu_seqlens_q, batch_ + 1);
    q_len_ = in_.max_q_len < 0 ? tokens() : in_.max_q_len;
    return;
  }
  q_len_ = batch_ > 0 ? tokens() / batch_ : 0;
  const bool fits_bound = in_.max_q_len < 0 || in_.max_q_len == q_len_ || batch_ == 0;
  if (q_len_ * batch_ == tokens() && fits_bound) return;
  const std::string each = in_.max_q_len < 0 ? "as many" : std::to_string(in_.max_q_len);
  fail("mirage_kernels::", in_.op, ": q has ", tokens(), " tokens, which is not ", each,
       " for each of ", batch_, " sequences; without cu_seqlens_q it must be");
}

void AttentionCall::check_per_head(const char* name, const MaybeTensor& tensor,
                                   int64_t heads) const {
  if (!tensor) return;
  const Argument given = argument(name, *tensor), q = argument("q", in_.q);
  check_like(given, q);
  if (!has_shape(*tensor, {head_size()}) && !has_shape(*tensor, {heads, head_size()})) {
    const std::string sizes = list_of({head_size()}) + " or " + list_of({heads, head_size()});
    fail_shape(given, {"[D] or [heads, D]", sizes, q});
  }
  check_in_place(given);
}

void AttentionCall::check_bound(const char* name, int64_t bound) const {
  if (bound >= -1) return;
  fail("mirage_kernels::", in_.op, ": ", name, " is ", bound, "; 0 or more works, or None");
}

void AttentionCall::check_numbers() const {
  check_finite(in_.op, "scale", in_.scale);
  check_not_negative(in_.op, "logits_soft_cap", in_.logits_soft_cap);
  check_not_negative(in_.op, "eps", in_.eps);
  check_finite(in_.op, "weight_offset", in_.weight_offset);
  if (in_.window_left < -1) {
    fail("mirage_kernels::", in_.op, ": window_left is ", in_.window_left,
         "; the number of keys before its own that a token sees works, or -1 for all");
  }
  check_bound("max_q_len", in_.max_q_len);
  check_bound("max_seq_len", in_.max_seq_len);
  if (in_.norm.empty() || in_.norm == "layer") return;
  if (in_.norm != "rms") {
    fail("mirage_kernels::", in_.op, ": norm is '", in_.norm, "'; 'rms' and 'layer' work");
  }
  if (!in_.q_bias && !in_.k_bias) return;
  fail("mirage_kernels::", in_.op, ": norm 'rms' takes no q_bias and no k_bias; 'layer' does");
}

Tensor AttentionCall::new_out() const {
  const std::vector<int64_t> sizes{tokens(), query_heads(), head_size()};
  return torch::stable::new_empty(in_.q, sizes);
}

Tensor AttentionCall::new_lse() const {
  const std::vector<int64_t> sizes{tokens(), query_heads()};
  return torch::stable::new_empty(in_.q, sizes, torch::headeronly::ScalarType::Float);
}

std::vector<Argument> AttentionCall::tensors() const {
  std::vector<Argument> given{argument("q", in_.q), argument(keys_name(), in_.k),
                              argument("v_cache", in_.v)};
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

void AttentionCall::check_results(const Tensor& out, const MaybeTensor& lse) const {
  const Argument q = argument("q", in_.q), given = argument("out", out);
  std::vector<Argument> others = tensors();
  check_like(given, q);
  const std::vector<int64_t> sizes{tokens(), query_heads(), head_size()};
  if (!has_shape(out, sizes)) fail_shape(given, {"[tokens, Hq, D]", list_of(sizes), q});
  check_lines(given);
  check_own_elements(given);
  check_apart(given, others);
  if (!lse) return;
  const Argument statistics = argument("lse", *lse);
  const bool is_float = lse->scalar_type() == torch::headeronly::ScalarType::Float;
  if (!is_float || !has_shape(*lse, {sizes[0], sizes[1]}) || !lse->is_contiguous()) {
    fail("mirage_kernels::", in_.op, ": lse is no contiguous float32 tensor of shape ",
         list_of({sizes[0], sizes[1]}), "; one from torch.empty is");
  }
  check_device_like(statistics, q);
  others.push_back(given);
  check_apart(statistics, others);
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
  if (in_.q_rope) return by_place ? nullptr : "mla_decode";
  if (!in_.norm.empty()) {
    return by_place || capped ? nullptr : norm_recipe();
  }
  if (!by_place && !capped) return "gqa";
  if (!in_.causal && !one_token) return nullptr;
  return capped ? "gqa_full" : "sliding_window_attention";
}

KernelQuery AttentionCall::query(const char* recipe) const {
  const char* dtype = half_dtype(argument("q", in_.q));
  if (!in_.q_rope) return {in_.op, recipe, dtype, {{"D", head_size()}}, 1};
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

AttentionArgs AttentionCall::args() const {
  AttentionArgs args{};
  args.k = cache_of(in_.k);
  args.v = cache_of(in_.k_rope ? *in_.k_rope : in_.v);
  args.block_table = indices_of(in_.block_table);
  args.table_row = in_.block_table ? in_.block_table->stride(0) : 0;
  args.page_size = static_cast<int32_t>(in_.k.size(1));
  args.pages = static_cast<uint32_t>(in_.k.size(0));
  args.seq_lens = indices_of(in_.seq_lens);
  args.first_tokens = indices_of(in_.cu_seqlens_q);
  // By recipe: weights; with LayerNorm each has a bias.
  const bool normed = !in_.norm.empty(), biased = in_.norm == "layer";
  int count = 0;
  for (const auto* vector : {&in_.q_weight, &in_.q_bias, &in_.k_weight, &in_.k_bias}) {
    if (vector != &in_.q_weight && vector != &in_.k_weight && !biased) continue;
    args.vectors[count] = start_of(*vector);
    args.vector_heads[count++] = *vector && (*vector)->dim() == 2 ? head_size() : 0;
  }
  args.scalars[0] = static_cast<float>(in_.scale);
  args.scalars[1] = static_cast<float>(normed ? in_.eps : in_.logits_soft_cap);
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

void AttentionCall::launch(const Tensor& out, const MaybeTensor& lse) const {
  const Tensor q = in_aligned_lines(in_.q), more = in_aligned_lines(in_.q_rope.value_or(in_.q));
  const int32_t device_index = in_.q.get_device_index();
  AttentionArgs args = this->args();
  args.q = {q.const_data_ptr(), q.stride(0), q.stride(1)};
  args.more_q = {more.const_data_ptr(), more.stride(0), more.stride(1)};
  args.out = out.mutable_data_ptr();
  args.out_token = out.stride(0);
  args.out_head = out.stride(1);
  args.lse = lse ? static_cast<float*>(lse->mutable_data_ptr()) : nullptr;
  args.multiprocessors = multiprocessors(device_index);
  args.nonce = next_nonce();
  const std::vector<int64_t> bytes{kernel_->workspace(args)};
  const Tensor workspace =
      torch::stable::new_empty(in_.q, bytes, torch::headeronly::ScalarType::Byte);
  args.workspace = workspace.mutable_data_ptr();
  mirage::launch(*kernel_, args, device_index);
}

}  // namespace mirage
