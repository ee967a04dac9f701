// Runs small copies of emitted kernels once, for compute-sanitizer to watch: benchmarks/small_copies.py
// writes the copies and cases.h, which lists them.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "launch.h"

namespace {

struct Input {
  bool each_token;  // [M, columns], otherwise [rows, columns]
  int64_t rows, columns;
};

struct Case {
  const char* name;
  mirage::LaunchFn launch;
  mirage::LaunchSpaceFn workspace;
  int64_t most_tokens;
  std::vector<Input> inputs;
  int64_t columns;  // of a result
  int results;
};

constexpr int64_t kTokens[] = {1, 8, 13, 29, 61, 64, 100};
constexpr int64_t kSlices = SLICES;  // of stacked weights: benchmarks/small_copies.py defines it
constexpr uint64_t kNonce = 0x5ca1ab1e0ddba11;

void* made(int64_t bytes) {
  void* at = nullptr;
  if (cudaMalloc(&at, bytes > 0 ? bytes : 1) == cudaSuccess) return at;
  std::fprintf(stderr, "no memory on the GPU for %lld bytes\n", static_cast<long long>(bytes));
  std::exit(2);
}

// Random bits that are small finite numbers in both 16-bit types.
void* drawn(int64_t elements) {
  std::vector<uint16_t> host(elements);
  for (uint16_t& bits : host) bits = 0x2c00 + (std::rand() & 0x83ff);
  void* at = made(2 * elements);
  cudaMemcpy(at, host.data(), 2 * elements, cudaMemcpyHostToDevice);
  return at;
}

void* slice_ids(int64_t tokens) {
  std::vector<int64_t> host(tokens);
  for (int64_t token = 0; token < tokens; ++token) host[token] = token % (kSlices + 1) - 1;
  void* at = made(8 * tokens);
  cudaMemcpy(at, host.data(), 8 * tokens, cudaMemcpyHostToDevice);
  return at;
}

cudaError_t run(const Case& what, int64_t tokens) {
  mirage::LaunchArgs args{};
  for (size_t i = 0; i < what.inputs.size(); ++i) {
    const Input& input = what.inputs[i];
    args.inputs[i] = drawn((input.each_token ? tokens : input.rows) * input.columns);
    args.row_strides[i] = input.columns;
  }
  for (int i = 0; i < what.results; ++i) args.outputs[i] = made(2 * tokens * what.columns);
  args.dims[0] = tokens;
  for (float& scalar : args.scalars) scalar = 0.5F;
  args.constant_weights = true;
  args.nonce = kNonce + tokens;
  args.slice_ids = slice_ids(tokens);
  args.wide_ids = true;
  args.slices = kSlices;
  if (what.workspace) args.workspace = made(what.workspace(args));
  const cudaError_t launched = what.launch(args, nullptr);
  const cudaError_t ended = cudaDeviceSynchronize();
  return launched != cudaSuccess ? launched : ended;
}

}  // namespace

#include "cases.h"

// Whether a kernel is one of those named; all are if none is.
static bool wanted(const char* name, int count, char** words) {
  for (int i = 1; i < count; ++i) {
    if (std::strstr(name, words[i])) return true;
  }
  return count == 1;
}

// Says of each kernel that it begins and ends, as benchmarks/sanitize_calls.py does.
int main(int count, char** words) {
  int failed = 0;
  for (const Case& what : cases()) {
    if (!wanted(what.name, count, words)) continue;
    std::printf("begin %s\n", what.name);
    std::fflush(stdout);
    int calls = 0, wrong = 0;
    for (const int64_t tokens : kTokens) {
      if (tokens > what.most_tokens) continue;
      const cudaError_t result = run(what, tokens);
      ++calls;
      if (result == cudaSuccess) continue;
      ++wrong;
      std::printf("M %d: %s\n", static_cast<int>(tokens), cudaGetErrorString(result));
    }
    std::printf("end %s %d results, %d wrong\n", what.name, calls, wrong);
    std::fflush(stdout);
    failed += wrong;
  }
  return failed > 0;
}
