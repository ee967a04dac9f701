// How a binding fails: one sentence, thrown as the exception that Python sees as RuntimeError.
#pragma once

#include <sstream>
#include <stdexcept>

namespace mirage {

// STD_TORCH_CHECK would put function, file and line before the sentence; users need neither.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::runtime_error(sentence.str());
}

}  // namespace mirage
