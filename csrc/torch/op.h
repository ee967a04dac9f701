// A signature with C++ types becomes an op: its functions for the dispatcher and its schemas.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include "call.h"
#include "signature.h"

namespace mirage {

inline Value value_of(const Tensor& tensor) { return {&tensor, 0, nullptr}; }
inline Value value_of(const std::optional<Tensor>& tensor) {
  return {tensor ? &*tensor : nullptr, 0, nullptr};
}
inline Value value_of(const double& number) { return {nullptr, number, nullptr}; }
inline Value value_of(const std::string& text) { return {nullptr, 0, &text}; }

// Throws with what PyTorch's program said, which the dispatcher's C interface does not hand on;
// `hint` says what else could be done.
[[noreturn]] void fail_program(const char* op, const std::string& hint = "");

template <class T>
constexpr const char* schema_type() {
  if constexpr (std::is_same_v<T, Tensor>) return "Tensor";
  if constexpr (std::is_same_v<T, std::optional<Tensor>>) return "Tensor?";
  if constexpr (std::is_same_v<T, double>) return "float";
  if constexpr (std::is_same_v<T, int64_t>) return "int";
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, std::string>) return "str";
}

template <class... Types>
struct List {};

template <const Signature& kSignature, class Arguments, class Outs = List<Tensor>>
struct Op;

template <const Signature& kSignature, class... Arguments, class... Outs>
struct Op<kSignature, List<Arguments...>, List<Outs...>> {
  using Returned =
      std::conditional_t<sizeof...(Outs) == 1, std::tuple_element_t<0, std::tuple<Outs...>>,
                         std::tuple<Outs...>>;

  static Returned functional(Arguments... arguments) {
    const Value values[] = {value_of(arguments)...};
    Call call(kSignature, values);
    const std::tuple<Outs...> outs = new_results(call, std::index_sequence_for<Outs...>{});
    std::apply([&](const Outs&... out) { run(call, arguments..., out...); }, outs);
    if constexpr (sizeof...(Outs) == 1) {
      return std::get<0>(outs);
    } else {
      return outs;
    }
  }

  static void into(Arguments... arguments, Outs... outs) {
    const Value values[] = {value_of(arguments)...};
    Call call(kSignature, values);
    call.check_results({&outs...});
    run(call, arguments..., outs...);
  }

  static void define(torch::stable::detail::StableLibrary& library) {
    for (Form form : {Form::kFunctional, Form::kOut, Form::kLibrary, Form::kAround}) {
      library.def(schema_of(kSignature, {schema_type<Arguments>()...}, form).c_str());
    }
  }

  static void implement(torch::stable::detail::StableLibrary& library) {
    library.impl(name_of(kSignature, Form::kFunctional).text().c_str(), TORCH_BOX(&functional));
    library.impl(name_of(kSignature, Form::kOut).text().c_str(), TORCH_BOX(&into));
  }

  static const Signature& signature() { return kSignature; }

 private:
  template <size_t... kIndices>
  static std::tuple<Outs...> new_results(const Call& call, std::index_sequence<kIndices...>) {
    return {call.new_result(kIndices)...};
  }

  static void run(Call& call, const Arguments&... arguments, const Outs&... outs) {
    const Way way = call.way();
    if (way == Way::kNobody) return;
    if (way == Way::kKernel) return call.launch({&outs...});
    const Name name = name_of(kSignature, way == Way::kLibrary ? Form::kLibrary : Form::kAround);
    const std::string op = "mirage_kernels::" + name.op;
    StableIValue stack[] = {torch::stable::detail::from(arguments)...,
                            torch::stable::detail::from(outs)...};
    const auto status =
        torch_call_dispatcher(op.c_str(), name.overload.c_str(), stack, TORCH_ABI_VERSION);
    if (status != TORCH_SUCCESS) fail_program(kSignature.op);
  }
};

}  // namespace mirage
