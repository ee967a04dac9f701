// Lookup in the emitted table: exact match for dispatch, nearest shapes for the error's hint.
#include "registry.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

namespace mirage {
namespace {

constexpr int kNearestShown = 3;

bool same(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

template <class Row>
bool serves(const Row& kernel, const KernelQuery& query) {
  if (kernel.dim_count != query.dim_count) return false;
  for (int i = 0; i < query.dim_count; ++i) {
    if (kernel.dims[i].size != query.dims[i].size) return false;
  }
  return same(kernel.dtype, query.dtype) && same(kernel.recipe, query.recipe);
}

template <class Row>
const Row* find_row(const Row* rows, int count, const KernelQuery& query) {
  const Row* found =
      std::find_if(rows, rows + count, [&](const Row& row) { return serves(row, query); });
  return found == rows + count ? nullptr : found;
}

// How far apart two shapes are: octaves, summed over the dims.
double distance(const Kernel& kernel, const KernelQuery& query) {
  double octaves = 0;
  for (int i = 0; i < std::min(kernel.dim_count, query.dim_count); ++i) {
    const double ratio =
        static_cast<double>(kernel.dims[i].size + 1) / static_cast<double>(query.dims[i].size + 1);
    octaves += std::fabs(std::log2(ratio));
  }
  return octaves;
}

void write_dims(std::ostream& text, const StaticDim* dims, int count) {
  for (int i = 0; i < count; ++i) {
    text << (i ? "," : "") << dims[i].name << "=" << dims[i].size;
  }
}

// The rows of both tables, to be told and not to be launched.
std::vector<Kernel> every_kernel() {
  std::vector<Kernel> kernels(kKernels, kKernels + kKernelCount);
  for (int i = 0; i < kAttentionKernelCount; ++i) {
    const AttentionKernel& row = kAttentionKernels[i];
    Kernel kernel{row.recipe, row.dtype, {}, row.dim_count, nullptr, row.name, 0, row.options};
    std::copy_n(row.dims, row.dim_count, kernel.dims);
    kernels.push_back(kernel);
  }
  return kernels;
}

std::vector<Kernel> kernels_by_distance(const KernelQuery& query) {
  std::vector<std::pair<double, Kernel>> ranked;
  for (const Kernel& kernel : every_kernel()) {
    if (!same(kernel.recipe, query.recipe)) continue;
    // Another dtype of the same shape comes before another shape of the same dtype.
    const double dtype_cost = same(kernel.dtype, query.dtype) ? 0.0 : 1e-3;
    ranked.emplace_back(distance(kernel, query) + dtype_cost, kernel);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Kernel> kernels;
  for (const auto& entry : ranked) kernels.push_back(entry.second);
  return kernels;
}

}  // namespace

const Kernel* find_kernel(const KernelQuery& query) {
  return find_row(kKernels, kKernelCount, query);
}

const AttentionKernel* find_attention_kernel(const KernelQuery& query) {
  return find_row(kAttentionKernels, kAttentionKernelCount, query);
}

bool takes(const Kernel& kernel, const char* option) {
  const size_t length = std::strlen(option);
  for (const char* at = kernel.options; at != nullptr && *at != '\0';) {
    const size_t word = std::strcspn(at, " ");
    if (word == length && std::strncmp(at, option, word) == 0) return true;
    at += word + (at[word] == ' ' ? 1 : 0);
  }
  return false;
}

std::string not_covered_sentence(const KernelQuery& query) {
  std::ostringstream text;
  text << "mirage_kernels::" << query.op << ": no kernel ";
  if (!same(query.op, query.recipe)) text << "of " << query.recipe << " ";
  text << "covers ";
  write_dims(text, query.dims, query.dim_count);
  text << " in " << query.dtype << "; ";
  const std::vector<Kernel> kernels = kernels_by_distance(query);
  const int shown = std::min<int>(kNearestShown, static_cast<int>(kernels.size()));
  for (int i = 0; i < shown; ++i) {
    text << (i ? ", " : "the nearest covered are ");
    write_dims(text, kernels[i].dims, kernels[i].dim_count);
    text << " " << kernels[i].dtype;
  }
  if (shown == 0) text << "this build contains none of that recipe";
  text << "; `mirage-kernels generate " << query.recipe << " --dtype " << query.dtype
       << " --shape ";
  write_dims(text, query.dims, query.dim_count);
  text << "` makes it";
  return text.str();
}

std::string kernel_table_json() {
  std::ostringstream json;
  json << "[";
  const char* comma = "";
  for (const Kernel& kernel : every_kernel()) {
    json << std::exchange(comma, ", ") << "{\"name\": \"" << kernel.name << "\", \"arch\": \""
         << kArch << "\", \"recipe\": \"" << kernel.recipe << "\", \"dtype\": \"" << kernel.dtype
         << "\", \"dims\": {";
    for (int d = 0; d < kernel.dim_count; ++d) {
      json << (d ? ", " : "") << "\"" << kernel.dims[d].name << "\": " << kernel.dims[d].size;
    }
    json << "}, \"max_tokens\": " << kernel.max_tokens << ", \"options\": \""
         << (kernel.options ? kernel.options : "") << "\"}";
  }
  json << "]";
  return json.str();
}

}  // namespace mirage
