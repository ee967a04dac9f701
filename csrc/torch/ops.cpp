// The library's ops, one row each: what the arguments are called and how their dims go together.
#include <utility>

#include <torch/csrc/stable/library.h>

#include "call.h"
#include "op.h"

namespace mirage {
namespace {

constexpr bool kOption = true;

const Parameter kX{"x", "Tensor", Kind::kRows, "M K"};
const Parameter kNormWeight{"norm_weight", "Tensor", Kind::kWeight, "K"};
const Parameter kWeight{"weight", "Tensor", Kind::kWeight, "N K"};
const Parameter kGate{"gate_weight", "Tensor", Kind::kWeight, "N K"};
const Parameter kUp{"up_weight", "Tensor", Kind::kWeight, "N K"};
const Parameter kGateUp{"gate_up_weight", "Tensor", Kind::kWeight, "2N K"};  // the gate first
const Parameter kEps{"eps", "float", Kind::kNotNegative};
const Parameter kScale{"scale", "float", Kind::kNumber};
const Parameter kActivation{"activation", "str", Kind::kActivation};
const Parameter kBias{"bias", "Tensor?", Kind::kWeight, "N", kOption};
const Parameter kWeightOffset{"weight_offset", "float", Kind::kNumber, "", kOption};
const Parameter kNormBias{"norm_bias", "Tensor?", Kind::kWeight, "K"};
const Parameter kResidual{"residual", "Tensor", Kind::kRows, "M K", kOption};
const Parameter kOut{"out", "Tensor", Kind::kRows, "M N"};
const Parameter kNormed{"out", "Tensor", Kind::kRows, "M K"};
const Parameter kTotal{"total", "Tensor", Kind::kRows, "M K"};
const Parameter kLoraA{"lora_a", "Tensor", Kind::kWeight, "R K"};
const Parameter kLoraB{"lora_b", "Tensor", Kind::kWeight, "N R"};
const Parameter kStackA{"lora_a", "Tensor", Kind::kWeight, "A R K"};
const Parameter kStackB{"lora_b", "Tensor", Kind::kWeight, "A N R"};
const Parameter kAdapterIds{"adapter_ids", "Tensor", Kind::kIndices, "M"};
const Parameter kH{"h", "Tensor", Kind::kRows, "M K"};
const Parameter kAlpha{"alpha", "Tensor", Kind::kWeight, "K"};
const Parameter kGateRows{"gate", "Tensor", Kind::kRows, "M N"};
const Parameter kUpRows{"up", "Tensor", Kind::kRows, "M N"};

Signature named_dims(const char* op, const char* overload, std::vector<Parameter> parameters,
                     std::vector<Parameter> results = {kOut}) {
  return {op, overload, std::move(parameters), std::move(results), &named_dims_call};
}

Signature only_own(Signature signature) {
  signature.only_own = true;
  return signature;
}

// y = linear(x / rms(x) * (norm_weight + weight_offset), weight) + bias
const Signature kRmsNormLinear =
    named_dims("rms_norm_linear", "", {kX, kNormWeight, kWeight, kEps, kBias, kWeightOffset});

// total = x + residual, and the same of total
const Signature kRmsNormLinearResidual =
    named_dims("rms_norm_linear", "residual",
               {kX, kNormWeight, kWeight, kEps, kBias, kResidual, kWeightOffset}, {kOut, kTotal});

// y = linear((x - mean(x)) / std(x) * norm_weight + norm_bias, weight) + bias
const Signature kLayerNormLinear =
    named_dims("layer_norm_linear", "", {kX, kNormWeight, kNormBias, kWeight, kEps, kBias});

// y = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias
const Signature kLoraLinear =
    named_dims("lora_linear", "", {kX, kWeight, kLoraA, kLoraB, kScale, kBias});

// the same with an adapter of its own for each token; -1: none
const Signature kLoraLinearBatched = only_own(named_dims(
    "lora_linear", "batched", {kX, kWeight, kStackA, kStackB, kAdapterIds, kScale, kBias}));

// y = activation(linear(x, gate_weight)) * linear(x, up_weight)
const Signature kGatedMlp = named_dims("gated_mlp", "", {kX, kGate, kUp, kActivation});
const Signature kGatedMlpPacked = named_dims("gated_mlp", "packed", {kX, kGateUp, kActivation});

// the same of x / rms(x) * (norm_weight + weight_offset)
const Signature kRmsNormGatedMlp = named_dims(
    "rms_norm_gated_mlp", "", {kX, kNormWeight, kGate, kUp, kEps, kActivation, kWeightOffset});
const Signature kRmsNormGatedMlpPacked = named_dims(
    "rms_norm_gated_mlp", "packed", {kX, kNormWeight, kGateUp, kEps, kActivation, kWeightOffset});

// y = normalize(h + alpha * (normalize(x) - h)), where normalize(x) = x / sqrt(sum(x^2))
const Signature kNtrans = named_dims("ntrans", "", {kH, kX, kAlpha}, {kNormed});

// What surrounds a library's matrix product, at any size.

// y = x / rms(x) * (norm_weight + weight_offset)
const Signature kRmsNorm =
    only_own(named_dims("rms_norm", "", {kX, kNormWeight, kEps, kWeightOffset}, {kNormed}));

// total = x + residual, and the same of total
const Signature kRmsNormResidual = only_own(named_dims(
    "rms_norm", "residual", {kX, kNormWeight, kEps, kResidual, kWeightOffset}, {kNormed, kTotal}));

// y = (x - mean(x)) / std(x) * norm_weight + norm_bias
const Signature kLayerNorm =
    only_own(named_dims("layer_norm", "", {kX, kNormWeight, kNormBias, kEps}, {kNormed}));

// y = activation(gate) * up
const Signature kActAndMul =
    only_own(named_dims("act_and_mul", "", {kGateRows, kUpRows, kActivation}));

// Attention. T query tokens of H heads; the caches are [pages, page size, heads, D], or
// [B, L, heads, D] without block_table. Bounds are -1 where the shapes give them.

using Parameters = std::vector<Parameter>;

constexpr Parameter labeled(const char* name, const char* label) {
  return {name, "Tensor", Kind::kOwn, "", false, label};
}

const Parameter kOutHeads{"out", "Tensor", Kind::kOwn, "T H D"};
const Parameter kLse{"lse", "Tensor", Kind::kOwn, "T H"};  // log-sum-exp

Signature attention(const char* op, const char* overload, Parameters parameters) {
  const Parameters results = *overload ? Parameters{kOutHeads, kLse} : Parameters{kOutHeads};
  return {op, overload, std::move(parameters), results, &attention_call, "D"};
}

Signature latent_attention(const char* overload, Parameters parameters) {
  Signature signature = attention("mla_decode", overload, std::move(parameters));
  signature.static_dims = "C P";
  return signature;
}

const Parameter kQueries{"q", "Tensor"};
const Parameter kBlockTable{"block_table", "Tensor?"}, kSeqLens{"seq_lens", "Tensor?"};
const Parameter kCuSeqlens{"cu_seqlens_q", "Tensor?"}, kSinks{"sinks", "Tensor?"};
const Parameter kMaxQLen{"max_q_len", "SymInt"}, kMaxSeqLen{"max_seq_len", "SymInt"};
const Parameter kSoftmaxScale{"scale", "float"}, kCausal{"causal", "bool"};
const Parameter kWindow{"window_left", "int"}, kCap{"logits_soft_cap", "float"};
const Parameter kQWeight{"q_weight", "Tensor"}, kKWeight{"k_weight", "Tensor"};
const Parameter kQBias{"q_bias", "Tensor?"}, kKBias{"k_bias", "Tensor?"};
const Parameter kHeadEps{"eps", "float"}, kHeadOffset{"weight_offset", "float"};
const Parameter kNorm{"norm", "str"};

// out = softmax(scale * q k^T) v
const Parameters kGqaParameters{kQueries,
                                labeled("k", "k_cache"),
                                labeled("v", "v_cache"),
                                kBlockTable,
                                kSeqLens,
                                kCuSeqlens,
                                kSinks,
                                kMaxQLen,
                                kMaxSeqLen,
                                kSoftmaxScale,
                                kCausal,
                                kWindow,
                                kCap};
const Signature kGqa = attention("gqa", "", kGqaParameters);
const Signature kGqaLse = attention("gqa", "lse", kGqaParameters);

// the same of norm(q) and norm(k), over D of each head
const Parameters kQkNormParameters = [] {
  Parameters all = kGqaParameters;
  for (const Parameter& one : {kQWeight, kKWeight, kQBias, kKBias, kHeadEps, kHeadOffset, kNorm}) {
    all.push_back(one);
  }
  return all;
}();
const Signature kQkNorm = attention("qk_norm_attention", "", kQkNormParameters);
const Signature kQkNormLse = attention("qk_norm_attention", "lse", kQkNormParameters);

// the same of queries and keys in two parts, whose values are the first part of the keys
const Parameters kMlaParameters{kQueries,
                                labeled("q_rope", "rope part of q"),
                                labeled("k", "latent cache"),
                                labeled("k_rope", "rope part of the cache"),
                                kBlockTable,
                                kSeqLens,
                                kCuSeqlens,
                                kMaxQLen,
                                kMaxSeqLen,
                                kSoftmaxScale,
                                kCausal};
const Signature kMla = latent_attention("", kMlaParameters);
const Signature kMlaLse = latent_attention("lse", kMlaParameters);

// q = rope(norm(queries)); the caches get rope(norm(keys)) and the values
const Parameters kAppendParameters{{"qkv", "Tensor"},
                                   kQWeight,
                                   kKWeight,
                                   kQBias,
                                   kKBias,
                                   {"cos_sin_cache", "Tensor"},
                                   {"positions", "Tensor"},
                                   {"k_cache", "Tensor(a!)"},
                                   {"v_cache", "Tensor(b!)"},
                                   {"slot_mapping", "Tensor"},
                                   {"num_heads", "int"},
                                   {"num_kv_heads", "int"},
                                   kHeadEps,
                                   kHeadOffset,
                                   kNorm,
                                   {"rope", "str"}};
const Signature kAppend{"qk_norm_rope_append", "",
                        kAppendParameters,     {{"q", "Tensor", Kind::kOwn, "T H D"}},
                        &append_call,          "D"};

const Op kOps[] = {
    op_of<kRmsNormLinear>(),
    op_of<kRmsNormLinearResidual>(),
    op_of<kLayerNormLinear>(),
    op_of<kLoraLinear>(),
    op_of<kLoraLinearBatched>(),
    op_of<kGatedMlp>(),
    op_of<kGatedMlpPacked>(),
    op_of<kRmsNormGatedMlp>(),
    op_of<kRmsNormGatedMlpPacked>(),
    op_of<kNtrans>(),
    op_of<kRmsNorm>(),
    op_of<kRmsNormResidual>(),
    op_of<kLayerNorm>(),
    op_of<kActAndMul>(),
    op_of<kGqa>(),
    op_of<kGqaLse>(),
    op_of<kQkNorm>(),
    op_of<kQkNormLse>(),
    op_of<kMla>(),
    op_of<kMlaLse>(),
    op_of<kAppend>(),
};

void implement_all(torch::stable::detail::StableLibrary& library) {
  for (const Op& op : kOps) implement(op, library);
}

std::string signatures() {
  std::string json;
  for (const Op& op : kOps) json += (json.empty() ? "" : ", ") + json_of(*op.signature);
  return "[" + json + "]";
}

}  // namespace
}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  for (const mirage::Op& op : mirage::kOps) mirage::define(op, m);
  m.def("_signatures() -> str");
  m.def("_failure() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CUDA, m) { mirage::implement_all(m); }

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CPU, m) { mirage::implement_all(m); }

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CompositeExplicitAutograd, m) {
  m.impl("_signatures", TORCH_BOX(&mirage::signatures));
}
