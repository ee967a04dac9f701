// The kernel in front of gqa: norms the heads of queries and keys or not, rotates them, and writes
// keys and values to a paged cache.
//
// Written by hand, not found: it is the glue between ops that serving stacks need, and writes that
// are scattered by slots are no muGraph.
//
// A line [D] is one head of one token. Its threads hold two vectors each: those that rotate with
// each other, so that the rotation exchanges nothing, and only the norm's sums do. Arithmetic is
// fp32 and is rounded once, to what is stored.
#include "append/append.h"

#include <cstring>

#include "tile/grid.cuh"
#include "tile/math/elementwise.cuh"
#include "tile/sync/dependent_launch.cuh"

namespace mirage {
namespace {

using tile::Vec16;

constexpr int kVecElements = tile::kLaneDepth;
constexpr int kQuad =
    kVecElements / 2;  // angles are loaded by fours: those of one vector, interleaved
constexpr int kPair = 2 * kVecElements;  // elements of a thread
constexpr int kBlockThreads = 128;

// Threads of a line: a power of two, so that their sums are a butterfly.
template <int kDepth>
constexpr int kLineThreads = kDepth <= 64    ? 4
                             : kDepth <= 128 ? 8
                                             : 16;

// What a thread holds of a line: its vectors first and second, if it has any.
struct Share {
  int vectors[2];
  int first_angle[2];  // of the two fours of angles that turn them
  bool any;
};

template <int kDepth>
__device__ Share share_of(int thread, int rotated, bool interleaved) {
  constexpr int kPairs = kDepth / kPair;
  const int turned = interleaved ? kPairs : rotated / kPair;
  const bool apart = thread < turned;
  Share share{};
  share.any = thread < kPairs;
  share.vectors[0] = apart ? thread : 2 * thread;
  share.vectors[1] = apart ? thread + turned : 2 * thread + 1;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    share.first_angle[s] = kQuad * (interleaved ? share.vectors[s] : 2 * thread + s);
  }
  return share;
}

struct Elements {
  float at[2][kVecElements];
};

template <class T>
struct Raw {
  Vec16<T> at[2];
};

// A thread's vectors of a line; null without a line, or where it has none.
template <class Vec>
struct Own {
  Vec* at[2];
};

template <class Vec, class Void>
__device__ Own<Vec> own_of(Void* line, const Share& share) {
  Own<Vec> own{};
  if (line == nullptr || !share.any) return own;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    own.at[s] = tile::found_early(reinterpret_cast<Vec*>(line) + share.vectors[s]);
  }
  return own;
}

// Zeros where there is nothing to load.
template <class T>
__device__ Raw<T> load(const Own<const uint4>& own) {
  Raw<T> raw{};
  if (own.at[0] == nullptr) return raw;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const uint4 vec = *own.at[s];
    raw.at[s] = reinterpret_cast<const Vec16<T>&>(vec);
  }
  return raw;
}

template <class T>
__device__ void store(const Own<uint4>& own, const Raw<T>& raw) {
  if (own.at[0] == nullptr) return;
#pragma unroll
  for (int s = 0; s < 2; ++s) *own.at[s] = reinterpret_cast<const uint4&>(raw.at[s]);
}

template <class T>
__device__ Elements widened(const Raw<T>& raw) {
  Elements wide;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int p = 0; p < kVecElements / 2; ++p) {
      const float2 pair = tile::to_floats(raw.at[s].pairs[p]);
      wide.at[s][2 * p] = pair.x;
      wide.at[s][2 * p + 1] = pair.y;
    }
  }
  return wide;
}

template <class T>
__device__ Raw<T> rounded(const Elements& wide) {
  Raw<T> raw;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int p = 0; p < kVecElements / 2; ++p) {
      const float2 pair = make_float2(wide.at[s][2 * p], wide.at[s][2 * p + 1]);
      raw.at[s].pairs[p] = tile::from_floats<T>(pair);
    }
  }
  return raw;
}

