// Launch tags: a counter, mixed by splitmix64, that starts anywhere.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace mirage {

// A number that memory does not hold by chance, another one at every call. Kernels of one stream
// may share memory for their workspaces, and may find there what an earlier one left: the tag tells
// its own flags from those.
inline uint64_t next_launch_tag() {
  static const auto started = std::chrono::steady_clock::now().time_since_epoch().count() ^
                              std::chrono::system_clock::now().time_since_epoch().count();
  static std::atomic<uint64_t> counter{static_cast<uint64_t>(started)};
  uint64_t x = counter.fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace mirage
