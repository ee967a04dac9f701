// The one path of every call: arguments off the stack, checks, and whoever computes the results.
#include "op.h"

#include "assumptions.h"
#include "call.h"
#include "checking.h"
#include "errors.h"

namespace mirage {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

bool is_optional(const char* type) { return type[0] == 'T' && type[6] == '?'; }

// Takes ownership of what lies on the stack.
Value value_of(const char* type, StableIValue given) {
  Value value;
  switch (type[0]) {
    case 'T':  // "Tensor", "Tensor?" or "Tensor(a!)"
      if (is_optional(type)) {
        value.tensor = to<std::optional<Tensor>>(given);
      } else {
        value.tensor = to<Tensor>(given);
      }
      break;
    case 'f':  // "float"
      value.number = to<double>(given);
      break;
    case 'b':  // "bool"
      value.integer = to<bool>(given);
      break;
    case 's':  // "str"
      value.text = to<std::string>(given);
      break;
    default:  // "int" or "SymInt"
      value.integer = to<int64_t>(given);
  }
  return value;
}

StableIValue stack_value(const char* type, const Value& value) {
  switch (type[0]) {
    case 'T':
      return is_optional(type) ? from(value.tensor) : from(*value.tensor);
    case 'f':
      return from(value.number);
    case 'b':
      return from(value.integer != 0);
    case 's':
      return from(value.text);
    default:
      return from(value.integer);
  }
}

Values take_arguments(const Signature& signature, const StableIValue* stack) {
  Values values;
  values.reserve(signature.parameters.size());
  for (const Parameter& parameter : signature.parameters) {
    values.push_back(value_of(parameter.type, *stack++));
  }
  return values;
}

// What a program in Python said that failed, which the dispatcher's C interface does not hand on.
std::string failure() {
  StableIValue said = 0;
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("mirage_kernels::_failure", "", &said, TORCH_ABI_VERSION));
  return to<std::string>(said);
}

bool run_program(const Name& name, const Signature& signature, const Values& values,
                 const Results& results) {
  std::vector<StableIValue> stack;
  stack.reserve(values.size() + results.size());
  for (size_t i = 0; i < values.size(); ++i) {
    stack.push_back(stack_value(signature.parameters[i].type, values[i]));
  }
  for (const Tensor& result : results) stack.push_back(from(result));
  const std::string op = "mirage_kernels::" + name.op;
  return torch_call_dispatcher(op.c_str(), name.overload.c_str(), stack.data(),
                               TORCH_ABI_VERSION) == TORCH_SUCCESS;
}

// Throws in checking mode where a length, a page or an id is out of its bounds.
void check_values(const Signature& signature, const Values& values) {
  if (!has_values(signature) || !looks_at_values(*values[0].tensor)) return;
  if (run_program(name_of(signature, Form::kValues), signature, values, {})) return;
  fail(failure());
}

// The one place that decides who computes.
void run(Call& call, const Signature& signature, const Values& values, const Results& results) {
  const Way way = call.way();
  if (way == Way::kNobody) return;
  if (way == Way::kKernel) return call.launch(results);
  const Form form = way == Way::kLibrary ? Form::kLibrary : Form::kComposite;
  if (run_program(name_of(signature, form), signature, values, results)) return;
  fail("mirage_kernels::", signature.op, ": PyTorch's own program failed: ", failure(),
       call.hint());
}

}  // namespace

std::vector<Argument> given_tensors(const Signature& signature, const Values& values) {
  std::vector<Argument> given;
  given.reserve(values.size() + signature.results.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = signature.parameters[i];
    if (values[i].tensor) given.push_back({signature.op, label_of(parameter), *values[i].tensor});
  }
  return given;
}

void call_functional(const Signature& signature, StableIValue* stack) {
  const Values values = take_arguments(signature, stack);
  const AssumptionScope scope(to<int64_t>(stack[values.size()]));
  const std::unique_ptr<Call> call = signature.call(signature, values);
  check_values(signature, values);
  Results results;
  for (size_t i = 0; i < signature.results.size(); ++i) results.push_back(call->new_result(i));
  run(*call, signature, values, results);
  for (const Tensor& result : results) *stack++ = from(result);
}

void call_into(const Signature& signature, StableIValue* stack) {
  const Values values = take_arguments(signature, stack);
  Results results;
  for (size_t i = 0; i < signature.results.size(); ++i) {
    results.push_back(to<Tensor>(stack[values.size() + i]));
  }
  const AssumptionScope scope(to<int64_t>(stack[values.size() + results.size()]));
  const std::unique_ptr<Call> call = signature.call(signature, values);
  call->check_results(results);
  check_values(signature, values);
  run(*call, signature, values, results);
}

// Results may be absent here, the last ones first.
void call_check(const Signature& signature, StableIValue* stack) {
  const Values values = take_arguments(signature, stack);
  Results results;
  for (size_t i = 0; i < signature.results.size(); ++i) {
    const auto given = to<std::optional<Tensor>>(stack[values.size() + i]);
    if (given) results.push_back(*given);
  }
  const std::unique_ptr<Call> call = signature.call(signature, values);
  if (!results.empty()) call->check_results(results);
  check_values(signature, values);
}

void define(const Signature& signature, torch::stable::detail::StableLibrary& library) {
  for (Form form : kForms) {
    if (form == Form::kOut && is_in_place(signature)) continue;
    if (form == Form::kValues && !has_values(signature)) continue;
    library.def(schema_of(signature, form).c_str());
  }
}

// Both devices enter by the same door: the call itself knows where its tensors are.
void implement(const Op& op, torch::stable::detail::StableLibrary& library) {
  const auto put = [&](Form form, Boxed function) {
    library.impl(name_of(*op.signature, form).text().c_str(), function);
  };
  put(Form::kFunctional, op.functional);
  put(Form::kCheck, op.check);
  if (!is_in_place(*op.signature)) put(Form::kOut, op.into);
}

}  // namespace mirage
