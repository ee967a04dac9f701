// mirage_kernels::rms_norm_linear: y[M, N] = (x / rms(x) * norm_weight)[M, K] @ weight[N, K]^T.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>

#include "arguments.h"
#include "device.h"

namespace mirage {
namespace {

constexpr const char* kOp = "rms_norm_linear";

struct Inputs {
  Tensor x;            // [..., K]
  Tensor norm_weight;  // [K]
  Tensor weight;       // [N, K]
  double eps;
};

Shape out_shape(const Inputs& in) {
  Shape shape;
  for (int64_t i = 0; i + 1 < in.x.dim(); ++i) shape.push_back(in.x.size(i));
  shape.push_back(in.weight.size(0));
  return shape;
}

void check_inputs(const Inputs& in) {
  const Argument x{kOp, "x", in.x};
  const Argument norm_weight{kOp, "norm_weight", in.norm_weight};
  const Argument weight{kOp, "weight", in.weight};
  half_dtype(x);
  check_has_rows(x);
  check_like(norm_weight, x);
  check_like(weight, x);
  const int64_t depth = in.x.size(in.x.dim() - 1);
  check_shape(norm_weight, {{depth}, "[K]", x});
  check_shape(weight, {{-1, depth}, "[N, K]", x});
  check_in_place(norm_weight);
  check_in_place(weight);
  check_not_negative(kOp, "eps", in.eps);
}

void check_result(const Inputs& in, const Tensor& out) {
  const Argument x{kOp, "x", in.x};
  const Argument argument{kOp, "out", out};
  check_like(argument, x);
  check_shape(argument, {out_shape(in), "[..., N]", x});
  check_out(argument, {x, {kOp, "norm_weight", in.norm_weight}, {kOp, "weight", in.weight}});
}

void launch_into(const Inputs& in, const Tensor& out) {
  if (out.numel() == 0) return;
  const Rows rows = rows_of(in.x);
  const int64_t depth = in.weight.size(1);
  LaunchArgs args{};
  args.inputs[0] = rows.tensor.const_data_ptr();
  args.inputs[1] = in.norm_weight.const_data_ptr();
  args.inputs[2] = in.weight.const_data_ptr();
  args.row_strides[0] = rows.stride;
  args.row_strides[1] = depth;
  args.row_strides[2] = depth;
  args.outputs[0] = out.mutable_data_ptr();
  args.dims[0] = rows.count;
  args.scalars[0] = static_cast<float>(in.eps);
  const KernelQuery query{
      kOp, half_dtype({kOp, "x", in.x}), {{"K", depth}, {"N", in.weight.size(0)}}, 2};
  launch(query, args, in.x.get_device_index());
}

// The recipe's reference, registered from Python.
Tensor reference(const Inputs& in) {
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(in.x), from(in.norm_weight), from(in.weight),
                                    from(in.eps)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("mirage_kernels::_rms_norm_linear_reference", "",
                                               stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor on_cuda(Tensor x, Tensor norm_weight, Tensor weight, double eps) {
  const Inputs in{x, norm_weight, weight, eps};
  check_inputs(in);
  Tensor out = torch::stable::new_empty(x, out_shape(in));
  launch_into(in, out);
  return out;
}

void on_cuda_out(Tensor x, Tensor norm_weight, Tensor weight, double eps, Tensor out) {
  const Inputs in{x, norm_weight, weight, eps};
  check_inputs(in);
  check_result(in, out);
  launch_into(in, out);
}

Tensor on_cpu(Tensor x, Tensor norm_weight, Tensor weight, double eps) {
  const Inputs in{x, norm_weight, weight, eps};
  check_inputs(in);
  return reference(in);
}

void on_cpu_out(Tensor x, Tensor norm_weight, Tensor weight, double eps, Tensor out) {
  const Inputs in{x, norm_weight, weight, eps};
  check_inputs(in);
  check_result(in, out);
  torch::stable::copy_(out, reference(in));
}

}  // namespace
}  // namespace mirage

STABLE_TORCH_LIBRARY_FRAGMENT(mirage_kernels, m) {
  m.def("rms_norm_linear(Tensor x, Tensor norm_weight, Tensor weight, float eps) -> Tensor");
  // "-> ()": PyTorch's functionalization refuses custom ops that return an alias.
  m.def(
      "rms_norm_linear.out(Tensor x, Tensor norm_weight, Tensor weight, float eps, *, "
      "Tensor(a!) out) -> ()");
  m.def(
      "_rms_norm_linear_reference(Tensor x, Tensor norm_weight, Tensor weight, float eps) "
      "-> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CUDA, m) {
  m.impl("rms_norm_linear", TORCH_BOX(&mirage::on_cuda));
  m.impl("rms_norm_linear.out", TORCH_BOX(&mirage::on_cuda_out));
}

STABLE_TORCH_LIBRARY_IMPL(mirage_kernels, CPU, m) {
  m.impl("rms_norm_linear", TORCH_BOX(&mirage::on_cpu));
  m.impl("rms_norm_linear.out", TORCH_BOX(&mirage::on_cpu_out));
}
