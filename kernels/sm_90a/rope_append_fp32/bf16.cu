// mirage-kernels generate rope_append_fp32 --arch sm_90a --dtype bf16
// Schedule  general.
// Formula   [M, Hq, P] = the same, by cosines and sines in fp32
// Shape     Llama, Mistral, Qwen2, Phi-3: every model with rotary positions
// Proved    6 random draws over finite fields; a wrong muGraph passes with probability <= 2^-59.9.
// Expects   q_first [M, Hq, P], q_second [M, Hq, P], q_rest [M, Hq, S], k_first [M, Hkv, P],
//           k_second [M, Hkv, P], k_rest [M, Hkv, S], v [M, Hkv, D], cos [M, P], sin [M, P]: any
//           strides, fastest where rows are 16-byte aligned.
// Indexed   cos at the table_rows that positions [M] says, int; sin at the table_rows that
//           positions [M] says, int; result_3 at the pages that slots [M] says, int, in pages of
//           page_size; result_4 at the pages that slots [M] says, int, in pages of page_size;
//           result_5 at the pages that slots [M] says, int, in pages of page_size; result_6 at the
//           pages that slots [M] says, int, in pages of page_size. One out of range: NaN, nothing
//           written.

// clang-format off

#include "general/each.cuh"

namespace mirage::generated {
namespace {

struct rope_append_fp32_0_any_args {
  const __nv_bfloat16* q_first_tile_in;
  int64_t q_first_tile_in_strides[3];
  const __nv_bfloat16* q_second_tile_in;
  int64_t q_second_tile_in_strides[3];
  const float* cos_tile_in;
  int64_t cos_tile_in_strides[2];
  const float* sin_tile_in;
  int64_t sin_tile_in_strides[2];
  __nv_bfloat16* out_stored;
  int64_t out_stored_strides[3];
  __nv_bfloat16* q_turned_stored;
  int64_t q_turned_stored_strides[3];
  const void* positions_index;
  int64_t positions_index_strides[1];
  int positions_index_bytes;
  int M;
  int Hq;
  int P;
  int table_rows;
};

template <bool kAligned>
__device__ __forceinline__ void rope_append_fp32_0_any(const rope_append_fp32_0_any_args& args, int
                                                       first) {
  using namespace general;
  extern __shared__ __align__(16) char shared[];
  [[maybe_unused]] auto* scratch = reinterpret_cast<float*>(shared + 0);
  [[maybe_unused]] int block = first;
  [[maybe_unused]] const int x_index = block % ((args.P + 32 - 1) / 32);
  block /= ((args.P + 32 - 1) / 32);
  [[maybe_unused]] const int y_index = block % ((args.Hq + 4 - 1) / 4);
  block /= ((args.Hq + 4 - 1) / 4);
  [[maybe_unused]] const int z_index = block;
  if (z_index >= ((args.M + 8 - 1) / 8)) return;
  tile::grid_dependency_wait();
  tile::launch_dependents();
  {
    struct Taken {
      Vector<__nv_bfloat16, 8> q_first_tile;
      Vector<float, 8> cos_tile;
      Vector<__nv_bfloat16, 8> q_second_tile;
      Vector<float, 8> sin_tile;
    };
    each_taken<Taken, 64, 128, 1>([&]([[maybe_unused]] int i, Taken& taken) {
      [[maybe_unused]] const int P_at = (i % 4) * 8;
      [[maybe_unused]] const int Hq_at = i / 4 % 4;
      [[maybe_unused]] const int M_at = i / 16;
      const int64_t positions_index_row =
          row_of<false>(args.positions_index, (z_index * 8 + M_at) *
                        args.positions_index_strides[0], args.positions_index_bytes, z_index * 8 +
                        M_at < args.M, args.table_rows);
      {
        const int64_t stride = kAligned ? 1 : args.q_first_tile_in_strides[2];
        const auto* from =
            args.q_first_tile_in + along<kAligned>(z_index * 8 + M_at,
                                                   args.q_first_tile_in_strides[0]) +
                                                   along<kAligned>(y_index * 4 + Hq_at,
                                                   args.q_first_tile_in_strides[1]) +
                                                   along<kAligned>(x_index * 32 + P_at, (kAligned ?
                                                   1 : args.q_first_tile_in_strides[2]));
        const int left = z_index * 8 + M_at < args.M && y_index * 4 + Hq_at < args.Hq ? args.P -
            (x_index * 32 + P_at) : 0;
        taken.q_first_tile = read_within<8, kAligned>(from, stride, left);
      }
      {
        const int64_t stride = kAligned ? 1 : args.q_second_tile_in_strides[2];
        const auto* from =
            args.q_second_tile_in + along<kAligned>(z_index * 8 + M_at,
                                                    args.q_second_tile_in_strides[0]) +
                                                    along<kAligned>(y_index * 4 + Hq_at,
                                                    args.q_second_tile_in_strides[1]) +
                                                    along<kAligned>(x_index * 32 + P_at, (kAligned ?
                                                    1 : args.q_second_tile_in_strides[2]));
        const int left = z_index * 8 + M_at < args.M && y_index * 4 + Hq_at < args.Hq ? args.P -
            (x_index * 32 + P_at) : 0;
        taken.q_second_tile = read_within<8, kAligned>(from, stride, left);
      }
      {
        const int64_t stride = kAligned ? 1 : args.cos_tile_in_strides[1];
        const int64_t row = positions_index_row;
        const auto* from =
            args.cos_tile_in + along<kAligned>(x_index * 32 + P_at, (kAligned ? 1 :
                                               args.cos_tile_in_strides[1])) + (row < 0 ? 0 : row *
                                               args.cos_tile_in_strides[0]);
        const int left =
            row >= 0 && z_index * 8 + M_at < args.M ? args.P - (x_index * 32 + P_at) : 0;
        taken.cos_tile = or_nan(read_within<8, kAligned>(from, stride, left), row);
      }
      {
        const int64_t stride = kAligned ? 1 : args.sin_tile_in_strides[1];
        const int64_t row = positions_index_row;
        const auto* from =
            args.sin_tile_in + along<kAligned>(x_index * 32 + P_at, (kAligned ? 1 :
                                               args.sin_tile_in_strides[1])) + (row < 0 ? 0 : row *
                                               args.sin_tile_in_strides[0]);
        const int left =
            row >= 0 && z_index * 8 + M_at < args.M ? args.P - (x_index * 32 + P_at) : 0;
        taken.sin_tile = or_nan(read_within<8, kAligned>(from, stride, left), row);
      }
    },
    [&]([[maybe_unused]] int i, const Taken& taken) {
      [[maybe_unused]] const int P_at = (i % 4) * 8;
      [[maybe_unused]] const int Hq_at = i / 4 % 4;
      [[maybe_unused]] const int M_at = i / 16;
      float scaled_q_first_minus_scaled_q_second_made[8];
      float q_turned_tile_made[8];
      for (int e = 0; e < 8; ++e) {
        const float scaled_q_first_v =
            tile::mul(wide(taken.q_first_tile, e), wide(taken.cos_tile, e));
        const float scaled_q_second_v =
            tile::mul(wide(taken.q_second_tile, e), wide(taken.sin_tile, e));
        const float scaled_q_first_minus_scaled_q_second_v =
            tile::sub(scaled_q_first_v, scaled_q_second_v);
        const float scaled_q_second_2_v =
            tile::mul(wide(taken.q_second_tile, e), wide(taken.cos_tile, e));
        const float scaled_q_first_2_v =
            tile::mul(wide(taken.q_first_tile, e), wide(taken.sin_tile, e));
        const float q_turned_tile_v = tile::add(scaled_q_second_2_v, scaled_q_first_2_v);
        scaled_q_first_minus_scaled_q_second_made[e] = scaled_q_first_minus_scaled_q_second_v;
        q_turned_tile_made[e] = q_turned_tile_v;
      }
      {
        const int64_t stride = kAligned ? 1 : args.out_stored_strides[2];
        auto* to =
            args.out_stored + along<kAligned>(z_index * 8 + M_at, args.out_stored_strides[0]) +
                                              along<kAligned>(y_index * 4 + Hq_at,
                                              args.out_stored_strides[1]) + along<kAligned>(x_index
                                              * 32 + P_at, (kAligned ? 1 :
                                              args.out_stored_strides[2]));
        const int left = z_index * 8 + M_at < args.M && y_index * 4 + Hq_at < args.Hq ? args.P -
            (x_index * 32 + P_at) : 0;
        write_within<8, kAligned>(to, stride, left, scaled_q_first_minus_scaled_q_second_made);
      }
      {
        const int64_t stride = kAligned ? 1 : args.q_turned_stored_strides[2];
        auto* to =
            args.q_turned_stored + along<kAligned>(z_index * 8 + M_at,
                                                   args.q_turned_stored_strides[0]) +
                                                   along<kAligned>(y_index * 4 + Hq_at,
                                                   args.q_turned_stored_strides[1]) +
                                                   along<kAligned>(x_index * 32 + P_at, (kAligned ?
                                                   1 : args.q_turned_stored_strides[2]));
        const int left = z_index * 8 + M_at < args.M && y_index * 4 + Hq_at < args.Hq ? args.P -
            (x_index * 32 + P_at) : 0;
        write_within<8, kAligned>(to, stride, left, q_turned_tile_made);
      }
    });
  }
}

inline int64_t blocks_rope_append_fp32_0_any(const rope_append_fp32_0_any_args& args) {
  return int64_t(((args.P + 32 - 1) / 32)) * int64_t(((args.Hq + 4 - 1) / 4)) * int64_t(((args.M + 8
                 - 1) / 8));
}

struct rope_append_fp32_1_any_args {
  const __nv_bfloat16* q_rest_tile_in;
  int64_t q_rest_tile_in_strides[3];
  __nv_bfloat16* out_stored;
  int64_t out_stored_strides[3];
  int M;
  int Hq;
  int S;
};

template <bool kAligned>
__device__ __forceinline__ void rope_append_fp32_1_any(const rope_append_fp32_1_any_args& args, int
                                                       first) {
  using namespace general;
  extern __shared__ __align__(16) char shared[];
  [[maybe_unused]] auto* scratch = reinterpret_cast<float*>(shared + 0);
  [[maybe_unused]] int block = first;
  [[maybe_unused]] const int x_index = block % ((args.S + 32 - 1) / 32);
  block /= ((args.S + 32 - 1) / 32);
  [[maybe_unused]] const int y_index = block % ((args.Hq + 4 - 1) / 4);
  block /= ((args.Hq + 4 - 1) / 4);
  [[maybe_unused]] const int z_index = block;
  if (z_index >= ((args.M + 8 - 1) / 8)) return;
  tile::grid_dependency_wait();
  tile::launch_dependents();
  {
    struct Taken {
      Vector<__nv_bfloat16, 8> q_rest_tile;
    };
    each_taken<Taken, 64, 128, 4>([&]([[maybe_unused]] int i, Taken& taken) {
      [[maybe_unused]] const int S_at = (i % 4) * 8;
      [[maybe_unused]] const int Hq_at = i / 4 % 4;
      [[maybe_unused]] const int M_at = i / 16;
      {
        const int64_t stride = kAligned ? 1 : args.q_rest_tile_in_strides[2];
        const auto* from =
            args.q_rest_tile_in + along<kAligned>(z_index * 8 + M_at,
                                                  args.q_rest_tile_in_strides[0]) +
                                                  along<kAligned>(y_index * 4 + Hq_at,
                                                  args.q_rest_tile_in_strides[1]) +
                                                  along<kAligned>(x_index * 32 + S_at, (kAligned ? 1
                                                  : args.q_rest_tile_in_strides[2]));
        const int left = z_index * 8 + M_at < args.M && y_index * 4 + Hq_at < args.Hq ? args.S -
            (x_index * 32 + S_at) : 0;
        taken.q_rest_tile = read_within<8, kAligned>(from, stride, left);
      }
    },
    [&]([[maybe_unused]] int i, const Taken& taken) {
      [[maybe_unused]] const int S_at = (i % 4) * 8;
      [[maybe_unused]] const int Hq_at = i / 4 % 4;
      [[maybe_unused]] const int M_at = i / 16;
      float scaled_q_rest_made[8];
      for (int e = 0; e < 8; ++e) {
        const float scaled_q_rest_v = tile::mul(1.0f, wide(taken.q_rest_tile, e));
        scaled_q_rest_made[e] = scaled_q_rest_v;
      }
      const int64_t stride = kAligned ? 1 : args.out_stored_strides[2];
      auto* to =
          args.out_stored + along<kAligned>(z_index * 8 + M_at, args.out_stored_strides[0]) +
                                            along<kAligned>(y_index * 4 + Hq_at,
                                            args.out_stored_strides[1]) + along<kAligned>(x_index *
                                            32 + S_at, (kAligned ? 1 : args.out_stored_strides[2]));
      const int left = z_index * 8 + M_at < args.M && y_index * 4 + Hq_at < args.Hq ? args.S -
          (x_index * 32 + S_at) : 0;
      write_within<8, kAligned>(to, stride, left, scaled_q_rest_made);
    });
  }
}

inline int64_t blocks_rope_append_fp32_1_any(const rope_append_fp32_1_any_args& args) {
  return int64_t(((args.S + 32 - 1) / 32)) * int64_t(((args.Hq + 4 - 1) / 4)) * int64_t(((args.M + 8
                 - 1) / 8));
}

struct rope_append_fp32_2_any_args {
  const __nv_bfloat16* k_first_tile_in;
  int64_t k_first_tile_in_strides[3];
  const __nv_bfloat16* k_second_tile_in;
  int64_t k_second_tile_in_strides[3];
  const float* cos_tile_in;
  int64_t cos_tile_in_strides[2];
  const float* sin_tile_in;
  int64_t sin_tile_in_strides[2];
  __nv_bfloat16* out_stored;
  int64_t out_stored_strides[4];
  __nv_bfloat16* k_turned_stored;
  int64_t k_turned_stored_strides[4];
  const void* positions_index;
  int64_t positions_index_strides[1];
  int positions_index_bytes;
  const void* slots_index;
  int64_t slots_index_strides[1];
  int slots_index_bytes;
  int M;
  int Hkv;
  int P;
  int table_rows;
  int pages;
  int page_size;
};

template <bool kAligned>
__device__ __forceinline__ void rope_append_fp32_2_any(const rope_append_fp32_2_any_args& args, int
                                                       first) {
  using namespace general;
  extern __shared__ __align__(16) char shared[];
  [[maybe_unused]] auto* scratch = reinterpret_cast<float*>(shared + 0);
  [[maybe_unused]] int block = first;
  [[maybe_unused]] const int x_index = block % ((args.P + 32 - 1) / 32);
  block /= ((args.P + 32 - 1) / 32);
  [[maybe_unused]] const int y_index = block % ((args.Hkv + 2 - 1) / 2);
  block /= ((args.Hkv + 2 - 1) / 2);
  [[maybe_unused]] const int z_index = block;
  if (z_index >= ((args.M + 8 - 1) / 8)) return;
  tile::grid_dependency_wait();
  tile::launch_dependents();
  {
    struct Taken {
      Vector<__nv_bfloat16, 8> k_first_tile;
      Vector<float, 8> cos_tile;
      Vector<__nv_bfloat16, 8> k_second_tile;
      Vector<float, 8> sin_tile;
      int64_t out_stored_row;
      int64_t k_turned_stored_row;
    };
    each_taken<Taken, 64, 64, 1>([&]([[maybe_unused]] int i, Taken& taken) {
      [[maybe_unused]] const int P_at = (i % 4) * 8;
      [[maybe_unused]] const int Hkv_at = i / 4 % 2;
      [[maybe_unused]] const int M_at = i / 8;
      const int64_t positions_index_row =
          row_of<false>(args.positions_index, (z_index * 8 + M_at) *
                        args.positions_index_strides[0], args.positions_index_bytes, z_index * 8 +
                        M_at < args.M, args.table_rows);
      const int64_t slots_index_row =
          row_of<false>(args.slots_index, (z_index * 8 + M_at) * args.slots_index_strides[0],
                        args.slots_index_bytes, z_index * 8 + M_at < args.M, int64_t(args.pages) *
                        int64_t(args.page_size));
      {
        const int64_t stride = kAligned ? 1 : args.k_first_tile_in_strides[2];
        const auto* from =
            args.k_first_tile_in + along<kAligned>(z_index * 8 + M_at,
                                                   args.k_first_tile_in_strides[0]) +
                                                   along<kAligned>(y_index * 2 + Hkv_at,
                                                   args.k_first_tile_in_strides[1]) +
                                                   along<kAligned>(x_index * 32 + P_at, (kAligned ?
                                                   1 : args.k_first_tile_in_strides[2]));
        const int left = z_index * 8 + M_at < args.M && y_index * 2 + Hkv_at < args.Hkv ? args.P
            - (x_index * 32 + P_at) : 0;
        taken.k_first_tile = read_within<8, kAligned>(from, stride, left);
      }
      {
        const int64_t stride = kAligned ? 1 : args.k_second_tile_in_strides[2];
        const auto* from =
            args.k_second_tile_in + along<kAligned>(z_index * 8 + M_at,
                                                    args.k_second_tile_in_strides[0]) +
                                                    along<kAligned>(y_index * 2 + Hkv_at,
                                                    args.k_second_tile_in_strides[1]) +
                                                    along<kAligned>(x_index * 32 + P_at, (kAligned ?
                                                    1 : args.k_second_tile_in_strides[2]));
        const int left = z_index * 8 + M_at < args.M && y_index * 2 + Hkv_at < args.Hkv ? args.P
            - (x_index * 32 + P_at) : 0;
        taken.k_second_tile = read_within<8, kAligned>(from, stride, left);
      }
      {
        const int64_t stride = kAligned ? 1 : args.cos_tile_in_strides[1];
        const int64_t row = positions_index_row;
        const auto* from =
            args.cos_tile_in + along<kAligned>(x_index * 32 + P_at, (kAligned ? 1 :
                                               args.cos_tile_in_strides[1])) + (row < 0 ? 0 : row *
                                               args.cos_tile_in_strides[0]);
        const int left =
            row >= 0 && z_index * 8 + M_at < args.M ? args.P - (x_index * 32 + P_at) : 0;
        taken.cos_tile = or_nan(read_within<8, kAligned>(from, stride, left), row);
      }
      {
        const int64_t stride = kAligned ? 1 : args.sin_tile_in_strides[1];
        const int64_t row = positions_index_row;
        const auto* from =
            args.sin_tile_in + along<kAligned>(x_index * 32 + P_at, (kAligned ? 1 :
                                               args.sin_tile_in_strides[1])) + (row < 0 ? 0 : row *
                                               args.sin_tile_in_strides[0]);
        const int left =
            row >= 0 && z_index * 8 + M_at < args.M ? args.P - (x_index * 32 + P_at) : 0;
        taken.sin_tile = or_nan(read_within<8, kAligned>(from, stride, left), row);
      }
      taken.out_stored_row = slots_index_row;
      taken.k_turned_stored_row = slots_index_row;
    },
    [&]([[maybe_unused]] int i, const Taken& taken) {
      [[maybe_unused]] const int P_at = (i % 4) * 8;
      [[maybe_unused]] const int Hkv_at = i / 4 % 2;
      [[maybe_unused]] const int M_at = i / 8;
      float scaled_k_first_minus_scaled_k_second_made[8];
      float k_turned_tile_made[8];
      for (int e = 0; e < 8; ++e) {
        const float scaled_k_first_v =
            tile::mul(wide(taken.k_first_tile, e), wide(taken.cos_tile, e));
        const float scaled_k_second_v =
            tile::mul(wide(taken.k_second_tile, e), wide(taken.sin_tile, e));
        const float scaled_k_first_minus_scaled_k_second_v =
            tile::sub(scaled_k_first_v, scaled_k_second_v);
        const float scaled_k_second_2_v =
            tile::mul(wide(taken.k_second_tile, e), wide(taken.cos_tile, e));
        const float scaled_k_first_2_v =
            tile::mul(wide(taken.k_first_tile, e), wide(taken.sin_tile, e));
        const float k_turned_tile_v = tile::add(scaled_k_second_2_v, scaled_k_first_2_v);
        scaled_k_first_minus_scaled_k_second_made[e] = scaled_k_first_minus_scaled_k_second_v;
        k_turned_tile_made[e] = k_turned_tile_v;
      }
      {
        const int64_t stride = kAligned ? 1 : args.out_stored_strides[3];
        const int64_t row = taken.out_stored_row;
        auto* to =
            args.out_stored + along<kAligned>(y_index * 2 + Hkv_at, args.out_stored_strides[2]) +
                                              along<kAligned>(x_index * 32 + P_at, (kAligned ? 1 :
                                              args.out_stored_strides[3])) + (row < 0 ? 0 :
                                              in_pages(row, args.page_size,
                                              args.out_stored_strides[0],
                                              args.out_stored_strides[1]));
        const int left = row >= 0 && z_index * 8 + M_at < args.M && y_index * 2 + Hkv_at <
            args.Hkv ? args.P - (x_index * 32 + P_at) : 0;
        write_within<8, kAligned>(to, stride, left, scaled_k_first_minus_scaled_k_second_made);
      }
      {
        const int64_t stride = kAligned ? 1 : args.k_turned_stored_strides[3];
        const int64_t row = taken.k_turned_stored_row;
        auto* to =
            args.k_turned_stored + along<kAligned>(y_index * 2 + Hkv_at,
                                                   args.k_turned_stored_strides[2]) +
                                                   along<kAligned>(x_index * 32 + P_at, (kAligned ?
                                                   1 : args.k_turned_stored_strides[3])) + (row < 0
                                                   ? 0 : in_pages(row, args.page_size,
                                                   args.k_turned_stored_strides[0],
                                                   args.k_turned_stored_strides[1]));
        const int left = row >= 0 && z_index * 8 + M_at < args.M && y_index * 2 + Hkv_at <
            args.Hkv ? args.P - (x_index * 32 + P_at) : 0;
        write_within<8, kAligned>(to, stride, left, k_turned_tile_made);
      }
    });
  }
}

inline int64_t blocks_rope_append_fp32_2_any(const rope_append_fp32_2_any_args& args) {
  return int64_t(((args.P + 32 - 1) / 32)) * int64_t(((args.Hkv + 2 - 1) / 2)) * int64_t(((args.M +
                 8 - 1) / 8));
}

struct rope_append_fp32_3_any_args {
  const __nv_bfloat16* k_rest_tile_in;
  int64_t k_rest_tile_in_strides[3];
  __nv_bfloat16* out_stored;
  int64_t out_stored_strides[4];
  const void* slots_index;
  int64_t slots_index_strides[1];
  int slots_index_bytes;
  int M;
  int Hkv;
  int S;
  int pages;
  int page_size;
};

template <bool kAligned>
__device__ __forceinline__ void rope_append_fp32_3_any(const rope_append_fp32_3_any_args& args, int
                                                       first) {
  using namespace general;
  extern __shared__ __align__(16) char shared[];
  [[maybe_unused]] auto* scratch = reinterpret_cast<float*>(shared + 0);
  [[maybe_unused]] int block = first;
  [[maybe_unused]] const int x_index = block % ((args.S + 32 - 1) / 32);
  block /= ((args.S + 32 - 1) / 32);
  [[maybe_unused]] const int y_index = block % ((args.Hkv + 2 - 1) / 2);
  block /= ((args.Hkv + 2 - 1) / 2);
  [[maybe_unused]] const int z_index = block;
  if (z_index >= ((args.M + 8 - 1) / 8)) return;
  tile::grid_dependency_wait();
  tile::launch_dependents();
  {
    struct Taken {
      Vector<__nv_bfloat16, 8> k_rest_tile;
      int64_t out_stored_row;
    };
    each_taken<Taken, 64, 64, 4>([&]([[maybe_unused]] int i, Taken& taken) {
      [[maybe_unused]] const int S_at = (i % 4) * 8;
      [[maybe_unused]] const int Hkv_at = i / 4 % 2;
      [[maybe_unused]] const int M_at = i / 8;
      const int64_t slots_index_row =
          row_of<false>(args.slots_index, (z_index * 8 + M_at) * args.slots_index_strides[0],
                        args.slots_index_bytes, z_index * 8 + M_at < args.M, int64_t(args.pages) *
                        int64_t(args.page_size));
      {
        const int64_t stride = kAligned ? 1 : args.k_rest_tile_in_strides[2];
        const auto* from =
            args.k_rest_tile_in + along<kAligned>(z_index * 8 + M_at,
                                                  args.k_rest_tile_in_strides[0]) +
                                                  along<kAligned>(y_index * 2 + Hkv_at,
                                                  args.k_rest_tile_in_strides[1]) +
                                                  along<kAligned>(x_index * 32 + S_at, (kAligned ? 1
                                                  : args.k_rest_tile_in_strides[2]));
        const int left = z_index * 8 + M_at < args.M && y_index * 2 + Hkv_at < args.Hkv ? args.S
            - (x_index * 32 + S_at) : 0;
        taken.k_rest_tile = read_within<8, kAligned>(from, stride, left);
      }
      taken.out_stored_row = slots_index_row;
    },
    [&]([[maybe_unused]] int i, const Taken& taken) {
      [[maybe_unused]] const int S_at = (i % 4) * 8;
      [[maybe_unused]] const int Hkv_at = i / 4 % 2;
      [[maybe_unused]] const int M_at = i / 8;
      float scaled_k_rest_made[8];
      for (int e = 0; e < 8; ++e) {
        const float scaled_k_rest_v = tile::mul(1.0f, wide(taken.k_rest_tile, e));
        scaled_k_rest_made[e] = scaled_k_rest_v;
      }
      const int64_t stride = kAligned ? 1 : args.out_stored_strides[3];
      const int64_t row = taken.out_stored_row;
      auto* to =
          args.out_stored + along<kAligned>(y_index * 2 + Hkv_at, args.out_stored_strides[2]) +
                                            along<kAligned>(x_index * 32 + S_at, (kAligned ? 1 :
                                            args.out_stored_strides[3])) + (row < 0 ? 0 :
                                            in_pages(row, args.page_size,
                                            args.out_stored_strides[0],
                                            args.out_stored_strides[1]));
      const int left = row >= 0 && z_index * 8 + M_at < args.M && y_index * 2 + Hkv_at <
          args.Hkv ? args.S - (x_index * 32 + S_at) : 0;
      write_within<8, kAligned>(to, stride, left, scaled_k_rest_made);
    });
  }
}

inline int64_t blocks_rope_append_fp32_3_any(const rope_append_fp32_3_any_args& args) {
  return int64_t(((args.S + 32 - 1) / 32)) * int64_t(((args.Hkv + 2 - 1) / 2)) * int64_t(((args.M +
                 8 - 1) / 8));
}

struct rope_append_fp32_4_any_args {
  const __nv_bfloat16* v_tile_in;
  int64_t v_tile_in_strides[3];
  __nv_bfloat16* out_stored;
  int64_t out_stored_strides[4];
  const void* slots_index;
  int64_t slots_index_strides[1];
  int slots_index_bytes;
  int M;
  int Hkv;
  int D;
  int pages;
  int page_size;
};

template <bool kAligned>
__device__ __forceinline__ void rope_append_fp32_4_any(const rope_append_fp32_4_any_args& args, int
                                                       first) {
  using namespace general;
  extern __shared__ __align__(16) char shared[];
  [[maybe_unused]] auto* scratch = reinterpret_cast<float*>(shared + 0);
  [[maybe_unused]] int block = first;
  [[maybe_unused]] const int x_index = block % ((args.D + 64 - 1) / 64);
  block /= ((args.D + 64 - 1) / 64);
  [[maybe_unused]] const int y_index = block % ((args.Hkv + 2 - 1) / 2);
  block /= ((args.Hkv + 2 - 1) / 2);
  [[maybe_unused]] const int z_index = block;
  if (z_index >= ((args.M + 8 - 1) / 8)) return;
  tile::grid_dependency_wait();
  tile::launch_dependents();
  {
    struct Taken {
      Vector<__nv_bfloat16, 8> v_tile;
      int64_t out_stored_row;
    };
    each_taken<Taken, 64, 128, 4>([&]([[maybe_unused]] int i, Taken& taken) {
      [[maybe_unused]] const int D_at = (i % 8) * 8;
      [[maybe_unused]] const int Hkv_at = i / 8 % 2;
      [[maybe_unused]] const int M_at = i / 16;
      const int64_t slots_index_row =
          row_of<false>(args.slots_index, (z_index * 8 + M_at) * args.slots_index_strides[0],
                        args.slots_index_bytes, z_index * 8 + M_at < args.M, int64_t(args.pages) *
                        int64_t(args.page_size));
      {
        const int64_t stride = kAligned ? 1 : args.v_tile_in_strides[2];
        const auto* from =
            args.v_tile_in + along<kAligned>(z_index * 8 + M_at, args.v_tile_in_strides[0]) +
                                             along<kAligned>(y_index * 2 + Hkv_at,
                                             args.v_tile_in_strides[1]) + along<kAligned>(x_index *
                                             64 + D_at, (kAligned ? 1 : args.v_tile_in_strides[2]));
        const int left = z_index * 8 + M_at < args.M && y_index * 2 + Hkv_at < args.Hkv ? args.D
            - (x_index * 64 + D_at) : 0;
        taken.v_tile = read_within<8, kAligned>(from, stride, left);
      }
      taken.out_stored_row = slots_index_row;
    },
    [&]([[maybe_unused]] int i, const Taken& taken) {
      [[maybe_unused]] const int D_at = (i % 8) * 8;
      [[maybe_unused]] const int Hkv_at = i / 8 % 2;
      [[maybe_unused]] const int M_at = i / 16;
      float scaled_v_made[8];
      for (int e = 0; e < 8; ++e) {
        const float scaled_v_v = tile::mul(1.0f, wide(taken.v_tile, e));
        scaled_v_made[e] = scaled_v_v;
      }
      const int64_t stride = kAligned ? 1 : args.out_stored_strides[3];
      const int64_t row = taken.out_stored_row;
      auto* to =
          args.out_stored + along<kAligned>(y_index * 2 + Hkv_at, args.out_stored_strides[2]) +
                                            along<kAligned>(x_index * 64 + D_at, (kAligned ? 1 :
                                            args.out_stored_strides[3])) + (row < 0 ? 0 :
                                            in_pages(row, args.page_size,
                                            args.out_stored_strides[0],
                                            args.out_stored_strides[1]));
      const int left = row >= 0 && z_index * 8 + M_at < args.M && y_index * 2 + Hkv_at <
          args.Hkv ? args.D - (x_index * 64 + D_at) : 0;
      write_within<8, kAligned>(to, stride, left, scaled_v_made);
    });
  }
}

inline int64_t blocks_rope_append_fp32_4_any(const rope_append_fp32_4_any_args& args) {
  return int64_t(((args.D + 64 - 1) / 64)) * int64_t(((args.Hkv + 2 - 1) / 2)) * int64_t(((args.M +
                 8 - 1) / 8));
}

struct rope_append_fp32_0_to_4_any_args {
  rope_append_fp32_0_any_args part_0;
  rope_append_fp32_1_any_args part_1;
  rope_append_fp32_2_any_args part_2;
  rope_append_fp32_3_any_args part_3;
  rope_append_fp32_4_any_args part_4;
  int ends[5];
};

template <bool kAligned>
__global__ void __launch_bounds__(64)
rope_append_fp32_0_to_4_any(const __grid_constant__ rope_append_fp32_0_to_4_any_args args) {
  const int block = blockIdx.x;
  if (block < args.ends[0]) return rope_append_fp32_0_any<kAligned>(args.part_0, block);
  if (block < args.ends[1]) return rope_append_fp32_1_any<kAligned>(args.part_1, block -
      args.ends[0]);
  if (block < args.ends[2]) return rope_append_fp32_2_any<kAligned>(args.part_2, block -
      args.ends[1]);
  if (block < args.ends[3]) return rope_append_fp32_3_any<kAligned>(args.part_3, block -
      args.ends[2]);
  rope_append_fp32_4_any<kAligned>(args.part_4, block - args.ends[3]);
}

inline cudaError_t launch_rope_append_fp32_0_to_4_any(rope_append_fp32_0_to_4_any_args args, bool
                                                      aligned, cudaStream_t stream) {
  int64_t blocks = 0;
  blocks += blocks_rope_append_fp32_0_any(args.part_0);
  args.ends[0] = static_cast<int>(blocks);
  blocks += blocks_rope_append_fp32_1_any(args.part_1);
  args.ends[1] = static_cast<int>(blocks);
  blocks += blocks_rope_append_fp32_2_any(args.part_2);
  args.ends[2] = static_cast<int>(blocks);
  blocks += blocks_rope_append_fp32_3_any(args.part_3);
  args.ends[3] = static_cast<int>(blocks);
  blocks += blocks_rope_append_fp32_4_any(args.part_4);
  args.ends[4] = static_cast<int>(blocks);
  if (blocks == 0) return cudaSuccess;
  return general::launch(rope_append_fp32_0_to_4_any<true>, rope_append_fp32_0_to_4_any<false>,
                         args, aligned, blocks, 64, 1, 64, stream);
}

int64_t workspace_any(const int64_t* dims) {
  [[maybe_unused]] const int M = static_cast<int>(dims[0]);
  [[maybe_unused]] const int Hq = static_cast<int>(dims[1]);
  [[maybe_unused]] const int P = static_cast<int>(dims[2]);
  [[maybe_unused]] const int S = static_cast<int>(dims[3]);
  [[maybe_unused]] const int Hkv = static_cast<int>(dims[4]);
  [[maybe_unused]] const int D = static_cast<int>(dims[5]);
  [[maybe_unused]] const int table_rows = static_cast<int>(dims[6]);
  [[maybe_unused]] const int pages = static_cast<int>(dims[7]);
  [[maybe_unused]] const int page_size = static_cast<int>(dims[8]);
  return 0;
}

cudaError_t launch_any(void* const* tensors, const int64_t* strides, const int64_t* dims, const
                       double* scalars, char* workspace, void* stream) {
  [[maybe_unused]] const int M = static_cast<int>(dims[0]);
  [[maybe_unused]] const int Hq = static_cast<int>(dims[1]);
  [[maybe_unused]] const int P = static_cast<int>(dims[2]);
  [[maybe_unused]] const int S = static_cast<int>(dims[3]);
  [[maybe_unused]] const int Hkv = static_cast<int>(dims[4]);
  [[maybe_unused]] const int D = static_cast<int>(dims[5]);
  [[maybe_unused]] const int table_rows = static_cast<int>(dims[6]);
  [[maybe_unused]] const int pages = static_cast<int>(dims[7]);
  [[maybe_unused]] const int page_size = static_cast<int>(dims[8]);
  general::Tensors given(tensors, strides);
  const auto q_first_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hq), int64_t(P)});
  const auto q_second_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hq), int64_t(P)});
  const auto q_rest_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hq), int64_t(S)});
  const auto k_first_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hkv), int64_t(P)});
  const auto k_second_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hkv), int64_t(P)});
  const auto k_rest_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hkv), int64_t(S)});
  const auto v_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hkv), int64_t(D)});
  const auto cos_tensor = given.next(4, false, false, {int64_t(table_rows), int64_t(P)});
  const auto sin_tensor = given.next(4, false, false, {int64_t(table_rows), int64_t(P)});
  const auto positions_index_tensor = given.next_index({int64_t(M)});
  const auto slots_index_tensor = given.next_index({int64_t(M)});
  const auto out_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hq), int64_t(P)});
  const auto q_turned_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hq), int64_t(P)});
  const auto q_kept_tensor = given.next(2, false, false, {int64_t(M), int64_t(Hq), int64_t(S)});
  const auto k_written_tensor =
      given.next(2, false, false, {int64_t(pages), int64_t(page_size), int64_t(Hkv), int64_t(P)});
  const auto k_turned_tensor =
      given.next(2, false, false, {int64_t(pages), int64_t(page_size), int64_t(Hkv), int64_t(P)});
  const auto k_kept_tensor =
      given.next(2, false, false, {int64_t(pages), int64_t(page_size), int64_t(Hkv), int64_t(S)});
  const auto v_written_tensor =
      given.next(2, false, false, {int64_t(pages), int64_t(page_size), int64_t(Hkv), int64_t(D)});
  const bool aligned =
      q_first_tensor.aligned && q_second_tensor.aligned && q_rest_tensor.aligned && k_first_tensor.aligned && k_second_tensor.aligned && k_rest_tensor.aligned && v_tensor.aligned && cos_tensor.aligned && sin_tensor.aligned && out_tensor.aligned && q_turned_tensor.aligned && q_kept_tensor.aligned && k_written_tensor.aligned && k_turned_tensor.aligned && k_kept_tensor.aligned && v_written_tensor.aligned;
  cudaError_t status = cudaSuccess;
  rope_append_fp32_0_to_4_any_args args_0{};
  general::assign(args_0.part_0.q_first_tile_in, args_0.part_0.q_first_tile_in_strides,
                  q_first_tensor);
  general::assign(args_0.part_0.q_second_tile_in, args_0.part_0.q_second_tile_in_strides,
                  q_second_tensor);
  general::assign(args_0.part_0.cos_tile_in, args_0.part_0.cos_tile_in_strides, cos_tensor);
  general::assign(args_0.part_0.sin_tile_in, args_0.part_0.sin_tile_in_strides, sin_tensor);
  general::assign(args_0.part_0.out_stored, args_0.part_0.out_stored_strides, out_tensor);
  general::assign(args_0.part_0.q_turned_stored, args_0.part_0.q_turned_stored_strides,
                  q_turned_tensor);
  general::assign(args_0.part_0.positions_index, args_0.part_0.positions_index_strides,
                  positions_index_tensor);
  args_0.part_0.positions_index_bytes = positions_index_tensor.bytes;
  args_0.part_0.M = static_cast<int>(M);
  args_0.part_0.Hq = static_cast<int>(Hq);
  args_0.part_0.P = static_cast<int>(P);
  args_0.part_0.table_rows = static_cast<int>(table_rows);
  general::assign(args_0.part_1.q_rest_tile_in, args_0.part_1.q_rest_tile_in_strides,
                  q_rest_tensor);
  general::assign(args_0.part_1.out_stored, args_0.part_1.out_stored_strides, q_kept_tensor);
  args_0.part_1.M = static_cast<int>(M);
  args_0.part_1.Hq = static_cast<int>(Hq);
  args_0.part_1.S = static_cast<int>(S);
  general::assign(args_0.part_2.k_first_tile_in, args_0.part_2.k_first_tile_in_strides,
                  k_first_tensor);
  general::assign(args_0.part_2.k_second_tile_in, args_0.part_2.k_second_tile_in_strides,
                  k_second_tensor);
  general::assign(args_0.part_2.cos_tile_in, args_0.part_2.cos_tile_in_strides, cos_tensor);
  general::assign(args_0.part_2.sin_tile_in, args_0.part_2.sin_tile_in_strides, sin_tensor);
  general::assign(args_0.part_2.out_stored, args_0.part_2.out_stored_strides, k_written_tensor);
  general::assign(args_0.part_2.k_turned_stored, args_0.part_2.k_turned_stored_strides,
                  k_turned_tensor);
  general::assign(args_0.part_2.positions_index, args_0.part_2.positions_index_strides,
                  positions_index_tensor);
  args_0.part_2.positions_index_bytes = positions_index_tensor.bytes;
  general::assign(args_0.part_2.slots_index, args_0.part_2.slots_index_strides, slots_index_tensor);
  args_0.part_2.slots_index_bytes = slots_index_tensor.bytes;
  args_0.part_2.M = static_cast<int>(M);
  args_0.part_2.Hkv = static_cast<int>(Hkv);
  args_0.part_2.P = static_cast<int>(P);
  args_0.part_2.table_rows = static_cast<int>(table_rows);
  args_0.part_2.pages = static_cast<int>(pages);
  args_0.part_2.page_size = static_cast<int>(page_size);
  general::assign(args_0.part_3.k_rest_tile_in, args_0.part_3.k_rest_tile_in_strides,
                  k_rest_tensor);
  general::assign(args_0.part_3.out_stored, args_0.part_3.out_stored_strides, k_kept_tensor);
  general::assign(args_0.part_3.slots_index, args_0.part_3.slots_index_strides, slots_index_tensor);
  args_0.part_3.slots_index_bytes = slots_index_tensor.bytes;
  args_0.part_3.M = static_cast<int>(M);
  args_0.part_3.Hkv = static_cast<int>(Hkv);
  args_0.part_3.S = static_cast<int>(S);
  args_0.part_3.pages = static_cast<int>(pages);
  args_0.part_3.page_size = static_cast<int>(page_size);
  general::assign(args_0.part_4.v_tile_in, args_0.part_4.v_tile_in_strides, v_tensor);
  general::assign(args_0.part_4.out_stored, args_0.part_4.out_stored_strides, v_written_tensor);
  general::assign(args_0.part_4.slots_index, args_0.part_4.slots_index_strides, slots_index_tensor);
  args_0.part_4.slots_index_bytes = slots_index_tensor.bytes;
  args_0.part_4.M = static_cast<int>(M);
  args_0.part_4.Hkv = static_cast<int>(Hkv);
  args_0.part_4.D = static_cast<int>(D);
  args_0.part_4.pages = static_cast<int>(pages);
  args_0.part_4.page_size = static_cast<int>(page_size);
  if (status == cudaSuccess) status =
      launch_rope_append_fp32_0_to_4_any(args_0, aligned, static_cast<cudaStream_t>(stream));
  return status;
}

}  // namespace
}  // namespace mirage::generated

