// The texts that follow from a signature: names, schemas, JSON.
#include "signature.h"

#include <cstring>

namespace mirage {
namespace {

struct ActivationRecipe {
  const char* op;
  const char* activation;
  const char* recipe;
};

constexpr ActivationRecipe kActivationRecipes[] = {
    {"gated_mlp", "silu", "gated_mlp"},
    {"gated_mlp", "gelu", "gated_mlp_gelu"},
    {"gated_mlp", "gelu_tanh", "geglu_mlp"},
    {"gated_mlp", "relu", "gated_mlp_relu"},
    {"act_and_mul", "silu", "silu_and_mul"},
    {"act_and_mul", "gelu", "gelu_and_mul"},
    {"act_and_mul", "gelu_tanh", "gelu_tanh_and_mul"},
    {"act_and_mul", "relu", "relu_and_mul"},
    {"rms_norm_gated_mlp", "silu", "rms_norm_gated_mlp"},
    {"rms_norm_gated_mlp", "gelu", "rms_norm_gated_mlp_gelu"},
    {"rms_norm_gated_mlp", "gelu_tanh", "rms_norm_geglu_mlp"},
    {"rms_norm_gated_mlp", "relu", "rms_norm_gated_mlp_relu"},
};

const char* kind_text(Kind kind) {
  switch (kind) {
    case Kind::kRows:
      return "rows";
    case Kind::kWeight:
      return "weight";
    case Kind::kIndices:
      return "indices";
    case Kind::kNumber:
    case Kind::kNotNegative:
      return "number";
    case Kind::kActivation:
      return "activation";
  }
  return "";
}

// "" where a call must give the argument.
std::string default_of(const Parameter& parameter, const char* type) {
  if (std::strcmp(type, "Tensor?") == 0) return "=None";
  return parameter.option && parameter.kind == Kind::kNumber ? "=0.0" : "";
}

std::string parameters_of(const Signature& signature, const std::vector<const char*>& types) {
  std::string text;
  bool may_end_here = true;  // whether all parameters behind have defaults
  for (size_t i = signature.parameters.size(); i-- > 0;) {
    const Parameter& parameter = signature.parameters[i];
    const std::string otherwise = default_of(parameter, types[i]);
    may_end_here = may_end_here && !otherwise.empty();
    text = std::string(types[i]) + " " + parameter.name + (may_end_here ? otherwise : "") +
           (text.empty() ? "" : ", ") + text;
  }
  return text;
}

std::string written_results(const Signature& signature) {
  std::string text;
  char alias = 'a';
  for (const Parameter& result : signature.results) {
    text += std::string(", Tensor(") + alias++ + "!) " + result.name;
  }
  return text;
}

std::string json_of(const std::vector<Parameter>& parameters) {
  std::string json;
  for (const Parameter& parameter : parameters) {
    json += std::string(json.empty() ? "" : ", ") + "{\"name\": \"" + parameter.name +
            "\", \"dims\": \"" + parameter.dims + "\", \"kind\": \"" + kind_text(parameter.kind) +
            "\"}";
  }
  return "[" + json + "]";
}

}  // namespace

Name name_of(const Signature& signature, Form form) {
  const std::string op = signature.op, overload = signature.overload;
  if (form == Form::kLibrary) return {"_" + op + "_library", overload};
  if (form == Form::kAround) return {"_" + op + "_around", overload};
  if (form == Form::kFunctional) return {op, overload};
  return {op, overload.empty() ? "out" : overload + "_out"};
}

std::string schema_of(const Signature& signature, const std::vector<const char*>& types,
                      Form form) {
  const std::string text = name_of(signature, form).text() + "(" + parameters_of(signature, types);
  if (form == Form::kFunctional) {
    return text + (signature.results.size() == 1 ? ") -> Tensor" : ") -> (Tensor, Tensor)");
  }
  // "-> ()": PyTorch's functionalization refuses custom ops that return an alias.
  return text + ", *" + written_results(signature) + ") -> ()";
}

std::string signatures_json(const std::vector<const Signature*>& signatures) {
  std::string json;
  for (const Signature* signature : signatures) {
    json += std::string(json.empty() ? "" : ", ") + "{\"op\": \"" + signature->op +
            "\", \"overload\": \"" + signature->overload +
            "\", \"parameters\": " + json_of(signature->parameters) +
            ", \"results\": " + json_of(signature->results) + "}";
  }
  return "[" + json + "]";
}

const char* recipe_of(const char* op, const std::string& activation) {
  bool chooses = false;
  for (const ActivationRecipe& row : kActivationRecipes) {
    if (std::strcmp(op, row.op) != 0) continue;
    if (activation == row.activation) return row.recipe;
    chooses = true;
  }
  return chooses ? nullptr : op;
}

}  // namespace mirage
