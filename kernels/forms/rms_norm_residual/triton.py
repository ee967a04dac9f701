# mirage-kernels generate rms_norm_residual
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, K] = rms_norm(total) * (norm_weight + weight_offset); total = x + residual

import triton
import triton.language as tl


@triton.jit
def _rms_norm_residual(
    x_ptr,
    norm_weight_ptr,
    residual_ptr,
    out_ptr,
    total_ptr,
    x_strides,
    norm_weight_strides,
    residual_strides,
    out_strides,
    total_strides,
    eps,
    weight_offset,
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
    total_squared = total_tile * total_tile
    terms = tl.where(all_k < K, total_squared, 0.0)
    sum_total_squared = tl.sum(terms, axis=0)
    mean_total_squared = sum_total_squared / (K * 1.0)
    mean_total_squared_plus_eps = eps + mean_total_squared
    root = tl.sqrt(mean_total_squared_plus_eps)
    norm_weight = tl.load(norm_weight_ptr + all_k * norm_weight_strides[0], mask=all_k < K, other=0)
    weight_offset_plus_norm_weight = norm_weight.to(tl.float32) + weight_offset
    normed_total = total_tile / root
    scaled_normed = weight_offset_plus_norm_weight * normed_total
    tl.store(
        out_ptr + offs_m * out_strides[0] + all_k * out_strides[1],
        scaled_normed.to(out_ptr.dtype.element_ty),
        mask=all_k < K,
    )
    tl.store(
        total_ptr + offs_m * total_strides[0] + all_k * total_strides[1],
        total_tile.to(total_ptr.dtype.element_ty),
        mask=all_k < K,
    )


def rms_norm_residual(x, norm_weight, eps, residual, weight_offset=None):
    """Return out [M, K] and total [M, K]."""
    M, K = x.shape
    weight_offset = 0.0 if weight_offset is None else weight_offset
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("norm_weight", norm_weight, (K,)),
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
    tensors = (x, norm_weight, residual, out, total)
    numbers = (eps, weight_offset, M, K, ALL_K)
    _rms_norm_residual[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out, total
