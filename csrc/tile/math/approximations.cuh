// Instructions that approximate a function of fp32, with their errors.
#pragma once

namespace mirage::tile {

// a / b to two units in the last place and the square root to 2^-23, for all values. The exact ones
// branch for rare operands, and then every element of an epilogue waits for the one before it (240
// cycles each).
__device__ inline float quotient(float a, float b) {
  float q;
  asm("div.full.f32 %0, %1, %2;" : "=f"(q) : "f"(a), "f"(b));
  return q;
}
#define MIRAGE_TILE_APPROXIMATION(name, instruction)         \
  __device__ inline float name(float a) {                    \
    float result;                                            \
    asm(instruction ".f32 %0, %1;" : "=f"(result) : "f"(a)); \
    return result;                                           \
  }
MIRAGE_TILE_APPROXIMATION(root, "sqrt.approx")
// 2^a to a relative 2^-22, and 0 where that is less than 2^-126: one instruction.
MIRAGE_TILE_APPROXIMATION(power_of_two, "ex2.approx.ftz")
// Relative errors below 2^-22.
MIRAGE_TILE_APPROXIMATION(reciprocal, "rcp.approx.ftz")
MIRAGE_TILE_APPROXIMATION(near_root, "sqrt.approx.ftz")
MIRAGE_TILE_APPROXIMATION(inverse_root, "rsqrt.approx.ftz")
// Of numbers from 1 on: absolute error below 2^-22 up to 2, relative beyond.
MIRAGE_TILE_APPROXIMATION(base_two_log, "lg2.approx.ftz")
#undef MIRAGE_TILE_APPROXIMATION

}  // namespace mirage::tile