// The same in all threads of a line; every lane of the warp comes here.
template <int kThreads>
__device__ float line_sum(float sum) {
#pragma unroll
  for (int lanes = kThreads / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  return sum;
}

// x -> (x - mean) / sqrt(variance + eps), or without the mean: RMS
template <int kDepth, HeadNorm kNorm>
__device__ void normalize(Elements& x, bool has_any, float eps) {
  constexpr int kThreads = kLineThreads<kDepth>;
  if constexpr (kNorm == HeadNorm::kLayer) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPair; ++i) sum += x.at[i / kVecElements][i % kVecElements];
    const float mean = line_sum<kThreads>(sum) / kDepth;
#pragma unroll
    for (int i = 0; i < kPair; ++i)
      x.at[i / kVecElements][i % kVecElements] -= has_any ? mean : 0.0f;
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPair; ++i) {
    const float element = x.at[i / kVecElements][i % kVecElements];
    squares = fmaf(element, element, squares);
  }
  const float inverse = rsqrtf(line_sum<kThreads>(squares) / kDepth + eps);
#pragma unroll
  for (int i = 0; i < kPair; ++i) x.at[i / kVecElements][i % kVecElements] *= inverse;
}

template <class T>
struct Affine {
  Raw<T> weight, bias;
};

template <class T>
__device__ Raw<T> load_head(const PerHead& heads, int head, const Share& share) {
  if (heads.at == nullptr) return {};
  const T* const line = static_cast<const T*>(heads.at) + head * heads.head;
  return load<T>(own_of<const uint4>(line, share));
}

// Of the head that a line is: of q, then of k. Lines of v have none, and RMS has no bias.
template <class T, HeadNorm kNorm>
__device__ Affine<T> load_affine(const AppendArgs& args, int line, const Share& share) {
  if (kNorm == HeadNorm::kNone || line >= args.Hq + args.Hkv) return {};
  const bool is_q = line < args.Hq;
  const int head = is_q ? line : line - args.Hq;
  Affine<T> affine{load_head<T>(is_q ? args.q_weight : args.k_weight, head, share), {}};
  if constexpr (kNorm == HeadNorm::kLayer) {
    affine.bias = load_head<T>(is_q ? args.q_bias : args.k_bias, head, share);
  }
  return affine;
}

template <class T>
__device__ void scale(Elements& x, const Affine<T>& affine, float weight_offset) {
  const Elements weight = widened(affine.weight), bias = widened(affine.bias);
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int i = 0; i < kVecElements; ++i) {
      x.at[s][i] = fmaf(x.at[s][i], weight.at[s][i] + weight_offset, bias.at[s][i]);
    }
  }
}

__device__ int64_t number_of(const PerToken& numbers, int token) {
  const int64_t at = token * numbers.step;
  return numbers.wide ? static_cast<const int64_t*>(numbers.at)[at]
                      : static_cast<const int32_t*>(numbers.at)[at];
}

struct Angles {
  float cos[2][kQuad], sin[2][kQuad];
};

template <class T>
__device__ void load_quad(float (&to)[kQuad], const AppendArgs& args, int64_t at) {
  if (args.float_angles) {
    const float4 quad =
        *reinterpret_cast<const float4*>(static_cast<const float*>(args.angles) + at);
    to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
    return;
  }
  const uint2 quad = *reinterpret_cast<const uint2*>(static_cast<const T*>(args.angles) + at);
  const float2 low = tile::to_floats(reinterpret_cast<const tile::Pair<T>&>(quad.x));
  const float2 high = tile::to_floats(reinterpret_cast<const tile::Pair<T>&>(quad.y));
  to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
}

// An angle of 0 for what is not rotated.
template <class T>
__device__ Angles load_angles(const AppendArgs& args, int64_t position, const Share& share) {
  Angles angles;
  const int sines = args.rotated / 2;
  const bool known = position >= 0 && position < args.positions_end;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const int first = share.first_angle[s];
    const bool turns = first < sines;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      angles.cos[s][i] = turns ? nanf("") : 1.0f;
      angles.sin[s][i] = 0.0f;
    }
    if (!turns || !known) continue;
    const int64_t row = position * args.angles_row;
    load_quad<T>(angles.cos[s], args, row + first);
    load_quad<T>(angles.sin[s], args, row + sines + first);
  }
  return angles;
}

__device__ void turn(float& a, float& b, float cos, float sin) {
  const float turned = a * cos - b * sin;
  b = b * cos + a * sin;
  a = turned;
}

__device__ void rotate(Elements& x, const Angles& angles, bool interleaved) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float cos = angles.cos[s][i], sin = angles.sin[s][i];
      if (interleaved) {
        turn(x.at[s][2 * i], x.at[s][2 * i + 1], cos, sin);
      } else {
        turn(x.at[0][kQuad * s + i], x.at[1][kQuad * s + i], cos, sin);
      }
    }
  }
}

