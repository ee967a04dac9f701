// Elementwise functions, named as in the op table, over fragments and over fp32 scalars.
//
// `mul<T>(a, b)` chooses the element type of its result. Products, sums and differences of 2-byte
// values are taken two at a time and rounded once; everything else is computed in fp32. A
// DepthFrag broadcasts over rows or tokens, a float over everything.
#pragma once

#include "tile/math/functions.cuh"
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

// One instruction; nan wins, as in PyTorch.
__device__ inline float larger(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// One line per op: its meaning on fp32, and for some the instruction for two 2-byte values at a
// time.
#define MIRAGE_TILE_OF_FRAGMENTS(name, Op, meaning)         \
  struct Op {                                               \
    __device__ static float of(float a) { return meaning; } \
  };                                                        \
  template <class Out, class Frag>                          \
  __device__ auto name(const Frag& a) {                     \
    return map<Out, Op>(a);                                 \
  }

#define MIRAGE_TILE_UNARY(name, Op, meaning)  \
  MIRAGE_TILE_OF_FRAGMENTS(name, Op, meaning) \
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
MIRAGE_TILE_UNPAIRED(maximum, Maximum, larger(a, b))
MIRAGE_TILE_UNPAIRED(greater, Greater, (a > b ? 1.0f : 0.0f))
MIRAGE_TILE_UNPAIRED(greater_equal, GreaterEqual, (a >= b ? 1.0f : 0.0f))
MIRAGE_TILE_UNPAIRED(masked, Masked, (a != 0.0f ? b : 0.0f))
MIRAGE_TILE_UNARY(neg, Neg, -a)
MIRAGE_TILE_UNARY(exp, Exp, expf(a))
MIRAGE_TILE_UNARY(log, Log, logf(a))
MIRAGE_TILE_UNARY(log1p, LogOnePlus, log1pf(a))
MIRAGE_TILE_OF_FRAGMENTS(sqrt, Sqrt, root(a))
MIRAGE_TILE_UNARY(rsqrt, Rsqrt, rsqrtf(a))
MIRAGE_TILE_UNARY(square, Square, (a * a))
MIRAGE_TILE_UNARY(sigmoid, Sigmoid, logistic(1.0f, a))
MIRAGE_TILE_UNARY(silu, Silu, logistic(a, a))
MIRAGE_TILE_UNARY(gelu, Gelu, gelu_of(a))
MIRAGE_TILE_UNARY(gelu_tanh, GeluTanh, logistic(a, a * (1.59576912f + 0.0713548163f * a * a)))
MIRAGE_TILE_UNARY(tanh, Tanh, tanh_of(a))
MIRAGE_TILE_UNARY(relu, Relu, larger(a, 0.0f))
MIRAGE_TILE_UNARY(magnitude, Magnitude, fabsf(a))
MIRAGE_TILE_UNARY(softplus, Softplus, softplus_of(a))
MIRAGE_TILE_UNARY(mish, Mish, mish_of(a))
MIRAGE_TILE_UNARY(sine, Sine, sinf(a))
MIRAGE_TILE_UNARY(cosine, Cosine, cosf(a))
MIRAGE_TILE_UNARY(elu, Elu, elu_of(a))
MIRAGE_TILE_UNARY(erf, Erf, erff(a))
MIRAGE_TILE_UNARY(whole_below, WholeBelow, floorf(a))
MIRAGE_TILE_UNARY(nearest_whole, NearestWhole, rintf(a))  // ties to even

// A square root. What is divided by it is multiplied by its reciprocal, which is no subnormal
// number: one serves all elements of a line, where each quotient takes six instructions more.
struct Root {
  float value;
  __device__ operator float() const { return value; }
};
__device__ inline Root sqrt(float a) { return {root(a)}; }
__device__ inline float div(float a, Root b) { return a * reciprocal(b.value); }
template <class Out, class Frag>
__device__ auto div(const Frag& a, Root b) {
  return mul<Out>(a, reciprocal(b.value));
}

#undef MIRAGE_TILE_UNARY
#undef MIRAGE_TILE_OF_FRAGMENTS
#undef MIRAGE_TILE_BINARY
#undef MIRAGE_TILE_PAIRED
#undef MIRAGE_TILE_UNPAIRED

}  // namespace mirage::tile
