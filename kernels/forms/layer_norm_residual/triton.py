# mirage-kernels generate layer_norm_residual
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, K] = layer_norm(total, eps) * norm_weight + norm_bias; total = x + residual

import triton
import triton.language as tl


@triton.jit
def _layer_norm_residual(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    residual_ptr,
    out_ptr,
    total_ptr,
    x_strides,
    norm_weight_strides,
    norm_bias_strides,
    residual_strides,
    out_strides,
    total_strides,
    eps,
    M,
    K: tl.constexpr,
    ALL_K: tl.constexpr,
):
    offs_m = tl.program_id(0).to(tl.int64)
    all_k = tl.arange(0, ALL_K).to(tl.int64)
    x_tile = tl.load(x_ptr + offs_m * x_strides[0] + all_k * x_strides[1], mask=all_k < K, other=0)
    residual_tile = tl.load(
        residual_ptr + offs_m * residual_strides[0] + all_k * residual_strides[1],
        mask=all_k < K,
        other=0,
    )
    total_tile = x_tile.to(tl.float32) + residual_tile.to(tl.float32)
    terms = tl.where(all_k < K, total_tile, 0.0)
    sum_total = tl.sum(terms, axis=0)
    mean_sum = sum_total / (K * 1.0)
    total_minus_mean_sum = total_tile - mean_sum
    total_minus_mean_sum_squared = total_minus_mean_sum * total_minus_mean_sum
    terms = tl.where(all_k < K, total_minus_mean_sum_squared, 0.0)
    sum_total_minus_mean_sum_squared = tl.sum(terms, axis=0)
    mean_total_minus_mean_sum_squared = sum_total_minus_mean_sum_squared / (K * 1.0)
    mean_total_minus_mean_sum_squared_plus = eps + mean_total_minus_mean_sum_squared
    root = tl.sqrt(mean_total_minus_mean_sum_squared_plus)
    norm_bias = tl.load(norm_bias_ptr + all_k * norm_bias_strides[0], mask=all_k < K, other=0)
    norm_weight = tl.load(norm_weight_ptr + all_k * norm_weight_strides[0], mask=all_k < K, other=0)
    normed_total_minus_mean_sum = total_minus_mean_sum / root
    scaled_normed_total_minus_mean_sum = norm_weight.to(tl.float32) * normed_total_minus_mean_sum
    scaled_normed_total_minus_mean_sum_plus = (
        norm_bias.to(tl.float32) + scaled_normed_total_minus_mean_sum
    )
    tl.store(
        out_ptr + offs_m * out_strides[0] + all_k * out_strides[1],
        scaled_normed_total_minus_mean_sum_plus.to(out_ptr.dtype.element_ty),
        mask=all_k < K,
    )
    tl.store(
        total_ptr + offs_m * total_strides[0] + all_k * total_strides[1],
        total_tile.to(total_ptr.dtype.element_ty),
        mask=all_k < K,
    )


def layer_norm_residual(x, norm_weight, norm_bias, eps, residual):
    """Return out [M, K] and total [M, K]."""
    M, K = x.shape
    norm_bias = x.new_zeros(()).expand((K,)) if norm_bias is None else norm_bias
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("norm_weight", norm_weight, (K,)),
        ("norm_bias", norm_bias, (K,)),
        ("residual", residual, (M, K)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_K = triton.next_power_of_2(K)
    out = x.new_empty((M, K))
    total = x.new_empty((M, K))
    elements = ALL_K
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (M,)
    tensors = (x, norm_weight, norm_bias, residual, out, total)
    numbers = (eps, M, K, ALL_K)
    _layer_norm_residual[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out, total
