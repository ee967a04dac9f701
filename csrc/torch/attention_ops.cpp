// The ops of attention: gqa; qk_norm_attention, which norms queries and keys first; mla_decode,
// over a cache of latents. Each comes with and without the log-sum-exp of the scores, in forms that
// write given tensors, and as its checks alone.
#include <utility>

#include "attention.h"
#include "op.h"

namespace mirage {
namespace {

const std::string kCommon =
    "Tensor q, Tensor k, Tensor v, Tensor? block_table, Tensor? seq_lens, Tensor? cu_seqlens_q, "
    "Tensor? sinks, SymInt max_q_len, SymInt max_seq_len, float scale, bool causal, int "
    "window_left, float logits_soft_cap";

struct Gqa {
  static constexpr const char* kName = "gqa";
  static std::string parameters() { return kCommon; }
  template <class... Arguments>
  static AttentionInputs inputs(const Arguments&... arguments) {
    return {kName, arguments...};
  }
};

struct QkNormAttention {
  static constexpr const char* kName = "qk_norm_attention";
  static std::string parameters() {
    return kCommon +
           ", Tensor q_weight, Tensor k_weight, Tensor? q_bias, Tensor? k_bias, float eps, float "
           "weight_offset, str norm";
  }
  template <class... Arguments>
  static AttentionInputs inputs(const Arguments&... arguments) {
    return {kName, arguments...};
  }
};

struct MlaDecode {
  static constexpr const char* kName = "mla_decode";
  static std::string parameters() {
    return "Tensor q, Tensor q_rope, Tensor k, Tensor k_rope, Tensor? block_table, Tensor? "
           "seq_lens, Tensor? cu_seqlens_q, SymInt max_q_len, SymInt max_seq_len, float scale, "
           "bool causal";
  }
  static AttentionInputs inputs(const Tensor& q, const Tensor& q_rope, const Tensor& k,
                                const Tensor& k_rope, const MaybeTensor& block_table,
                                const MaybeTensor& seq_lens, const MaybeTensor& cu_seqlens_q,
                                int64_t max_q_len, int64_t max_seq_len, double scale, bool causal) {
    AttentionInputs in{kName, q,         k,           k,     block_table, seq_lens, cu_seqlens_q,
                       {},    max_q_len, max_seq_len, scale, causal,      -1,       0};
    in.q_rope = q_rope;
    in.k_rope = k_rope;
    return in;
  }
};

template <class Which, class Arguments>
struct AttentionOp;

template <class Which, class... Arguments>
struct AttentionOp<Which, List<Arguments...>> {
  static Tensor plain(Arguments... arguments) {
    AttentionCall call(Which::inputs(arguments...));
    Tensor out = call.new_out();
    run(call, arguments..., out, MaybeTensor());
    return out;
  }

  static std::tuple<Tensor, Tensor> with_lse(Arguments... arguments) {
    AttentionCall call(Which::inputs(arguments...));
    Tensor out = call.new_out(), lse = call.new_lse();
    run(call, arguments..., out, MaybeTensor(lse));
    return {out, lse};
  }

  static void into(Arguments... arguments, Tensor out) {
    into_with_lse(arguments..., out, MaybeTensor());
  }

  static void into_with_lse(Arguments... arguments, Tensor out, MaybeTensor lse) {
    AttentionCall call(Which::inputs(arguments...));
    call.check_results(out, lse);
    run(call, arguments..., out, lse);
  }

  // For calls that PyTorch's attention computes: they are refused as all others are.
  static void check(Arguments... arguments, MaybeTensor out) {
    AttentionCall call(Which::inputs(arguments...));
    if (out) call.check_results(*out, {});
  }

  static void define(torch::stable::detail::StableLibrary& library) {
    const std::string op = Which::kName, given = "(" + Which::parameters();
    const std::string written = ", *, Tensor(a!) out",
                      program = written + ", Tensor(b!)? lse) -> ()";
    library.def((op + given + ") -> Tensor").c_str());
    library.def((op + ".lse" + given + ") -> (Tensor, Tensor)").c_str());
    library.def((op + ".out" + given + written + ") -> ()").c_str());
    library.def((op + ".lse_out" + given + written + ", Tensor(b!) lse) -> ()").c_str());
    library.def(("_" + op + "_library" + given + program).c_str());
    library.def(("_" + op + "_check" + given + ", *, Tensor? out) -> ()").c_str());
  }

  static void implement(torch::stable::detail::StableLibrary& library) {
    const std::string op = Which::kName;
    library.impl(op.c_str(), TORCH_BOX(&plain));
    library.impl((op + ".lse").c_str(), TORCH_BOX(&with_lse));
    library.impl((op + ".out").c_str(), TORCH_BOX(&into));
    library.impl((op + ".lse_out").c_str(), TORCH_BOX(&into_given));
    library.impl(("_" + op + "_check").c_str(), TORCH_BOX(&check));
  }

 private:
  static void into_given(Arguments... arguments, Tensor out, Tensor lse) {
    into_with_lse(arguments..., out, MaybeTensor(lse));
  }

  static void run(AttentionCall& call, const Arguments&... arguments, const Tensor& out,
                  const MaybeTensor& lse) {
    const Way way = call.way();
    if (way == Way::kNobody) return;
    if (way == Way::kKernel) return call.launch(out, lse);
    const std::string op = std::string("mirage_kernels::_") + Which::kName + "_library";
    StableIValue stack[] = {torch::stable::detail::from(arguments)...,
                            torch::stable::detail::from(out), torch::stable::detail::from(lse)};
    const auto status = torch_call_dispatcher(op.c_str(), "", stack, TORCH_ABI_VERSION);
    if (status != TORCH_SUCCESS) fail_program(Which::kName, call.hint());
  }
};

using GqaOp = AttentionOp<Gqa, List<Tensor, Tensor, Tensor, MaybeTensor, MaybeTensor, MaybeTensor,
                                    MaybeTensor, int64_t, int64_t, double, bool, int64_t, double>>;

using MlaDecodeOp =
    AttentionOp<MlaDecode, List<Tensor, Tensor, Tensor, Tensor, MaybeTensor, MaybeTensor,
                                MaybeTensor, int64_t, int64_t, double, bool>>;

using QkNormAttentionOp =
    AttentionOp<QkNormAttention,
                List<Tensor, Tensor, Tensor, MaybeTensor, MaybeTensor, MaybeTensor, MaybeTensor,
                     int64_t, int64_t, double, bool, int64_t, double, Tensor, Tensor, MaybeTensor,
                     MaybeTensor, double, double, std::string>>;

void implement(torch::stable::detail::StableLibrary& library) {
  GqaOp::implement(library);
  QkNormAttentionOp::implement(library);
  MlaDecodeOp::implement(library);
}

}  // namespace
}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  mirage::GqaOp::define(m);
  mirage::QkNormAttentionOp::define(m);
  mirage::MlaDecodeOp::define(m);
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CUDA, m) { mirage::implement(m); }

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CPU, m) { mirage::implement(m); }
