// Lookup in the emitted table and in those of loaded files: exact match for dispatch, nearest
// shapes for the error's hint.
#include "registry.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <sstream>
#include <type_traits>
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
struct Rows {
  const Row* first;
  int64_t count;

  const Row* begin() const { return first; }
  const Row* end() const { return first + count; }
  const Row* find(const KernelQuery& query) const {
    const Row* found =
        std::find_if(begin(), end(), [&](const Row& row) { return serves(row, query); });
    return found == end() ? nullptr : found;
  }
};

// The rows of one file. Those of the library itself have no name.
struct Table {
  std::string file;
  const KernelRows* source;
  Rows<Kernel> kernels;
  Rows<AttentionKernel> attention;
};
using Tables = std::vector<Table>;

template <class Row>
Rows<Row> own_rows() {
  if constexpr (std::is_same_v<Row, Kernel>) return {kKernels, kKernelCount};
  if constexpr (!std::is_same_v<Row, Kernel>) return {kAttentionKernels, kAttentionKernelCount};
}

template <class Row>
const Rows<Row>& rows_of(const Table& table) {
  if constexpr (std::is_same_v<Row, Kernel>) return table.kernels;
  if constexpr (!std::is_same_v<Row, Kernel>) return table.attention;
}

// Files that were loaded, none at first. A list is replaced as a whole and kept for ever: calls of
// other threads may still read it.
std::atomic<const Tables*> loaded_tables{nullptr};
std::mutex loading;

// A loaded kernel goes before one that the library was built with.
template <class Row>
const Row* find_row(const KernelQuery& query) {
  if (const Tables* tables = loaded_tables.load(std::memory_order_acquire)) {
    for (const Table& table : *tables) {
      if (const Row* row = rows_of<Row>(table).find(query)) return row;
    }
  }
  return own_rows<Row>().find(query);
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

// As JSON writes it; a path may hold anything.
void write_text(std::ostream& json, const std::string& text) {
  json << '"';
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ') continue;
    if (c == '"' || c == '\\') json << '\\';
    json << c;
  }
  json << '"';
}

// A row of attention as one of the other table, to be told and not to be launched.
Kernel told(const AttentionKernel& row) {
  Kernel kernel{row.recipe, row.dtype, {}, row.dim_count, nullptr, row.name, 0, row.options};
  std::copy_n(row.dims, row.dim_count, kernel.dims);
  return kernel;
}

template <class Row>
KernelQuery query_of(const Row& row) {
  KernelQuery query{row.recipe, row.recipe, row.dtype, {}, row.dim_count};
  std::copy_n(row.dims, row.dim_count, query.dims);
  return query;
}

// The kernels that calls may find, with their files.
std::vector<std::pair<Kernel, std::string>> every_kernel() {
  std::vector<std::pair<Kernel, std::string>> kernels;
  const auto add = [&](const Table& table) {
    for (const Kernel& row : table.kernels) {
      if (find_row<Kernel>(query_of(row)) == &row) kernels.emplace_back(row, table.file);
    }
    for (const AttentionKernel& row : table.attention) {
      const bool is_found = find_row<AttentionKernel>(query_of(row)) == &row;
      if (is_found) kernels.emplace_back(told(row), table.file);
    }
  };
  add({"", nullptr, own_rows<Kernel>(), own_rows<AttentionKernel>()});
  if (const Tables* tables = loaded_tables.load(std::memory_order_acquire)) {
    std::for_each(tables->begin(), tables->end(), add);
  }
  return kernels;
}

std::vector<Kernel> kernels_by_distance(const KernelQuery& query) {
  std::vector<std::pair<double, Kernel>> ranked;
  for (const auto& [kernel, file] : every_kernel()) {
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

// The name of a kernel that two files hold; empty where there is none.
std::string first_in_both(const Table& table, const Table& other) {
  for (const Kernel& row : other.kernels) {
    if (table.kernels.find(query_of(row)) != nullptr) return row.name;
  }
  for (const AttentionKernel& row : other.attention) {
    if (table.attention.find(query_of(row)) != nullptr) return row.name;
  }
  return "";
}

}  // namespace

const Kernel* find_kernel(const KernelQuery& query) { return find_row<Kernel>(query); }

const AttentionKernel* find_attention_kernel(const KernelQuery& query) {
  return find_row<AttentionKernel>(query);
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
  text << "; `mirage-kernels generate " << query.recipe << " --arch " << kArch << " --dtype "
       << query.dtype << " --shape ";
  write_dims(text, query.dims, query.dim_count);
  text << " --out DIR` and `mirage-kernels compile DIR` make it, mirage_kernels.load(\"DIR\") adds "
          "it";
  return text.str();
}

std::string add_rows(const KernelRows& rows, const std::string& file) {
  if (rows.abi != kLaunchAbi) {
    return file + " was compiled for another version of mirage_kernels; `mirage-kernels compile` " +
           "of the installed one, on its folder, makes it anew";
  }
  if (!same(rows.arch, kArch)) {
    return file + " holds a kernel for " + rows.arch + ", but this build is for " + kArch +
           "; `mirage-kernels generate --arch " + kArch + "` makes one for it";
  }
  const std::lock_guard<std::mutex> lock(loading);
  const Tables* before = loaded_tables.load(std::memory_order_acquire);
  Tables tables = before == nullptr ? Tables{} : *before;
  const Table added{file,
                    &rows,
                    {rows.kernels, rows.kernel_count},
                    {rows.attention_kernels, rows.attention_kernel_count}};
  for (const Table& table : tables) {
    if (table.source == &rows) return "";  // the very same, loaded again
    const std::string name = first_in_both(table, added);
    if (name.empty()) continue;
    return file + " holds " + name + ", which " + table.file +
           " holds too; load one of them, a new one of the same name in a new process";
  }
  tables.push_back(added);
  loaded_tables.store(new Tables(std::move(tables)), std::memory_order_release);
  return "";
}

std::string kernel_table_json() {
  std::ostringstream json;
  json << "[";
  const char* comma = "";
  for (const auto& [kernel, file] : every_kernel()) {
    json << std::exchange(comma, ", ") << "{\"name\": \"" << kernel.name << "\", \"arch\": \""
         << kArch << "\", \"recipe\": \"" << kernel.recipe << "\", \"dtype\": \"" << kernel.dtype
         << "\", \"dims\": {";
    for (int d = 0; d < kernel.dim_count; ++d) {
      json << (d ? ", " : "") << "\"" << kernel.dims[d].name << "\": " << kernel.dims[d].size;
    }
    json << "}, \"max_tokens\": " << kernel.max_tokens << ", \"options\": \""
         << (kernel.options ? kernel.options : "") << "\", \"file\": ";
    write_text(json, file);
    json << "}";
  }
  json << "]";
  return json.str();
}

}  // namespace mirage
