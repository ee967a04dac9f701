// Stands in for the emitted kernels of rope_append: computes on the CPU what a launch describes.
#include <cmath>
#include <cstdio>

#include <torch/headeronly/util/Half.h>

#include "general_kernels.h"

namespace mirage {
namespace {

using Half = c10::Half;

struct Given {
  void* at;
  const int64_t* strides;

  template <class T, class... Index>
  T& of(Index... index) const {
    int64_t offset = 0, i = 0;
    ((offset += index * strides[i++]), ...);
    return static_cast<T*>(at)[offset];
  }
};

// An index tensor: its stride, then the bytes of a number.
int64_t row_of(const Given& numbers, int64_t token, int64_t rows) {
  const int64_t row =
      numbers.strides[1] == 8 ? numbers.of<int64_t>(token) : int64_t{numbers.of<int32_t>(token)};
  return row >= 0 && row < rows ? row : -1;
}

template <class Angle>
struct Launch {
  Given q[3], k[3], v, cos, sin, positions, slots, q_out[3], k_out[3], v_out;
  int64_t tokens, heads, pairs, rest, kv_heads, depth, rows, pages, page_size;

  Launch(void* const* tensors, const int64_t* strides, const int64_t* dims) {
    const auto next = [&](Given& given, int numbers) {
      given = {*tensors++, strides};
      strides += numbers;
    };
    for (Given& part : q) next(part, 3);
    for (Given& part : k) next(part, 3);
    next(v, 3), next(cos, 2), next(sin, 2), next(positions, 2), next(slots, 2);
    for (Given& part : q_out) next(part, 3);
    for (Given& part : k_out) next(part, 4);
    next(v_out, 4);
    for (int64_t* dim : {&tokens, &heads, &pairs, &rest, &kv_heads, &depth, &rows, &pages})
      *dim = *dims++;
    page_size = *dims;
  }

  // to(part, i): where element i of a part goes.
  template <class To>
  void turn(const Given* parts, int64_t token, int64_t head, To to) const {
    const int64_t row = row_of(positions, token, rows);
    for (int64_t i = 0; i < pairs; ++i) {
      const float a = parts[0].of<Half>(token, head, i), b = parts[1].of<Half>(token, head, i);
      const float c = row < 0 ? NAN : float(cos.of<Angle>(row, i));
      const float s = row < 0 ? NAN : float(sin.of<Angle>(row, i));
      to(0, i) = a * c - b * s;
      to(1, i) = b * c + a * s;
    }
    for (int64_t i = 0; i < rest; ++i) to(2, i) = parts[2].of<Half>(token, head, i);
  }

  void run() const {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t slot = row_of(slots, t, pages * page_size);
      for (int64_t h = 0; h < heads; ++h)
        turn(q, t, h, [&](int part, int64_t i) -> Half& { return q_out[part].of<Half>(t, h, i); });
      for (int64_t h = 0; slot >= 0 && h < kv_heads; ++h) {
        const int64_t page = slot / page_size, at = slot % page_size;
        turn(k, t, h, [&](int p, int64_t i) -> Half& { return k_out[p].of<Half>(page, at, h, i); });
        for (int64_t i = 0; i < depth; ++i) v_out.of<Half>(page, at, h, i) = v.of<Half>(t, h, i);
      }
    }
  }
};

template <class Angle>
int compute(void* const* tensors, const int64_t* strides, const int64_t* dims, const double*, char*,
            void*) {
  std::printf("%s, %d tokens\n", sizeof(Angle) == 4 ? "rope_append_fp32" : "rope_append",
              static_cast<int>(dims[0]));
  std::fflush(stdout);
  Launch<Angle>(tensors, strides, dims).run();
  return 0;
}

}  // namespace

const GeneralKernel kGeneralKernels[] = {
    {"rope_append", "fp16", compute<Half>, "rope_append/fp16"},
    {"rope_append_fp32", "fp16", compute<float>, "rope_append_fp32/fp16"},
};
const int kGeneralKernelCount = 2;

}  // namespace mirage
