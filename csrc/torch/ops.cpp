// The library's ops. Each is data: what its arguments are called and how their dims go together.
#include "op.h"

#include "errors.h"

namespace mirage {
namespace {

using MaybeTensor = std::optional<Tensor>;
using Text = std::string;

constexpr bool kOption = true;
constexpr bool kOnlyOwn = true;

const Parameter kX{"x", Kind::kRows, "M K"};
const Parameter kNormWeight{"norm_weight", Kind::kWeight, "K"};
const Parameter kWeight{"weight", Kind::kWeight, "N K"};
const Parameter kGate{"gate_weight", Kind::kWeight, "N K"};
const Parameter kUp{"up_weight", Kind::kWeight, "N K"};
const Parameter kGateUp{"gate_up_weight", Kind::kWeight, "2N K"};  // all rows of the gate first
const Parameter kEps{"eps", Kind::kNotNegative};
const Parameter kScale{"scale", Kind::kNumber};
const Parameter kActivation{"activation", Kind::kActivation};
const Parameter kBias{"bias", Kind::kWeight, "N", kOption};
const Parameter kWeightOffset{"weight_offset", Kind::kNumber, "", kOption};
const Parameter kNormBias{"norm_bias", Kind::kWeight, "K"};
const Parameter kResidual{"residual", Kind::kRows, "M K", kOption};
const Parameter kOut{"out", Kind::kRows, "M N"};
const Parameter kNormed{"out", Kind::kRows, "M K"};
const Parameter kTotal{"total", Kind::kRows, "M K"};

// y = linear(x / rms(x) * (norm_weight + weight_offset), weight) + bias
const Signature kRmsNormLinear{
    "rms_norm_linear", "", {kX, kNormWeight, kWeight, kEps, kBias, kWeightOffset}, {kOut}};
using RmsNormLinear = Op<kRmsNormLinear, List<Tensor, Tensor, Tensor, double, MaybeTensor, double>>;

// total = x + residual, and the same of total
const Signature kRmsNormLinearResidual{
    "rms_norm_linear",
    "residual",
    {kX, kNormWeight, kWeight, kEps, kBias, kResidual, kWeightOffset},
    {kOut, kTotal}};
using RmsNormLinearResidual =
    Op<kRmsNormLinearResidual, List<Tensor, Tensor, Tensor, double, MaybeTensor, Tensor, double>,
       List<Tensor, Tensor>>;

// y = linear((x - mean(x)) / std(x) * norm_weight + norm_bias, weight) + bias
const Signature kLayerNormLinear{
    "layer_norm_linear", "", {kX, kNormWeight, kNormBias, kWeight, kEps, kBias}, {kOut}};
using LayerNormLinear =
    Op<kLayerNormLinear, List<Tensor, Tensor, MaybeTensor, Tensor, double, MaybeTensor>>;

// y = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias
const Signature kLoraLinear{"lora_linear",
                            "",
                            {kX,
                             kWeight,
                             {"lora_a", Kind::kWeight, "R K"},
                             {"lora_b", Kind::kWeight, "N R"},
                             kScale,
                             kBias},
                            {kOut}};
using LoraLinear = Op<kLoraLinear, List<Tensor, Tensor, Tensor, Tensor, double, MaybeTensor>>;

// the same with an adapter of its own for each token; -1: none
const Signature kLoraLinearBatched{"lora_linear",
                                   "batched",
                                   {kX,
                                    kWeight,
                                    {"lora_a", Kind::kWeight, "A R K"},
                                    {"lora_b", Kind::kWeight, "A N R"},
                                    {"adapter_ids", Kind::kIndices, "M"},
                                    kScale,
                                    kBias},
                                   {kOut},
                                   kOnlyOwn};
using LoraLinearBatched =
    Op<kLoraLinearBatched, List<Tensor, Tensor, Tensor, Tensor, Tensor, double, MaybeTensor>>;

// y = activation(linear(x, gate_weight)) * linear(x, up_weight)
const Signature kGatedMlp{"gated_mlp", "", {kX, kGate, kUp, kActivation}, {kOut}};
using GatedMlp = Op<kGatedMlp, List<Tensor, Tensor, Tensor, Text>>;

const Signature kGatedMlpPacked{"gated_mlp", "packed", {kX, kGateUp, kActivation}, {kOut}};
using GatedMlpPacked = Op<kGatedMlpPacked, List<Tensor, Tensor, Text>>;

// the same of x / rms(x) * (norm_weight + weight_offset)
const Signature kRmsNormGatedMlp{"rms_norm_gated_mlp",
                                 "",
                                 {kX, kNormWeight, kGate, kUp, kEps, kActivation, kWeightOffset},
                                 {kOut}};
using RmsNormGatedMlp =
    Op<kRmsNormGatedMlp, List<Tensor, Tensor, Tensor, Tensor, double, Text, double>>;

const Signature kRmsNormGatedMlpPacked{"rms_norm_gated_mlp",
                                       "packed",
                                       {kX, kNormWeight, kGateUp, kEps, kActivation, kWeightOffset},
                                       {kOut}};
using RmsNormGatedMlpPacked =
    Op<kRmsNormGatedMlpPacked, List<Tensor, Tensor, Tensor, double, Text, double>>;

// y = normalize(h + alpha * (normalize(x) - h)), where normalize(x) = x / sqrt(sum(x^2))
const Signature kNtrans{"ntrans",
                        "",
                        {{"h", Kind::kRows, "M K"}, kX, {"alpha", Kind::kWeight, "K"}},
                        {{"out", Kind::kRows, "M K"}}};
using Ntrans = Op<kNtrans, List<Tensor, Tensor, Tensor>>;

// What surrounds a library's matrix product, at any size.

// y = x / rms(x) * (norm_weight + weight_offset)
const Signature kRmsNorm{
    "rms_norm", "", {kX, kNormWeight, kEps, kWeightOffset}, {kNormed}, kOnlyOwn};
using RmsNorm = Op<kRmsNorm, List<Tensor, Tensor, double, double>>;

// total = x + residual, and the same of total
const Signature kRmsNormResidual{"rms_norm",
                                 "residual",
                                 {kX, kNormWeight, kEps, kResidual, kWeightOffset},
                                 {kNormed, kTotal},
                                 kOnlyOwn};
using RmsNormResidual =
    Op<kRmsNormResidual, List<Tensor, Tensor, double, Tensor, double>, List<Tensor, Tensor>>;

// y = (x - mean(x)) / std(x) * norm_weight + norm_bias
const Signature kLayerNorm{
    "layer_norm", "", {kX, kNormWeight, kNormBias, kEps}, {kNormed}, kOnlyOwn};
using LayerNorm = Op<kLayerNorm, List<Tensor, Tensor, MaybeTensor, double>>;

// y = activation(gate) * up
const Signature kActAndMul{"act_and_mul",
                           "",
                           {{"gate", Kind::kRows, "M N"}, {"up", Kind::kRows, "M N"}, kActivation},
                           {kOut},
                           kOnlyOwn};
using ActAndMul = Op<kActAndMul, List<Tensor, Tensor, Text>>;

// Both devices enter by the same door: the call itself knows where its tensors are.
template <class... Ops>
struct Every {
  static void define(torch::stable::detail::StableLibrary& library) { (Ops::define(library), ...); }
  static void implement(torch::stable::detail::StableLibrary& library) {
    (Ops::implement(library), ...);
  }
  static std::string signatures() { return signatures_json({&Ops::signature()...}); }
};
using Library =
    Every<RmsNormLinear, RmsNormLinearResidual, LayerNormLinear, LoraLinear, LoraLinearBatched,
          GatedMlp, GatedMlpPacked, RmsNormGatedMlp, RmsNormGatedMlpPacked, Ntrans, RmsNorm,
          RmsNormResidual, LayerNorm, ActAndMul>;

}  // namespace

void fail_program(const char* op, const std::string& hint) {
  StableIValue said = 0;
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("mirage_kernels::_failure", "", &said, TORCH_ABI_VERSION));
  fail("mirage_kernels::", op,
       ": PyTorch's own program failed: ", torch::stable::detail::to<std::string>(said), hint);
}

}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  mirage::Library::define(m);
  m.def("_signatures() -> str");
  m.def("_failure() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CUDA, m) { mirage::Library::implement(m); }

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CPU, m) { mirage::Library::implement(m); }

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CompositeExplicitAutograd, m) {
  m.impl("_signatures", TORCH_BOX(&mirage::Library::signatures));
}
