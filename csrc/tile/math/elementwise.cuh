// Elementwise functions, named as in the op table, over fragments and over fp32 scalars.
//
// `mul<T>(a, b)` chooses the element type of its result. Products, sums and differences of 2-byte
// values are taken two at a time and rounded once; everything else is computed in fp32. A
// DepthFrag broadcasts over rows or tokens, a float over everything.
#pragma once

#include "tile/mma/fragments.cuh"

namespace mirage::tile {

__device__ inline float2 to_floats(__half2 v) { return __half22float2(v); }
// Two instructions, where the library's function takes three.
__device__ inline float2 to_floats(__nv_bfloat162 v) {
  const auto both = reinterpret_cast<const uint32_t&>(v);
  return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}
__device__ inline float2 to_floats(float2 v) { return v; }

template <class T>
__device__ Pair<T> from_floats(float2 v) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float22half2_rn(v);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float22bfloat162_rn(v);
  } else {
    return v;
  }
}

template <class T>
__device__ T cast(float v) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(v);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(v);
  } else {
    return v;
  }
}

// An operand of a binary function at (line, chunk, pair).
template <Dims kDims, class T, int kLines, int kChunks>
__device__ Pair<T> pair_at(const Fragment<kDims, T, kLines, kChunks>& f, int i, int c, int p) {
  return f.at[kDims == Dims::kDepth ? 0 : i][c].pairs[p];
}
__device__ inline float2 pair_at(float v, int, int, int) { return make_float2(v, v); }

template <class Out, class Op, Dims kDims, class T, int kLines, int kChunks>
__device__ Fragment<kDims, Out, kLines, kChunks> map(const Fragment<kDims, T, kLines, kChunks>& a) {
  Fragment<kDims, Out, kLines, kChunks> result;
  unrolled<kLines, kChunks, kLaneDepth / 2>([&](int i, int c, int p) {
    const float2 v = to_floats(a.at[i][c].pairs[p]);
    result.at[i][c].pairs[p] = from_floats<Out>(make_float2(Op::of(v.x), Op::of(v.y)));
  });
  return result;
}

