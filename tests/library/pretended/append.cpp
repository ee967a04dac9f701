// Stands in for csrc/append: kernels for heads of 64 that print what they are launched with.
#include "append/append.h"

#include <cstdio>

namespace mirage {
namespace {

long long wide(int64_t number) { return static_cast<long long>(number); }

int bits(const void* at) { return at == nullptr ? 0 : *static_cast<const unsigned short*>(at); }

void tell_numbers(const char* name, const PerToken& numbers) {
  const long long first = numbers.wide ? wide(*static_cast<const int64_t*>(numbers.at))
                                       : wide(*static_cast<const int32_t*>(numbers.at));
  std::printf("%s %lld/%lld %s", name, first, wide(numbers.step), numbers.wide ? "wide" : "short");
}

void tell_cache(const char* name, const WrittenCache& cache) {
  std::printf(" | %s %04x %lld %lld %lld", name, bits(cache.at), wide(cache.page),
              wide(cache.token), wide(cache.head));
}

cudaError_t tell(const AppendArgs& args, cudaStream_t) {
  std::printf("%dx%d+%d | qkv %04x/%lld |", args.tokens, args.Hq, args.Hkv, bits(args.qkv),
              wide(args.qkv_token));
  for (const PerHead& heads : {args.q_weight, args.k_weight, args.q_bias, args.k_bias}) {
    std::printf(" %04x/%lld", bits(heads.at), wide(heads.head));
  }
  constexpr const char* kNorms[] = {"none", "rms", "layer"};
  std::printf(" | %s %g %g | ", kNorms[static_cast<int>(args.norm)], args.eps, args.weight_offset);
  std::printf("%s %s %lld of %d, %lld rows | ", args.interleaved ? "interleaved" : "neox",
              args.float_angles ? "float" : "half", wide(args.angles_row), args.rotated,
              wide(args.positions_end));
  tell_numbers("at", args.positions);
  tell_numbers(", to", args.slots);
  tell_cache("k", args.k);
  tell_cache("v", args.v);
  std::printf(" | %d slots in pages of %d | q %d, promised %d %d\n", args.slots_end, args.page_size,
              args.q != nullptr, args.constant_weights, args.constant_history);
  std::fflush(stdout);
  return cudaSuccess;
}

}  // namespace

AppendFn find_append_kernel(const char*, int64_t D) { return D == 64 ? tell : nullptr; }

}  // namespace mirage
