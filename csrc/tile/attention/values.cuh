// What attention holds in registers beside fragments, and elementwise functions over it.
//
// Of a warp's step of keys: Scores [L, rows], KeyVector [L]. Of a work item: RowVector [rows], and
// the same by lines, RowLines, where it meets a tile of queries. Keys take the M side of the tensor
// cores, query rows the N side, so lane 4 * g + t holds of tile (k, r) of 16 keys and 8 rows: keys
// 16 k + g and 16 k + g + 8, rows 8 r + 2 t and 8 r + 2 t + 1.
#pragma once

#include "tile/math/elementwise.cuh"

namespace mirage::tile {

template <class V, int kKeys, int kRows>
struct Scores {  // [..][2 * i + j] = key 16 k + g + 8 i, row 8 r + 2 t + j
  V at[kKeys / kRowTile][kRows / kTokenTile][4];
};

template <class V, int kKeys>
struct KeyVector {
  V at[kKeys / kRowTile][2];
};

template <class V, int kRows>
struct RowVector {
  V at[kRows / kTokenTile][2];
};

template <class V, int kRows>
struct RowLines {  // line 8 r + g, as a fragment of queries has its lines
  V at[kRows / kLineTile];
};

// By rows instead of lines: row 8 r + 2 t + j is line 2 t + j of the lanes.
template <class V, int kRows>
__device__ RowVector<V, kRows> by_rows(const RowLines<V, kRows>& lines) {
  RowVector<V, kRows> rows;
  unrolled<kRows / kTokenTile, 2>([&](int r, int j) {
    rows.at[r][j] = __shfl_sync(~0u, lines.at[r], (lane_quarter() * 2 + j) * 4);
  });
  return rows;
}

__host__ __device__ constexpr int largest(int a) { return a; }
template <class... More>
__host__ __device__ constexpr int largest(int a, More... more) {
  const int rest = largest(more...);
  return a > rest ? a : rest;
}

// What an operand adds to the result's dims; numbers add none.
template <int kKeys_, int kRows_, bool kLines_ = false>
struct SpansOf {
  static constexpr int kKeys = kKeys_, kRows = kRows_;
  static constexpr bool kLines = kLines_;
};
template <class V>
struct Spans : SpansOf<0, 0> {};
template <class V, int kKeys, int kRows>
struct Spans<Scores<V, kKeys, kRows>> : SpansOf<kKeys, kRows> {};
template <class V, int kKeys>
struct Spans<KeyVector<V, kKeys>> : SpansOf<kKeys, 0> {};
template <class V, int kRows>
struct Spans<RowVector<V, kRows>> : SpansOf<0, kRows> {};
template <class V, int kRows>
struct Spans<RowLines<V, kRows>> : SpansOf<0, kRows, true> {};

// The element of an operand at (k, r, i, j); what lacks a dim is the same along it.
template <class V, int kKeys, int kRows>
__device__ V element(const Scores<V, kKeys, kRows>& s, int k, int r, int i) {
  return s.at[k][r][i];
}
template <class V, int kKeys>
__device__ V element(const KeyVector<V, kKeys>& v, int k, int, int i) {
  return v.at[k][i / 2];
}
template <class V, int kRows>
__device__ V element(const RowVector<V, kRows>& v, int, int r, int i) {
  return v.at[r][i % 2];
}
template <class V>
__device__ V element(const V& number, int, int, int) {
  return number;
}

template <class V>
__device__ const V& aligned(const V& operand) {
  return operand;
}
template <class V, int kRows>
__device__ RowVector<V, kRows> aligned(const RowLines<V, kRows>& operand) {
  return by_rows(operand);
}

// The result of f over operands of any of these kinds.
template <class Out, class F, class... Operands>
__device__ auto each(F f, const Operands&... operands) {
  constexpr int kKeys = largest(Spans<Operands>::kKeys...);
  constexpr int kRows = largest(Spans<Operands>::kRows...);
  if constexpr (kKeys > 0 && kRows > 0) {
    Scores<Out, kKeys, kRows> result;
    unrolled<kKeys / kRowTile, kRows / kTokenTile, 4>(
        [&](int k, int r, int i) { result.at[k][r][i] = f(element(operands, k, r, i)...); });
    return result;
  } else if constexpr (kKeys > 0) {
    KeyVector<Out, kKeys> result;
    unrolled<kKeys / kRowTile, 2>(
        [&](int k, int i) { result.at[k][i] = f(element(operands, k, 0, 2 * i)...); });
    return result;
  } else if constexpr (kRows > 0) {
    RowVector<Out, kRows> result;
    unrolled<kRows / kTokenTile, 2>(
        [&](int r, int j) { result.at[r][j] = f(element(operands, 0, r, j)...); });
    return result;
  } else {
    return static_cast<Out>(f(operands...));
  }
}

// The same over lines, where nothing but lines and numbers meet.
template <class V>
__device__ V line_of(const V& number, int) {
  return number;
}
template <class V, int kRows>
__device__ V line_of(const RowLines<V, kRows>& lines, int r) {
  return lines.at[r];
}
template <class Out, class F, class... Operands>
__device__ auto each_line(F f, const Operands&... operands) {
  constexpr int kRows = largest(Spans<Operands>::kRows...);
  RowLines<Out, kRows> result;
  unrolled<kRows / kLineTile>([&](int r) { result.at[r] = f(line_of(operands, r)...); });
  return result;
}

template <class Out, class F, class... Operands>
__device__ auto over(F f, const Operands&... operands) {
  constexpr bool kLines = (Spans<Operands>::kLines || ...);
  constexpr bool kOthers =
      ((Spans<Operands>::kKeys > 0 || (Spans<Operands>::kRows > 0 && !Spans<Operands>::kLines)) ||
       ...);
  if constexpr (kLines && !kOthers) {
    return each_line<Out>(f, operands...);
  } else {
    return each<Out>(f, aligned(operands)...);
  }
}

__device__ inline float fast_log(float a) { return base_two_log(a) * 0.693147181f; }

// A root that is taken when it is used. What is divided by it takes one instruction instead of two,
// one after the other.
struct NearRoot {
  float square;
  __device__ operator float() const { return near_root(square); }
};
__device__ inline float reciprocal(NearRoot a) { return inverse_root(a.square); }

// What an op of the table does to numbers here.
template <class Op>
struct OnNumbers {
  template <class... V>
  __device__ static float of(V... v) {
    return Op::of(static_cast<float>(v)...);
  }
};
template <>
struct OnNumbers<Exp> {
  __device__ static float of(float a) { return near_exp(a); }
};
template <>
struct OnNumbers<Div> {  // relative error below 2^-21
  template <class V>
  __device__ static float of(float a, V b) {
    return a * reciprocal(b);
  }
};
template <>
struct OnNumbers<Sqrt> {
  __device__ static NearRoot of(float a) { return {a}; }
};
template <>
struct OnNumbers<Tanh> {  // absolute error below 2^-22, which is what soft caps need
  __device__ static float of(float a) { return 1.0f - __fdividef(2.0f, 1.0f + near_exp(2.0f * a)); }
};
#define MIRAGE_TILE_ON_NUMBERS(Op, sign)  \
  template <>                             \
  struct OnNumbers<Op> {                  \
    template <class A, class B>           \
    __device__ static auto of(A a, B b) { \
      return a sign b;                    \
    }                                     \
  };
MIRAGE_TILE_ON_NUMBERS(Add, +)
MIRAGE_TILE_ON_NUMBERS(Sub, -)
MIRAGE_TILE_ON_NUMBERS(Mul, *)

template <class V>
constexpr bool kIsFragment = false;
template <Dims kDims, class T, int kLines, int kChunks>
constexpr bool kIsFragment<Fragment<kDims, T, kLines, kChunks>> = true;

template <class Out, class Op, class A, std::enable_if_t<!kIsFragment<A>, int> = 0>
__device__ auto map(const A& a) {
  using Resident =
      std::conditional_t<std::is_same_v<Op, Sqrt> && std::is_same_v<Out, float>, NearRoot, Out>;
  return over<Resident>([](auto x) { return OnNumbers<Op>::of(x); }, a);
}

template <class Out, class Op, class A, class B, std::enable_if_t<!kIsFragment<A>, int> = 0>
__device__ auto map(const A& a, const B& b) {
  return over<Out>([](auto x, auto y) { return OnNumbers<Op>::of(x, y); }, a, b);
}

// Fragments take one value per line, too.
template <class V, int kRows>
__device__ float2 pair_at(const RowLines<V, kRows>& lines, int i, int, int) {
  return make_float2(lines.at[i], lines.at[i]);
}
template <class V, int kKeys>
__device__ float2 pair_at(const KeyVector<V, kKeys>& keys, int i, int, int) {
  return make_float2(keys.at[i / 2][i % 2], keys.at[i / 2][i % 2]);
}

// By a number per line: one division for all elements of it.
template <class Out, Dims kDims, class T, int kLines, int kChunks, class V, int kRows>
__device__ auto div(const Fragment<kDims, T, kLines, kChunks>& a, const RowLines<V, kRows>& b) {
  return mul<Out>(a, over<float>([](V x) { return reciprocal(x); }, b));
}

template <class A, class B>
__device__ auto less(const A& a, const B& b) {
  return over<bool>([](auto x, auto y) { return x < y; }, a, b);
}

template <class A, class B>
__device__ auto both(const A& a, const B& b) {
  return over<bool>([](bool x, bool y) { return x && y; }, a, b);
}

// Scores in a 2-byte type, two rows to a register: what the second product takes.
template <class T, int kKeys, int kRows>
struct PackedScores {
  Pair<T> at[kKeys / kRowTile][kRows / kTokenTile][2];
};

template <class T, int kKeys, int kRows>
__device__ PackedScores<T, kKeys, kRows> packed(const Scores<float, kKeys, kRows>& scores) {
  PackedScores<T, kKeys, kRows> result;
  unrolled<kKeys / kRowTile, kRows / kTokenTile, 2>([&](int k, int r, int i) {
    const float* pair = &scores.at[k][r][2 * i];
    result.at[k][r][i] = from_floats<T>(make_float2(pair[0], pair[1]));
  });
  return result;
}

// condition ? a : b, in the element type Out; 2-byte results are packed in pairs of rows.
template <class Out, class C, class A, class B>
__device__ auto where(const C& condition, const A& a, const B& b) {
  const auto chosen = over<float>(
      [](bool c, auto x, auto y) { return c ? static_cast<float>(x) : static_cast<float>(y); },
      condition, a, b);
  if constexpr (std::is_same_v<Out, float>) {
    return chosen;
  } else {
    return packed<Out>(chosen);
  }
}

}  // namespace mirage::tile
