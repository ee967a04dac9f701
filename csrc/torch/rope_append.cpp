// Views of queries, keys, values and caches, as the recipe rope_append has them.
#include "rope_append.h"

#include "registry.h"

namespace mirage {
namespace {

using torch::headeronly::ScalarType;

const void* moved(const void* at, int64_t bytes) { return static_cast<const char*>(at) + bytes; }

}  // namespace

const GeneralKernel* find_rope_append(const AppendInputs& in, const char* dtype) {
  const bool is_fp32 = in.cos_sin_cache.scalar_type() == ScalarType::Float;
  return find_general_kernel(is_fp32 ? "rope_append_fp32" : "rope_append", dtype);
}

RopeAppendLaunch::RopeAppendLaunch(const AppendInputs& in, const Tensor& q)
    : interleaved_(in.rope == "interleaved"),
      bytes_(in.qkv.element_size()),
      rotated_(in.rotated()),
      rest_(in.head_size() - rotated_) {
  const int64_t depth = in.head_size(), token = in.qkv.stride(0), element = in.qkv.stride(1);
  const auto heads = [&](int64_t first) {
    return moved(in.qkv.const_data_ptr(), first * depth * element * bytes_);
  };
  add_parts(heads(0), {token, depth * element, element});
  add_parts(heads(in.num_heads), {token, depth * element, element});
  add(heads(in.num_heads + in.num_kv_heads), {token, depth * element, element});

  const Tensor& table = in.cos_sin_cache;
  const int64_t sines = rotated_ / 2 * table.stride(1) * table.element_size();
  const std::vector<int64_t> row{table.stride(0), table.stride(1)};
  add(rotated_ == 0 ? nullptr : table.const_data_ptr(), row);
  add(rotated_ == 0 ? nullptr : moved(table.const_data_ptr(), sines), row);
  add_index(in.positions);
  add_index(in.slot_mapping);

  const auto strides = [](const Tensor& cache) {
    return std::vector<int64_t>{cache.stride(0), cache.stride(1), cache.stride(2), cache.stride(3)};
  };
  add_parts(q.mutable_data_ptr(), {q.stride(0), q.stride(1), q.stride(2)});
  add_parts(in.k_cache.mutable_data_ptr(), strides(in.k_cache));
  add(in.v_cache.mutable_data_ptr(), strides(in.v_cache));

  dims_ = {in.tokens(),   in.num_heads,       rotated_ / 2,      rest_, in.num_kv_heads, depth,
           table.size(0), in.k_cache.size(0), in.k_cache.size(1)};
}

cudaError_t RopeAppendLaunch::run(const GeneralKernel& kernel, cudaStream_t stream) const {
  const int status = kernel.launch(tensors_.data(), strides_.data(), dims_.data(), nullptr, nullptr,
                                   static_cast<void*>(stream));
  return static_cast<cudaError_t>(status);
}

void RopeAppendLaunch::add(const void* at, const std::vector<int64_t>& strides) {
  tensors_.push_back(const_cast<void*>(at));
  strides_.insert(strides_.end(), strides.begin(), strides.end());
}

// What rotates with each other, and the rest of the heads; null where that has no elements, whose
// alignment then does not count.
void RopeAppendLaunch::add_parts(const void* at, std::vector<int64_t> strides) {
  const int64_t element = strides.back(), rest = rotated_ * element * bytes_;
  const int64_t second = (interleaved_ ? 1 : rotated_ / 2) * element * bytes_;
  strides.back() = interleaved_ ? 2 * element : element;
  add(rotated_ == 0 ? nullptr : at, strides);
  add(rotated_ == 0 ? nullptr : moved(at, second), strides);
  strides.back() = element;
  add(rest_ == 0 ? nullptr : moved(at, rest), strides);
}

// Behind its strides: the bytes of a number.
void RopeAppendLaunch::add_index(const Tensor& numbers) {
  add(numbers.const_data_ptr(), {numbers.stride(0), static_cast<int64_t>(numbers.element_size())});
}

}  // namespace mirage
