// The texts that follow from a signature: names, schemas, JSON.
#include "signature.h"

#include <algorithm>
#include <cstring>

namespace mirage {
namespace {

struct RecipeOfWord {
  const char* op;
  const char* word;
  const char* recipe;
};

constexpr RecipeOfWord kRecipes[] = {
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
    {"qk_norm_attention", "rms", "qk_norm_attention"},
    {"qk_norm_attention", "layer", "qk_layer_norm_attention"},
    {"qk_norm_rope_append", "none", "qk_norm_rope_append"},
    {"qk_norm_rope_append", "rms", "qk_norm_rope_append"},
    {"qk_norm_rope_append", "layer", "qk_norm_rope_append"},
};

const char* kind_text(Kind kind) {
  switch (kind) {
    case Kind::kRows:
    case Kind::kAddend:
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
    case Kind::kOwn:
      return "own";
  }
  return "";
}

bool is_written(const Parameter& parameter) { return std::strchr(parameter.type, '!') != nullptr; }

// "" where a call must give the argument.
std::string default_of(const Parameter& parameter) {
  if (parameter.kind == Kind::kOwn) return "";
  if (std::strcmp(parameter.type, "Tensor?") == 0) return "=None";
  return parameter.option && parameter.kind == Kind::kNumber ? "=0.0" : "";
}

std::string parameters_of(const Signature& signature) {
  std::string text;
  bool may_end_here = true;  // whether all parameters behind have defaults
  for (size_t i = signature.parameters.size(); i-- > 0;) {
    const Parameter& parameter = signature.parameters[i];
    const std::string otherwise = default_of(parameter);
    may_end_here = may_end_here && !otherwise.empty();
    text = std::string(parameter.type) + " " + parameter.name + (may_end_here ? otherwise : "") +
           (text.empty() ? "" : ", ") + text;
  }
  return text;
}

std::string written_results(const Signature& signature, Form form) {
  std::string text;
  char alias = 'a';
  for (const Parameter& parameter : signature.parameters) alias += is_written(parameter);
  for (const Parameter& result : signature.results) {
    const std::string type = std::string("Tensor(") + alias++ + "!) ";
    text += ", " + (form == Form::kCheck ? "Tensor? " : type) + result.name;
  }
  return text;
}

std::string json_of(const std::vector<Parameter>& parameters) {
  std::string json;
  for (const Parameter& parameter : parameters) {
    json += std::string(json.empty() ? "" : ", ") + "{\"name\": \"" + parameter.name +
            "\", \"dims\": \"" + parameter.dims + "\", \"kind\": \"" + kind_text(parameter.kind) +
            "\", \"label\": \"" + label_of(parameter) + "\"}";
  }
  return "[" + json + "]";
}

}  // namespace

const char* label_of(const Parameter& parameter) {
  return parameter.label != nullptr ? parameter.label : parameter.name;
}

bool has_values(const Signature& signature) {
  return std::any_of(signature.parameters.begin(), signature.parameters.end(),
                     [](const Parameter& parameter) {
                       return parameter.kind == Kind::kIndices || parameter.kind == Kind::kOwn;
                     });
}

bool is_in_place(const Signature& signature) {
  return std::any_of(signature.parameters.begin(), signature.parameters.end(), is_written);
}

Name name_of(const Signature& signature, Form form) {
  const std::string op = signature.op, overload = signature.overload;
  switch (form) {
    case Form::kFunctional:
      return {op, overload};
    case Form::kOut:
      return {op, overload.empty() ? "out" : overload + "_out"};
    case Form::kCheck:
      return {"_" + op + "_check", overload};
    case Form::kLibrary:
      return {"_" + op + "_library", overload};
    case Form::kComposite:
      return {"_" + op + "_composite", overload};
    case Form::kValues:
      return {"_" + op + "_values", overload};
  }
  return {};
}

std::string schema_of(const Signature& signature, Form form) {
  const std::string text = name_of(signature, form).text() + "(" + parameters_of(signature);
  const std::string assume = ", int assume=-1";
  if (form == Form::kFunctional) {
    const char* results = signature.results.size() == 1 ? ") -> Tensor" : ") -> (Tensor, Tensor)";
    return text + ", *" + assume + results;
  }
  if (form == Form::kValues) return text + ") -> ()";
  // "-> ()": PyTorch's functionalization refuses custom ops that return an alias.
  return text + ", *" + written_results(signature, form) +
         (form == Form::kOut ? assume : std::string()) + ") -> ()";
}

std::string json_of(const Signature& signature) {
  return std::string("{\"op\": \"") + signature.op + "\", \"overload\": \"" + signature.overload +
         "\", \"static_dims\": \"" + signature.static_dims +
         "\", \"in_place\": " + (is_in_place(signature) ? "true" : "false") +
         ", \"only_own\": " + (signature.only_own ? "true" : "false") +
         ", \"parameters\": " + json_of(signature.parameters) +
         ", \"results\": " + json_of(signature.results) + "}";
}

const char* recipe_of(const char* op, const std::string& word) {
  bool chooses = false;
  for (const RecipeOfWord& row : kRecipes) {
    if (std::strcmp(op, row.op) != 0) continue;
    if (word == row.word) return row.recipe;
    chooses = true;
  }
  return chooses ? nullptr : op;
}

}  // namespace mirage
