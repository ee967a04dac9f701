// Which recipe of attention says what a call computes.
#pragma once

#include <string>

namespace mirage {

struct AttentionForm {
  bool is_latent;
  std::string norm;                 // "rms" or "layer"; empty: q and k are used as they are
  bool has_several_tokens = false;  // some sequence may have more than one query token
  bool is_causal = false, has_window = false, has_cap = false;
  bool has_weight_offset = false, has_norms_by_head = false;
};

// nullptr where no recipe says what the call computes.
const char* attention_recipe(const AttentionForm& form);

}  // namespace mirage
