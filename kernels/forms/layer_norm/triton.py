# mirage-kernels generate layer_norm
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, K] = layer_norm(x, eps) * norm_weight + norm_bias

import triton
import triton.language as tl


@triton.jit
def _layer_norm(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    out_ptr,
    x_strides,
    norm_weight_strides,
    norm_bias_strides,
    out_strides,
    eps,
    M,
    K: tl.constexpr,
    ALL_K: tl.constexpr,
):
    offs_m = tl.program_id(0).to(tl.int64)
    all_k = tl.arange(0, ALL_K).to(tl.int64)
    x_tile = tl.load(x_ptr + offs_m * x_strides[0] + all_k * x_strides[1], mask=all_k < K, other=0)
    sum_x = tl.sum(x_tile.to(tl.float32), axis=0)
    mean_x = sum_x / (K * 1.0)
    x_minus_mean_x = x_tile.to(tl.float32) - mean_x
    x_minus_mean_x_squared = x_minus_mean_x * x_minus_mean_x
    terms = tl.where(all_k < K, x_minus_mean_x_squared, 0.0)
    sum_x_minus_mean_x_squared = tl.sum(terms, axis=0)
    mean_x_minus_mean_x_squared = sum_x_minus_mean_x_squared / (K * 1.0)
    mean_x_minus_mean_x_squared_plus = eps + mean_x_minus_mean_x_squared
    root = tl.sqrt(mean_x_minus_mean_x_squared_plus)
    norm_bias = tl.load(norm_bias_ptr + all_k * norm_bias_strides[0], mask=all_k < K, other=0)
    norm_weight = tl.load(norm_weight_ptr + all_k * norm_weight_strides[0], mask=all_k < K, other=0)
    normed_x_minus_mean_x = x_minus_mean_x / root
    scaled_normed_x_minus_mean_x = norm_weight.to(tl.float32) * normed_x_minus_mean_x
    scaled_normed_x_minus_mean_x_plus = norm_bias.to(tl.float32) + scaled_normed_x_minus_mean_x
    tl.store(
        out_ptr + offs_m * out_strides[0] + all_k * out_strides[1],
        scaled_normed_x_minus_mean_x_plus.to(out_ptr.dtype.element_ty),
        mask=all_k < K,
    )


def layer_norm(x, norm_weight, norm_bias, eps):
    """Return out [M, K]."""
    M, K = x.shape
    norm_bias = x.new_zeros(()).expand((K,)) if norm_bias is None else norm_bias
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("norm_weight", norm_weight, (K,)),
        ("norm_bias", norm_bias, (K,)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_K = triton.next_power_of_2(K)
    out = x.new_empty((M, K))
    elements = ALL_K
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (M,)
    tensors = (x, norm_weight, norm_bias, out)
    numbers = (eps, M, K, ALL_K)
    _layer_norm[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
