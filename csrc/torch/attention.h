// One call of an attention op: arguments checked, and the kernel or program that serves them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "registry.h"

namespace mirage {

using MaybeTensor = std::optional<Tensor>;

// What an op is given, in the order of its schema. G = Hq / Hkv query heads share a head of k and
// v.
struct AttentionInputs {
  const char* op;
  Tensor q;                  // [tokens, Hq, D]
  Tensor k, v;               // [pages, page size, Hkv, D], or [B, L, Hkv, D] without block_table
  MaybeTensor block_table;   // [B, ..] page numbers
  MaybeTensor seq_lens;      // [B] keys of each sequence; none: all L
  MaybeTensor cu_seqlens_q;  // [B + 1]; none: every sequence has tokens / B
  MaybeTensor sinks;         // [Hq]
  int64_t max_q_len, max_seq_len;  // bounds; -1: what the shapes allow
  double scale;
  bool causal;
  int64_t window_left;     // how far back a token sees; -1: to the first key
  double logits_soft_cap;  // 0: none
  // Of qk_norm_attention: weights and biases [D] or [heads, D].
  MaybeTensor q_weight{}, k_weight{}, q_bias{}, k_bias{};
  double eps = 0, weight_offset = 0;
  std::string norm{};  // "rms" or "layer"; empty: q and k are used as they are
  // Of mla_decode, whose values are k: what else queries and keys have, [tokens, Hq, P] and
  // [pages, page size, 1, P].
  MaybeTensor q_rope{}, k_rope{};
};

class AttentionCall {
 public:
  // Checks every argument.
  explicit AttentionCall(AttentionInputs inputs);

  Tensor new_out() const;
  Tensor new_lse() const;

  // Results that the caller brought; lse may be absent.
  void check_results(const Tensor& out, const MaybeTensor& lse) const;

  // Finds the kernel that serves the call, if any does.
  Way way();

  // Launches the kernel that `way` found.
  void launch(const Tensor& out, const MaybeTensor& lse) const;

  // What to add to the error of PyTorch's program: how to get a kernel, where there is none.
  std::string hint() const;

 private:
  Argument argument(const char* name, const Tensor& tensor) const;
  void check_queries() const;
  void check_cache(const char* name, const Tensor& tensor) const;
  void check_batch();
  void check_indices_of(const char* name, const Tensor& tensor, int64_t size) const;
  void check_latent() const;
  void check_per_head(const char* name, const MaybeTensor& tensor, int64_t heads) const;
  void check_bound(const char* name, int64_t bound) const;
  void check_numbers() const;
  std::vector<Argument> tensors() const;
  const char* recipe() const;
  KernelQuery query(const char* recipe) const;
  AttentionArgs args() const;
  const char* norm_recipe() const;
  const char* keys_name() const { return in_.k_rope ? "latent cache" : "k_cache"; }

  int64_t tokens() const { return in_.q.size(0); }
  int64_t query_heads() const { return in_.q.size(1); }
  int64_t head_size() const { return in_.q.size(2); }
  int64_t kv_heads() const { return in_.k.size(2); }

  AttentionInputs in_;
  int64_t batch_ = 0, q_len_ = 0, max_len_ = 0;
  const AttentionKernel* kernel_ = nullptr;
};

}  // namespace mirage
