// Division by a number that the host knows: a product and a shift. Division by an arbitrary number
// is a sequence of conversions of some 150 cycles.
#pragma once

#include "launch.h"

namespace mirage::tile {

// For divisors 1 to 2^31 - 1 and numbers below 2^31: multiplier / 2^shift exceeds 1 / divisor by
// less than 2^-31 of it.
inline HostDivisor divisor(int64_t value) {
  int bits = 0;
  while ((int64_t{1} << bits) < value) ++bits;
  const int shift = 31 + bits;
  const uint64_t scale = uint64_t{1} << shift;
  return {static_cast<uint32_t>(value), static_cast<uint32_t>(scale / value + 1),
          static_cast<uint32_t>(shift)};
}

__device__ inline unsigned quotient(unsigned number, const HostDivisor& by) {
  return static_cast<unsigned>(static_cast<uint64_t>(number) * by.multiplier >> by.shift);
}

__device__ inline unsigned remainder(unsigned number, const HostDivisor& by) {
  return number - quotient(number, by) * by.value;
}

}  // namespace mirage::tile
