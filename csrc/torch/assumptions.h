// What kernels may assume of a call, as the caller said.
#pragma once

#include <cstdint>

namespace mirage {

// Bits of the argument `assume` of every op; mirage_kernels.assumptions says what they mean.
constexpr int64_t kConstantWeights = 1;  // no weight is written by the kernel just before the call
constexpr int64_t kConstantHistory = 2;  // nor keys of earlier tokens, tables, lengths, slots
constexpr int64_t kAsAround = -1;        // of the call whose program makes this one; else nothing

// The assumptions of a call, for this thread, while the call runs.
class AssumptionScope {
 public:
  explicit AssumptionScope(int64_t assume);
  ~AssumptionScope();
  AssumptionScope(const AssumptionScope&) = delete;
  AssumptionScope& operator=(const AssumptionScope&) = delete;

 private:
  int64_t before_;
};

bool constant_weights();
bool constant_history();

}  // namespace mirage
