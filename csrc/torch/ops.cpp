// The library's ops, one row each: what the arguments are called and how their dims go together.
#include <torch/csrc/stable/library.h>

#include "call.h"
#include "op.h"

namespace mirage {
namespace {

constexpr bool kOption = true;
constexpr bool kOnlyOwn = true;
constexpr auto* kNamedDims = &named_dims_call;

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

// y = linear(x / rms(x) * (norm_weight + weight_offset), weight) + bias
const Signature kRmsNormLinear{"rms_norm_linear",
                               "",
                               {kX, kNormWeight, kWeight, kEps, kBias, kWeightOffset},
                               {kOut},
                               kNamedDims};

// total = x + residual, and the same of total
const Signature kRmsNormLinearResidual{
    "rms_norm_linear",
    "residual",
    {kX, kNormWeight, kWeight, kEps, kBias, kResidual, kWeightOffset},
    {kOut, kTotal},
    kNamedDims};

// y = linear((x - mean(x)) / std(x) * norm_weight + norm_bias, weight) + bias
const Signature kLayerNormLinear{"layer_norm_linear",
                                 "",
                                 {kX, kNormWeight, kNormBias, kWeight, kEps, kBias},
                                 {kOut},
                                 kNamedDims};

// y = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias
const Signature kLoraLinear{"lora_linear",
                            "",
                            {kX,
                             kWeight,
                             {"lora_a", "Tensor", Kind::kWeight, "R K"},
                             {"lora_b", "Tensor", Kind::kWeight, "N R"},
                             kScale,
                             kBias},
                            {kOut},
                            kNamedDims};

// the same with an adapter of its own for each token; -1: none
const Signature kLoraLinearBatched{"lora_linear",
                                   "batched",
                                   {kX,
                                    kWeight,
                                    {"lora_a", "Tensor", Kind::kWeight, "A R K"},
                                    {"lora_b", "Tensor", Kind::kWeight, "A N R"},
                                    {"adapter_ids", "Tensor", Kind::kIndices, "M"},
                                    kScale,
                                    kBias},
                                   {kOut},
                                   kNamedDims,
                                   "",
                                   kOnlyOwn};

// y = activation(linear(x, gate_weight)) * linear(x, up_weight)
const Signature kGatedMlp{"gated_mlp", "", {kX, kGate, kUp, kActivation}, {kOut}, kNamedDims};
const Signature kGatedMlpPacked{
    "gated_mlp", "packed", {kX, kGateUp, kActivation}, {kOut}, kNamedDims};

// the same of x / rms(x) * (norm_weight + weight_offset)
const Signature kRmsNormGatedMlp{"rms_norm_gated_mlp",
                                 "",
                                 {kX, kNormWeight, kGate, kUp, kEps, kActivation, kWeightOffset},
                                 {kOut},
                                 kNamedDims};
const Signature kRmsNormGatedMlpPacked{"rms_norm_gated_mlp",
                                       "packed",
                                       {kX, kNormWeight, kGateUp, kEps, kActivation, kWeightOffset},
                                       {kOut},
                                       kNamedDims};

// y = normalize(h + alpha * (normalize(x) - h)), where normalize(x) = x / sqrt(sum(x^2))
const Signature kNtrans{
    "ntrans",
    "",
    {{"h", "Tensor", Kind::kRows, "M K"}, kX, {"alpha", "Tensor", Kind::kWeight, "K"}},
    {kNormed},
    kNamedDims};

// What surrounds a library's matrix product, at any size.

// y = x / rms(x) * (norm_weight + weight_offset)
const Signature kRmsNorm{
    "rms_norm", "", {kX, kNormWeight, kEps, kWeightOffset}, {kNormed}, kNamedDims, "", kOnlyOwn};

// total = x + residual, and the same of total
const Signature kRmsNormResidual{
    "rms_norm",        "residual", {kX, kNormWeight, kEps, kResidual, kWeightOffset},
    {kNormed, kTotal}, kNamedDims, "",
    kOnlyOwn};

// y = (x - mean(x)) / std(x) * norm_weight + norm_bias
const Signature kLayerNorm{
    "layer_norm", "", {kX, kNormWeight, kNormBias, kEps}, {kNormed}, kNamedDims, "", kOnlyOwn};

// y = activation(gate) * up
const Signature kActAndMul{
    "act_and_mul",
    "",
    {{"gate", "Tensor", Kind::kRows, "M N"}, {"up", "Tensor", Kind::kRows, "M N"}, kActivation},
    {kOut},
    kNamedDims,
    "",
    kOnlyOwn};

// Attention. T query tokens of H heads; the caches are [pages, page size, heads, D], or
// [B, L, heads, D] without block_table. Bounds are -1 where the shapes give them.

const Parameter kQueries{"q", "Tensor", Kind::kOwn, "T H D"};
const Parameter kBlockTable{"block_table", "Tensor?"};
const Parameter kSeqLens{"seq_lens", "Tensor?"};
const Parameter kCuSeqlens{"cu_seqlens_q", "Tensor?"};
const Parameter kMaxQLen{"max_q_len", "SymInt"}, kMaxSeqLen{"max_seq_len", "SymInt"};
const Parameter kSoftmaxScale{"scale", "float"}, kCausal{"causal", "bool"};
const Parameter kQWeight{"q_weight", "Tensor"}, kKWeight{"k_weight", "Tensor"};
const Parameter kQBias{"q_bias", "Tensor?"}, kKBias{"k_bias", "Tensor?"};
const Parameter kHeadEps{"eps", "float"}, kHeadOffset{"weight_offset", "float"};
const Parameter kNorm{"norm", "str"};
const Parameter kHeads{"out", "Tensor", Kind::kOwn, "T H D"},
    kLse{"lse", "Tensor", Kind::kOwn, "T H"};

const std::vector<Parameter> kGqaParameters{kQueries,
                                            {"k", "Tensor"},
                                            {"v", "Tensor"},
                                            kBlockTable,
                                            kSeqLens,
                                            kCuSeqlens,
                                            {"sinks", "Tensor?"},
                                            kMaxQLen,
                                            kMaxSeqLen,
                                            kSoftmaxScale,
                                            kCausal,
                                            {"window_left", "int"},
                                            {"logits_soft_cap", "float"}};

std::vector<Parameter> with(std::vector<Parameter> some, const std::vector<Parameter>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

// out = softmax(scale * q k^T) v
const Signature kGqa{"gqa", "", kGqaParameters, {kHeads}, &attention_call, "D"};
const Signature kGqaLse{"gqa", "lse", kGqaParameters, {kHeads, kLse}, &attention_call, "D"};

// the same of norm(q) and norm(k), over D of each head
const std::vector<Parameter> kQkNormParameters =
    with(kGqaParameters, {kQWeight, kKWeight, kQBias, kKBias, kHeadEps, kHeadOffset, kNorm});
const Signature kQkNorm{"qk_norm_attention", "", kQkNormParameters, {kHeads}, &attention_call, "D"};
const Signature kQkNormLse{"qk_norm_attention", "lse",           kQkNormParameters,
                           {kHeads, kLse},      &attention_call, "D"};

// the same of queries and keys in two parts, whose values are the first part of the keys
const std::vector<Parameter> kMlaParameters{
    kQueries, {"q_rope", "Tensor"}, {"k", "Tensor"}, {"k_rope", "Tensor"}, kBlockTable,
    kSeqLens, kCuSeqlens,           kMaxQLen,        kMaxSeqLen,           kSoftmaxScale,
    kCausal};
const Signature kMla{"mla_decode", "", kMlaParameters, {kHeads}, &attention_call, "C P"};
const Signature kMlaLse{"mla_decode",   "lse",           kMlaParameters,
                        {kHeads, kLse}, &attention_call, "C P"};

// q = rope(norm(queries)); the caches get rope(norm(keys)) and the values
const Signature kAppend{"qk_norm_rope_append",
                        "",
                        {{"qkv", "Tensor"},
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
                         {"rope", "str"}},
                        {{"q", "Tensor", Kind::kOwn, "T H D"}},
                        &append_call,
                        "D"};

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