extern "C" {
  int rope_append_fp32_bf16(void* const* tensors, const int64_t* strides, const int64_t* dims, const
                            double* scalars, char* workspace, void* stream) {
    return mirage::generated::launch_any(tensors, strides, dims, scalars, workspace, stream);
  }
  int64_t rope_append_fp32_bf16_workspace(const int64_t* dims) {
    return mirage::generated::workspace_any(dims);
  }
  extern const char rope_append_fp32_bf16_signature[];
  const char rope_append_fp32_bf16_signature[] =
      "{\"name\": \"rope_append_fp32\", \"arch\": \"sm_90a\", \"dtype\": \"bf16\", \"static\": {}, \"d"
      "ynamic\": [\"M\", \"Hq\", \"P\", \"S\", \"Hkv\", \"D\", \"table_rows\", \"pages\", \"page_size\"], "
      "\"inputs\": [\"q_first\", \"q_second\", \"q_rest\", \"k_first\", \"k_second\", \"k_rest\", \"v\""
      ", \"cos\", \"sin\"], \"tensors\": [{\"name\": \"q_first\", \"dtype\": \"bf16\", \"dims\": [\"M\", "
      "\"Hq\", \"P\"], \"optional\": false}, {\"name\": \"q_second\", \"dtype\": \"bf16\", \"dims\": [\""
      "M\", \"Hq\", \"P\"], \"optional\": false}, {\"name\": \"q_rest\", \"dtype\": \"bf16\", \"dims\": "
      "[\"M\", \"Hq\", \"S\"], \"optional\": false}, {\"name\": \"k_first\", \"dtype\": \"bf16\", \"dims"
      "\": [\"M\", \"Hkv\", \"P\"], \"optional\": false}, {\"name\": \"k_second\", \"dtype\": \"bf16\", "
      "\"dims\": [\"M\", \"Hkv\", \"P\"], \"optional\": false}, {\"name\": \"k_rest\", \"dtype\": \"bf16"
      "\", \"dims\": [\"M\", \"Hkv\", \"S\"], \"optional\": false}, {\"name\": \"v\", \"dtype\": \"bf16\","
      " \"dims\": [\"M\", \"Hkv\", \"D\"], \"optional\": false}, {\"name\": \"cos\", \"dtype\": \"fp32\","
      " \"dims\": [\"table_rows\", \"P\"], \"optional\": false}, {\"name\": \"sin\", \"dtype\": \"fp32"
      "\", \"dims\": [\"table_rows\", \"P\"], \"optional\": false}, {\"name\": \"positions\", \"dtype"
      "\": \"int\", \"dims\": [\"M\"], \"optional\": false}, {\"name\": \"slots\", \"dtype\": \"int\", \""
      "dims\": [\"M\"], \"optional\": false}], \"scalars\": [], \"results\": [{\"name\": \"out\", \"d"
      "type\": \"bf16\", \"dims\": [\"M\", \"Hq\", \"P\"]}, {\"name\": \"q_turned\", \"dtype\": \"bf16\", "
      "\"dims\": [\"M\", \"Hq\", \"P\"]}, {\"name\": \"q_kept\", \"dtype\": \"bf16\", \"dims\": [\"M\", \"Hq"
      "\", \"S\"]}, {\"name\": \"k_written\", \"dtype\": \"bf16\", \"dims\": [\"pages\", \"page_size\", "
      "\"Hkv\", \"P\"]}, {\"name\": \"k_turned\", \"dtype\": \"bf16\", \"dims\": [\"pages\", \"page_size"
      "\", \"Hkv\", \"P\"]}, {\"name\": \"k_kept\", \"dtype\": \"bf16\", \"dims\": [\"pages\", \"page_siz"
      "e\", \"Hkv\", \"S\"]}, {\"name\": \"v_written\", \"dtype\": \"bf16\", \"dims\": [\"pages\", \"page"
      "_size\", \"Hkv\", \"D\"]}]}";
}