template <class Out, class Op, Dims kDims, class T, int kLines, int kChunks, class B>
__device__ Fragment<kDims, Out, kLines, kChunks> map(const Fragment<kDims, T, kLines, kChunks>& a,
                                                     const B& b) {
  Fragment<kDims, Out, kLines, kChunks> result;
  unrolled<kLines, kChunks, kLaneDepth / 2>([&](int i, int c, int p) {
    const auto va = pair_at(a, i, c, p);
    const auto vb = pair_at(b, i, c, p);
    if constexpr (Op::kPaired && std::is_same_v<Out, T> && !std::is_same_v<T, float> &&
                  std::is_same_v<decltype(va), decltype(vb)>) {
      result.at[i][c].pairs[p] = Op::of(va, vb);
    } else {
      const float2 fa = to_floats(va), fb = to_floats(vb);
      result.at[i][c].pairs[p] =
          from_floats<Out>(make_float2(Op::of(fa.x, fb.x), Op::of(fa.y, fb.y)));
    }
  });
  return result;
}

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
// numerator / (1 + e^-a). gelu_tanh(a) is a times the logistic function of 2 sqrt(2 / pi) (a +
// 0.044715 a^3). (64 tokens of 14336: gelu_tanh took 4.7 us with exact functions and takes 3.0,
// silu 3.3 and 3.0.)
__device__ inline float logistic(float numerator, float a) {
  return quotient(numerator, 1.0f + power_of_two(-1.44269504f * a));
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

// e^a - 1: for small numbers a polynomial, whose error is below a^6 / 720.
__device__ inline float exp_minus_one(float a) {
  float near = fmaf(a, 0.00833333333f, 0.0416666667f);
  near = fmaf(near, a, 0.166666667f);
  near = fmaf(near, a, 0.5f);
  near = fmaf(near * a, a, a);
  return fabsf(a) < 0.25f ? near : near_exp(a) - 1.0f;
}

// For small numbers a polynomial, whose error is below a^8 / 45.
__device__ inline float tanh_of(float a) {
  const float square = a * a;
  float near = fmaf(square, -0.0539682540f, 0.133333333f);
  near = fmaf(near, square, -0.333333333f);
  near = fmaf(near * square, a, a);
  const float far = 1.0f - 2.0f * reciprocal(1.0f + near_exp(2.0f * a));
  return square < 0.0625f ? near : far;
}

// One line per op: its meaning on fp32, and for some the instruction for two 2-byte values at a
// time.
#define MIRAGE_TILE_UNARY(name, Op, meaning)                \
  struct Op {                                               \
    __device__ static float of(float a) { return meaning; } \
  };                                                        \
  template <class Out, class Frag>                          \
  __device__ auto name(const Frag& a) {                     \
    return map<Out, Op>(a);                                 \
  }                                                         \
  __device__ inline float name(float a) { return Op::of(a); }

#define MIRAGE_TILE_BINARY(name, Op)                \
  template <class Out, class Frag, class B>         \
  __device__ auto name(const Frag& a, const B& b) { \
    return map<Out, Op>(a, b);                      \
  }                                                 \
  __device__ inline float name(float a, float b) { return Op::of(a, b); }

#define MIRAGE_TILE_PAIRED(name, Op, meaning, pair_meaning)          \
  struct Op {                                                        \
    static constexpr bool kPaired = true;                            \
    __device__ static float of(float a, float b) { return meaning; } \
    template <class P>                                               \
    __device__ static P of(P a, P b) {                               \
      return pair_meaning;                                           \
    }                                                                \
  };                                                                 \
  MIRAGE_TILE_BINARY(name, Op)

#define MIRAGE_TILE_UNPAIRED(name, Op, meaning)                      \
  struct Op {                                                        \
    static constexpr bool kPaired = false;                           \
    __device__ static float of(float a, float b) { return meaning; } \
  };                                                                 \
  MIRAGE_TILE_BINARY(name, Op)

MIRAGE_TILE_PAIRED(add, Add, a + b, __hadd2(a, b))
MIRAGE_TILE_PAIRED(sub, Sub, a - b, __hsub2(a, b))
MIRAGE_TILE_PAIRED(mul, Mul, (a * b), __hmul2(a, b))
MIRAGE_TILE_UNPAIRED(div, Div, quotient(a, b))
MIRAGE_TILE_UNPAIRED(maximum, Maximum, (a >= b || a != a ? a : b))  // nan wins, as in PyTorch
MIRAGE_TILE_UNARY(neg, Neg, -a)
MIRAGE_TILE_UNARY(exp, Exp, expf(a))
MIRAGE_TILE_UNARY(log, Log, logf(a))
MIRAGE_TILE_UNARY(sqrt, Sqrt, root(a))
MIRAGE_TILE_UNARY(rsqrt, Rsqrt, rsqrtf(a))
MIRAGE_TILE_UNARY(square, Square, (a * a))
MIRAGE_TILE_UNARY(sigmoid, Sigmoid, logistic(1.0f, a))
MIRAGE_TILE_UNARY(silu, Silu, logistic(a, a))
MIRAGE_TILE_UNARY(gelu, Gelu, gelu_of(a))
MIRAGE_TILE_UNARY(gelu_tanh, GeluTanh, logistic(a, a * (1.59576912f + 0.0713548163f * a * a)))
MIRAGE_TILE_UNARY(tanh, Tanh, tanh_of(a))
MIRAGE_TILE_UNARY(relu, Relu, a < 0.0f ? 0.0f : a)
MIRAGE_TILE_UNARY(magnitude, Magnitude, fabsf(a))
MIRAGE_TILE_UNARY(softplus, Softplus, softplus_of(a))
// tanh(log(1 + e^a)) = ((1 + e^a)^2 - 1) / ((1 + e^a)^2 + 1)
__device__ inline float tanh_of_softplus(float power) {
  const float square = power * (power + 2.0f);
  return quotient(square, square + 2.0f);
}
MIRAGE_TILE_UNARY(mish, Mish, a > 20.0f ? a : a * tanh_of_softplus(near_exp(a)))
MIRAGE_TILE_UNARY(elu, Elu, a > 0.0f ? a : exp_minus_one(a))

#undef MIRAGE_TILE_UNARY
#undef MIRAGE_TILE_BINARY
#undef MIRAGE_TILE_PAIRED
#undef MIRAGE_TILE_UNPAIRED

}  // namespace mirage::tile
