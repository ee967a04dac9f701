// What the op in front of gqa is given, by name.
#pragma once

#include <optional>
#include <string>

#include "arguments.h"
#include "signature.h"

namespace mirage {

// The caches are [pages, page size, Hkv, D].
struct AppendInputs {
  // Values in the order of the schema.
  explicit AppendInputs(const Values& values)
      : qkv(*values[0].tensor),
        q_weight(values[1].tensor),
        k_weight(values[2].tensor),
        q_bias(values[3].tensor),
        k_bias(values[4].tensor),
        cos_sin_cache(*values[5].tensor),
        positions(*values[6].tensor),
        k_cache(*values[7].tensor),
        v_cache(*values[8].tensor),
        slot_mapping(*values[9].tensor),
        num_heads(values[10].integer),
        num_kv_heads(values[11].integer),
        eps(values[12].number),
        weight_offset(values[13].number),
        norm(values[14].text),
        rope(values[15].text) {}

  const Tensor& qkv;  // [tokens, (Hq + 2 Hkv) * D]
  const std::optional<Tensor>&q_weight, &k_weight, &q_bias, &k_bias;
  const Tensor& cos_sin_cache;  // [positions, rotated elements of D]: cosines, then sines
  const Tensor& positions;      // [tokens]
  const Tensor &k_cache, &v_cache;
  const Tensor& slot_mapping;  // [tokens]
  int64_t num_heads, num_kv_heads;
  double eps, weight_offset;
  const std::string &norm, &rope;

  int64_t tokens() const { return qkv.size(0); }
  int64_t head_size() const { return k_cache.size(3); }
  int64_t rotated() const { return cos_sin_cache.size(1); }
  int64_t slots() const { return k_cache.size(0) * k_cache.size(1); }

  // Whether kernels can count all that there is: in int32.
  bool is_countable() const {
    constexpr int64_t kMaxCount = int64_t{1} << 31;
    return tokens() < kMaxCount && slots() < kMaxCount && cos_sin_cache.size(0) < kMaxCount;
  }
};

}  // namespace mirage
