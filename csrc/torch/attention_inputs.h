// What the ops of attention are given, by name.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "errors.h"
#include "signature.h"

namespace mirage {

inline const Value kNone{};

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
  // What follows from several arguments: sequences, the most query tokens and keys of one.
  int64_t batch = 0, q_len = 0, max_len = 0;

  int64_t tokens() const { return q.size(0); }
  int64_t query_heads() const { return q.size(1); }
  int64_t head_size() const { return q.size(2); }
  int64_t kv_heads() const { return k.size(2); }
  std::vector<int64_t> out_sizes() const { return {tokens(), query_heads(), head_size()}; }
  std::vector<int64_t> lse_sizes() const { return {tokens(), query_heads()}; }

  Argument argument(const char* name, const Tensor& tensor) const { return {op, name, tensor}; }
  Argument queries() const { return argument("q", q); }
  Argument keys() const { return argument(is_latent ? "kv_cache" : "k_cache", k); }
};

template <class... Parts>
[[noreturn]] void refuse(const AttentionInputs& in, const Parts&... parts) {
  fail("mirage_kernels::", in.op, ": ", parts...);
}

}  // namespace mirage
