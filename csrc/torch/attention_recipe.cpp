// The recipes of attention, by what a call has.
#include "attention_recipe.h"

#include <torch/csrc/stable/library.h>

namespace mirage {
namespace {

// RMS kernels take weights [D] only, those of LayerNorm no offset.
const char* norm_recipe(const AttentionForm& form) {
  if (form.norm == "rms") return form.has_norms_by_head ? nullptr : "qk_norm_attention";
  return form.has_weight_offset ? nullptr : "qk_layer_norm_attention";
}

// "" where no recipe says what such calls compute; `norm` is "" for ops without one.
std::string recipe_of_call(std::string op, std::string norm, bool several, bool causal, bool window,
                           bool cap, bool offset) {
  AttentionForm form{op == "mla_decode", norm, several, causal, window, cap, offset};
  const char* found = attention_recipe(form);
  return found == nullptr ? "" : found;
}

}  // namespace

// Recipes that know windows are causal; for a sequence's only query token, which sees all keys,
// causal or not is the same.
const char* attention_recipe(const AttentionForm& form) {
  const bool by_place = form.has_window || (form.is_causal && form.has_several_tokens);
  if (form.is_latent) return by_place ? nullptr : "mla_decode";
  if (!form.norm.empty()) return by_place || form.has_cap ? nullptr : norm_recipe(form);
  if (!by_place && !form.has_cap) return "gqa";
  if (!form.is_causal && form.has_several_tokens) return nullptr;
  return form.has_cap ? "gqa_full" : "sliding_window_attention";
}

}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  m.def(
      "_attention_recipe(str op, str norm, bool several, bool causal, bool window, bool cap, "
      "bool offset) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CompositeExplicitAutograd, m) {
  m.impl("_attention_recipe", TORCH_BOX(&mirage::recipe_of_call));
}
