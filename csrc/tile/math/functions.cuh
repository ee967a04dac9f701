// Functions of fp32 numbers, of few instructions: rounded to 16 bits they are as exact as
// PyTorch's. Free of CUDA's headers, so that a host compiler takes them too
// (tests/emit/test_functions.py).
#pragma once

#include "tile/math/approximations.cuh"

namespace mirage::tile {

// numerator / (1 + e^-a), and 0 for a below -87.3. gelu_tanh(a) is a times the logistic function of
// 2 sqrt(2 / pi) (a + 0.044715 a^3). (64 tokens of 14336: gelu_tanh took 4.7 us with exact
// functions and takes 3.0, silu 3.3 and 3.0.)
__device__ inline float logistic(float numerator, float a) {
  return numerator * reciprocal(1.0f + power_of_two(-1.44269504f * a));
}

// e^a, within 2^-21 of it for |a| up to 8; what is stored has 16 bits.
__device__ inline float near_exp(float a) { return power_of_two(1.44269504f * a); }

// a times the normal distribution's integral up to a. Its smaller half is a polynomial of
// 1 / (1 + |a| / 4.317) times e^(-a^2 / 2) (Abramowitz and Stegun 7.1.26: 1.5e-7 of 1).
__device__ inline float gelu_of(float a) {
  const float t = reciprocal(fmaf(fabsf(a), 0.231641888f, 1.0f));
  float tail = fmaf(t, 0.5307027145f, -0.7265760135f);
  tail = fmaf(tail, t, 0.7107068705f);
  tail = fmaf(tail, t, -0.142248368f);
  tail = fmaf(tail, t, 0.127414796f);
  tail *= t * power_of_two(-0.72134752f * a * a);
  return a * (a > 0.0f ? 1.0f - tail : tail);
}

// log(1 + e^a): for the small e^-|a| a polynomial, whose error is below e^-6|a| / 6.
__device__ inline float softplus_of(float a) {
  const float power = power_of_two(-1.44269504f * fabsf(a));
  float near = fmaf(power, 0.2f, -0.25f);
  near = fmaf(near, power, 0.333333333f);
  near = fmaf(near, power, -0.5f);
  near = fmaf(near * power, power, power);
  const float far = 0.69314718f * base_two_log(1.0f + power);
  return fmaxf(a, 0.0f) + (power < 0.0625f ? near : far);
}

// e^a - 1: for small numbers, whose digits that would lose, the best polynomial, to 2^-22.
__device__ inline float exp_minus_one(float a) {
  float near = fmaf(a, 0.00833697889f, 0.0418212065f);
  near = fmaf(near, a, 0.166667582f);
  near = fmaf(near, a, 0.499996623f);
  near = fmaf(near * a, a, a);
  return fabsf(a) < 0.3f ? near : near_exp(a) - 1.0f;
}

// 1 - 2 / (e^2a + 1), and for small numbers the best polynomial, to 2^-21.7.
__device__ inline float tanh_of(float a) {
  const float square = a * a;
  float near = fmaf(square, -0.0463220316f, 0.132466531f);
  near = fmaf(near, square, -0.333304847f);
  near = fmaf(near * square, a, a);
  const float far = fmaf(-2.0f, reciprocal(1.0f + power_of_two(2.88539008f * a)), 1.0f);
  return fabsf(a) < 0.45f ? near : far;
}

// Functions of two parts compute both: a branch costs every element more than the other part does.

__device__ inline float elu_of(float a) {
  const float below = exp_minus_one(a);
  return a > 0.0f ? a : below;
}

// tanh(log(1 + e^a)) = ((1 + e^a)^2 - 1) / ((1 + e^a)^2 + 1)
__device__ inline float tanh_of_softplus(float power) {
  const float square = power * (power + 2.0f);
  return quotient(square, square + 2.0f);
}
__device__ inline float mish_of(float a) {
  const float scaled = a * tanh_of_softplus(near_exp(a));
  return a > 20.0f ? a : scaled;
}

}  // namespace mirage::tile