// Where a line of k or v goes; null where the token is not to be written.
template <class T>
__device__ T* place_of(const AppendArgs& args, const WrittenCache& cache, int token, int head) {
  const int64_t slot = number_of(args.slots, token);
  if (slot < 0 || slot >= args.slots_end) return nullptr;
  const int page = static_cast<int>(slot) / args.page_size;
  const int offset = static_cast<int>(slot) - page * args.page_size;
  return static_cast<T*>(cache.at) + page * cache.page + offset * cache.token + head * cache.head;
}

template <class T, int kDepth, HeadNorm kNorm>
__global__ void __launch_bounds__(kBlockThreads) append(const __grid_constant__ AppendArgs args) {
  constexpr int kThreads = kLineThreads<kDepth>;
  constexpr int kLines = kBlockThreads / kThreads;
  const int token = blockIdx.x;
  const int line = blockIdx.y * kLines + static_cast<int>(threadIdx.x) / kThreads;
  const int keys = args.Hq, values = args.Hq + args.Hkv, lines = args.Hq + 2 * args.Hkv;
  Share share = share_of<kDepth>(threadIdx.x % kThreads, args.rotated, args.interleaved);
  share.any = share.any && line < lines;

  // The next kernel may read the cache early, so it starts when what came before has ended, or at
  // once where the caller says that this writes nothing of what is read then.
  if (args.constant_history) tile::launch_dependents();
  if (!args.constant_weights) tile::grid_dependency_wait();
  const Affine<T> affine = load_affine<T, kNorm>(args, line, share);
  const T* const from = static_cast<const T*>(args.qkv) + token * args.qkv_token + line * kDepth;
  const auto read = own_of<const uint4>(from, share);
  Raw<T> raw;
  const auto load_when_ready = [&] {
    tile::grid_dependency_wait();
    if (!args.constant_history) tile::launch_dependents();
    raw = load<T>(read);
  };
  if (!args.constant_history) load_when_ready();
  T* to = nullptr;
  if (line < keys) {
    to = static_cast<T*>(args.q) + (static_cast<int64_t>(token) * args.Hq + line) * kDepth;
  } else if (line < values) {
    to = place_of<T>(args, args.k, token, line - keys);
  } else if (line < lines) {
    to = place_of<T>(args, args.v, token, line - values);
  }
  auto written = own_of<uint4>(to, share);
  const Angles angles = load_angles<T>(args, number_of(args.positions, token), share);
  if (args.constant_history) load_when_ready();
  if (line >= values) {  // goes on without a place: its lanes are in the sums of others
    store(written, raw);
    written = {};
  }

  Elements x = widened(raw);
  if constexpr (kNorm != HeadNorm::kNone) {
    normalize<kDepth, kNorm>(x, share.any, args.eps);
    scale(x, affine, args.weight_offset);
  }
  rotate(x, angles, args.interleaved);
  store(written, rounded<T>(x));
}

template <class T, int kDepth>
cudaError_t launch(const AppendArgs& args, cudaStream_t stream) {
  constexpr int kLines = kBlockThreads / kLineThreads<kDepth>;
  const int lines = args.Hq + 2 * args.Hkv;
  const tile::Grid grid{args.tokens, tile::ceil_div(lines, kLines), kBlockThreads, 0};
  switch (args.norm) {
    case HeadNorm::kNone:
      return tile::launch(append<T, kDepth, HeadNorm::kNone>, grid, args, stream);
    case HeadNorm::kLayer:
      return tile::launch(append<T, kDepth, HeadNorm::kLayer>, grid, args, stream);
    default:
      return tile::launch(append<T, kDepth, HeadNorm::kRms>, grid, args, stream);
  }
}

template <class T>
AppendFn kernel_of(int64_t depth) {
  switch (depth) {
    case 64:
      return launch<T, 64>;
    case 96:
      return launch<T, 96>;
    case 128:
      return launch<T, 128>;
    case 192:
      return launch<T, 192>;
    case 256:
      return launch<T, 256>;
    default:
      return nullptr;
  }
}

}  // namespace

AppendFn find_append_kernel(const char* dtype, int64_t D) {
  return std::strcmp(dtype, "fp16") == 0 ? kernel_of<__half>(D) : kernel_of<__nv_bfloat16>(D);
}

}  // namespace mirage
