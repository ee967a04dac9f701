// Stands in for an emitted table: kernels that print what they are launched with.
#include <cstdio>

#include "launch.h"

namespace mirage {
namespace {

constexpr int kInputs = 5;

// Each input as its first element's bits and its row stride; the tests fill a tensor with one
// value.
template <int kIndex>
cudaError_t tell(const LaunchArgs& args, cudaStream_t) {
  std::printf("%s M=%d |", kKernels[kIndex].name, static_cast<int>(args.dims[0]));
  for (int i = 0; i < kInputs; ++i) {
    const auto* bits = static_cast<const unsigned short*>(args.inputs[i]);
    if (bits == nullptr) {
      std::printf(" -");
    } else {
      std::printf(" %04x/%d", *bits, static_cast<int>(args.row_strides[i]));
    }
  }
  std::printf(" | %g %g | %d", args.scalars[0], args.scalars[1],
              (args.outputs[0] != nullptr) + (args.outputs[1] != nullptr));
  if (args.slice_ids != nullptr) {
    const auto* ids = static_cast<const int*>(args.slice_ids);
    std::printf(" | slices %d %d of %d, wide %d", ids[0], ids[1 + args.wide_ids],
                static_cast<int>(args.slices), args.wide_ids);
  }
  if (kKernels[kIndex].workspace != nullptr) {
    std::printf(" | space %d, nonce %d", args.workspace != nullptr, args.nonce != 0);
  }
  std::printf("\n");
  std::fflush(stdout);
  return cudaSuccess;
}

template <int kIndex>
cudaError_t tell_attention(const AttentionArgs& args, cudaStream_t) {
  const auto n = [](int64_t number) { return static_cast<long long>(number); };
  const auto bits = [](const void* at) {
    return at == nullptr ? 0 : *static_cast<const unsigned short*>(at);
  };
  const auto first = [](const int32_t* at) { return at == nullptr ? -1 : *at; };
  std::printf("%s B=%d Hkv=%d G=%d q_len=%d max_len=%d", kAttentionKernels[kIndex].name, args.B,
              args.Hkv, args.G, args.q_len, args.max_len);
  std::printf(" | q %04x %lld %lld", bits(args.q.at), n(args.q.token), n(args.q.head));
  if (kAttentionKernels[kIndex].dim_count > 1) {
    std::printf(", more %04x %lld %lld", bits(args.more_q.at), n(args.more_q.token),
                n(args.more_q.head));
  }
  std::printf(" | k %04x %lld %lld %lld", bits(args.k.at), n(args.k.page), n(args.k.token),
              n(args.k.head));
  std::printf(" | v %04x %lld %lld %lld", bits(args.v.at), n(args.v.page), n(args.v.token),
              n(args.v.head));
  std::printf(" | table %d/%lld of %d, lens %d, first %d", first(args.block_table),
              n(args.table_row), args.page_size, first(args.seq_lens), first(args.first_tokens));
  std::printf(" | scalars %g %g %g, window %d skip %d", args.scalars[0], args.scalars[1],
              args.scalars[2], args.integers[0], args.first_window);
  std::printf(" | vectors");
  for (int i = 0; i < 4; ++i) {
    std::printf(" %04x/%lld", bits(args.vectors[i]), n(args.vector_heads[i]));
  }
  std::printf(", sinks %04x", bits(args.sinks));
  std::printf(" | out %d %lld %lld, lse %d", args.out != nullptr, n(args.out_token),
              n(args.out_head), args.lse != nullptr);
  std::printf(" | %u pages, history %d", args.pages, args.constant_history);
  std::printf(" | %d SMs, space %d, nonce %llx\n", args.multiprocessors, args.workspace != nullptr,
              static_cast<unsigned long long>(args.nonce));
  std::fflush(stdout);
  return cudaSuccess;
}

int64_t workspace(const AttentionArgs& args) {
  return int64_t{256} * args.B * args.Hkv * args.multiprocessors;
}

int64_t space(const LaunchArgs& args) { return int64_t{64} * args.dims[0]; }

#define MIRAGE_DIMS {{"K", 64}, {"N", 96}}, 2
#define MIRAGE_ADAPTER {{"K", 64}, {"N", 96}, {"R", 8}}, 3
#define MIRAGE_HEADS(size) {{"D", size}}, 1

}  // namespace

const Kernel kKernels[] = {
    {"rms_norm_linear", "fp16", MIRAGE_DIMS, tell<0>, "rms", 4, ""},
    {"rms_norm_linear_full", "fp16", MIRAGE_DIMS, tell<1>, "rms_full", 4, "bias weight_offset"},
    {"layer_norm_linear", "bf16", MIRAGE_DIMS, tell<2>, "layer", 0, ""},
    {"layer_norm_linear_full", "fp16", MIRAGE_DIMS, tell<3>, "layer_full", 0, "norm_bias bias"},
    {"lora_linear", "fp16", {{"K", 64}, {"N", 96}, {"R", 8}}, 3, tell<4>, "lora", 0, "", space},
    {"gated_mlp", "fp16", MIRAGE_DIMS, tell<5>, "gated", 0, nullptr},
    {"rms_norm_geglu_mlp", "fp16", MIRAGE_DIMS, tell<6>, "rms_geglu", 0, ""},
    {"rms_norm_linear", "bf16", MIRAGE_DIMS, tell<7>, "rms_all", 0, "bias residual weight_offset"},
    {"ntrans", "fp16", {{"K", 64}}, 1, tell<8>, "ntrans", 0, ""},
    {"rms_norm_linear_residual", "fp16", MIRAGE_DIMS, tell<9>, "sum", 2, "bias weight_offset"},
    {"lora_linear_batched", "fp16", MIRAGE_ADAPTER, tell<10>, "stacked", 4, "bias", space},
    {"rms_norm", "fp16", {{"K", 64}}, 1, tell<11>, "norm", 0, "weight_offset"},
    {"rms_norm_residual", "fp16", {{"K", 64}}, 1, tell<12>, "norm_sum", 0, "weight_offset"},
    {"layer_norm", "fp16", {{"K", 64}}, 1, tell<13>, "norm_of_layers", 0, "norm_bias"},
    {"silu_and_mul", "fp16", {{"N", 96}}, 1, tell<14>, "silu", 0, ""},
};
const int kKernelCount = 15;
const AttentionKernel kAttentionKernels[] = {
    {"gqa", "fp16", MIRAGE_HEADS(64), tell_attention<0>, workspace, "gqa", ""},
    {"sliding_window_attention", "fp16", MIRAGE_HEADS(64), tell_attention<1>, workspace, "sliding",
     ""},
    {"gqa_full", "fp16", MIRAGE_HEADS(64), tell_attention<2>, workspace, "full", ""},
    {"qk_norm_attention", "fp16", MIRAGE_HEADS(64), tell_attention<3>, workspace, "normed", ""},
    {"gqa", "bf16", MIRAGE_HEADS(128), tell_attention<4>, workspace, "wide", ""},
    {"qk_layer_norm_attention", "fp16", MIRAGE_HEADS(64), tell_attention<5>, workspace, "layered",
     ""},
    {"mla_decode", "fp16", {{"C", 64}, {"P", 16}}, 2, tell_attention<6>, workspace, "latent", ""},
};
const int kAttentionKernelCount = 7;
const char* const kArch = "sm_90a";

}  // namespace mirage
