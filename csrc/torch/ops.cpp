// The library's ops, one row each: what the arguments are called and how their dims go together.
#include <deque>
#include <iterator>
#include <sstream>
#include <utility>

#include <torch/csrc/stable/library.h>

#include "call.h"
#include "op.h"

namespace mirage {
namespace {

using Parameters = std::vector<Parameter>;

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
const Parameter kAddedTo{"addend", "Tensor", Kind::kRows, "M K"};
const Parameter kAddend{"residual", "Tensor?", Kind::kAddend, "M N", kOption};
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

Signature named_dims(const char* op, const char* overload, Parameters parameters,
                     Parameters results = {kOut}) {
  return {op, overload, std::move(parameters), std::move(results), &named_dims_call};
}

Signature only_own(Signature signature) {
  signature.only_own = true;
  return signature;
}

const char* kept(const std::string& text) {
  static std::deque<std::string> texts;
  return texts.emplace_back(text).c_str();
}

// Parameters that their op checks itself: types and names as in a schema, labels in brackets.
Parameters own(const std::string& text) {
  Parameters parameters;
  std::istringstream words(text);
  for (std::string type, name, label; words >> type >> name; label.clear()) {
    const bool is_labeled = name.back() != ',' && (words >> std::ws).peek() == '[';
    if (is_labeled) std::getline(words.ignore(1), label, ']').ignore(1);
    if (name.back() == ',') name.pop_back();
    const char* shown = is_labeled ? kept(label) : nullptr;
    parameters.push_back({kept(name), kept(type), Kind::kOwn, "", false, shown});
  }
  return parameters;
}

Signature attention(const char* op, const char* overload, const std::string& parameters,
                    const char* static_dims = "D") {
  const Parameter out{"out", "Tensor", Kind::kOwn, "T H D"},
      lse{"lse", "Tensor", Kind::kOwn, "T H"};
  const Parameters results = *overload ? Parameters{out, lse} : Parameters{out};
  return {op, overload, own(parameters), results, &attention_call, static_dims};
}

// Query tokens; caches [pages, page size, heads, D], or [B, L, heads, D] without block_table;
// bounds are -1 where the shapes give them.
const std::string kGqa =
    "Tensor q, Tensor k [k_cache], Tensor v [v_cache], Tensor? block_table, Tensor? seq_lens, "
    "Tensor? cu_seqlens_q, Tensor? sinks, SymInt max_q_len, SymInt max_seq_len, float scale, bool "
    "causal, int window_left, float logits_soft_cap";
const std::string kNorms = "Tensor q_weight, Tensor k_weight, Tensor? q_bias, Tensor? k_bias, ";
const std::string kNormOptions = "float eps, float weight_offset, str norm";
const std::string kQkNorm = kGqa + ", " + kNorms + kNormOptions;
const std::string kMla =
    "Tensor q, Tensor q_rope [rope part of q], Tensor k [kv_cache], Tensor k_rope [rope part of "
    "kv_cache], Tensor? block_table, Tensor? seq_lens, Tensor? cu_seqlens_q, SymInt max_q_len, "
    "SymInt max_seq_len, float scale, bool causal";
const std::string kAppend =
    "Tensor qkv, Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, Tensor? k_bias, Tensor "
    "cos_sin_cache, Tensor positions, Tensor(a!) k_cache, "
    "Tensor(b!) v_cache, Tensor slot_mapping, int num_heads, int num_kv_heads, " +
    kNormOptions + ", str rope";

const Signature kSignatures[] = {
    // y = linear(x / rms(x) * (norm_weight + weight_offset), weight) + bias
    named_dims("rms_norm_linear", "", {kX, kNormWeight, kWeight, kEps, kBias, kWeightOffset}),
    // total = x + residual, and the same of total
    named_dims("rms_norm_linear", "residual",
               {kX, kNormWeight, kWeight, kEps, kBias, kResidual, kWeightOffset}, {kOut, kTotal}),
    // y = residual + linear(x, weight) + bias
    only_own(named_dims("linear", "", {kX, kWeight, kBias, kAddend})),
    // y = linear((x - mean(x)) / std(x) * norm_weight + norm_bias, weight) + bias
    named_dims("layer_norm_linear", "", {kX, kNormWeight, kNormBias, kWeight, kEps, kBias}),
    // y = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias
    named_dims("lora_linear", "", {kX, kWeight, kLoraA, kLoraB, kScale, kBias}),
    // the same with an adapter of its own for each token; -1: none
    only_own(named_dims("lora_linear", "batched",
                        {kX, kWeight, kStackA, kStackB, kAdapterIds, kScale, kBias})),
    // y = activation(linear(x, gate_weight)) * linear(x, up_weight)
    named_dims("gated_mlp", "", {kX, kGate, kUp, kActivation}),
    named_dims("gated_mlp", "packed", {kX, kGateUp, kActivation}),
    // the same of x / rms(x) * (norm_weight + weight_offset)
    named_dims("rms_norm_gated_mlp", "",
               {kX, kNormWeight, kGate, kUp, kEps, kActivation, kWeightOffset}),
    named_dims("rms_norm_gated_mlp", "packed",
               {kX, kNormWeight, kGateUp, kEps, kActivation, kWeightOffset}),
    // total = x + residual, and the same of total
    named_dims("rms_norm_gated_mlp", "residual",
               {kX, kNormWeight, kGate, kUp, kEps, kActivation, kResidual, kWeightOffset},
               {kOut, kTotal}),
    named_dims("rms_norm_gated_mlp", "packed_residual",
               {kX, kNormWeight, kGateUp, kEps, kActivation, kResidual, kWeightOffset},
               {kOut, kTotal}),
    // y = normalize(h + alpha * (normalize(x) - h)), where normalize(x) = x / sqrt(sum(x^2))
    named_dims("ntrans", "", {kH, kX, kAlpha}, {kNormed}),

    // What surrounds a library's matrix product, at any size.
    // y = x / rms(x) * (norm_weight + weight_offset)
    only_own(named_dims("rms_norm", "", {kX, kNormWeight, kEps, kWeightOffset}, {kNormed})),
    // total = x + residual, and the same of total
    only_own(named_dims("rms_norm", "residual", {kX, kNormWeight, kEps, kResidual, kWeightOffset},
                        {kNormed, kTotal})),
    // y = addend + x / rms(x) * (norm_weight + weight_offset)
    only_own(named_dims("rms_norm_add", "", {kX, kNormWeight, kAddedTo, kEps, kWeightOffset},
                        {kNormed})),
    // y = (x - mean(x)) / std(x) * norm_weight + norm_bias
    only_own(named_dims("layer_norm", "", {kX, kNormWeight, kNormBias, kEps}, {kNormed})),
    // total = x + residual, and the same of total
    only_own(named_dims("layer_norm", "residual", {kX, kNormWeight, kNormBias, kEps, kResidual},
                        {kNormed, kTotal})),
    // y = activation(gate) * up
    only_own(named_dims("act_and_mul", "", {kGateRows, kUpRows, kActivation})),

    // out = softmax(scale * q k^T) v, and its log-sum-exp
    attention("gqa", "", kGqa),
    attention("gqa", "lse", kGqa),
    // the same of norm(q) and norm(k), over D of each head
    attention("qk_norm_attention", "", kQkNorm),
    attention("qk_norm_attention", "lse", kQkNorm),
    // the same of queries and keys in two parts, whose values are the first part of the keys
    attention("mla_decode", "", kMla, "C P"),
    attention("mla_decode", "lse", kMla, "C P"),
    // q = rope(norm(queries)); the caches get rope(norm(keys)) and the values
    {"qk_norm_rope_append",
     "",
     own(kAppend),
     {{"q", "Tensor", Kind::kOwn, "T H D"}},
     &append_call,
     "D"},
};

template <size_t... kIndices>
void implement_all(torch::stable::detail::StableLibrary& library,
                   std::index_sequence<kIndices...>) {
  (implement(op_of<kSignatures, kIndices>(), library), ...);
}

void implement_all(torch::stable::detail::StableLibrary& library) {
  implement_all(library, std::make_index_sequence<std::size(kSignatures)>());
}

std::string signatures() {
  std::string json;
  for (const Signature& one : kSignatures) json += (json.empty() ? "" : ", ") + json_of(one);
  return "[" + json + "]";
}

}  // namespace
}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  for (const mirage::Signature& signature : mirage::kSignatures) mirage::define(signature, m);
  m.def("_signatures() -> str");
  m.def("_failure() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CUDA, m) { mirage::implement_all(m); }

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CPU, m) { mirage::implement_all(m); }

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CompositeExplicitAutograd, m) {
  m.impl("_signatures", TORCH_BOX(&mirage::signatures));
}
