# mirage-kernels generate rms_norm_add
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, K] = addend + rms_norm(x) * (norm_weight + weight_offset)

import triton
import triton.language as tl


@triton.jit
def _rms_norm_add(
    x_ptr,
    norm_weight_ptr,
    addend_ptr,
    out_ptr,
    x_strides,
    norm_weight_strides,
    addend_strides,
    out_strides,
    eps,
    weight_offset,
    M,
    K: tl.constexpr,
    ALL_K: tl.constexpr,
):
    offs_m = tl.program_id(0).to(tl.int64)
    all_k = tl.arange(0, ALL_K).to(tl.int64)
    x_tile = tl.load(x_ptr + offs_m * x_strides[0] + all_k * x_strides[1], mask=all_k < K, other=0)
    x_squared = x_tile.to(tl.float32) * x_tile.to(tl.float32)
    sum_x_squared = tl.sum(x_squared, axis=0)
    mean_x_squared = sum_x_squared / (K * 1.0)
    mean_x_squared_plus_eps = eps + mean_x_squared
    root = tl.sqrt(mean_x_squared_plus_eps)
    addend_tile = tl.load(
        addend_ptr + offs_m * addend_strides[0] + all_k * addend_strides[1], mask=all_k < K, other=0
    )
    norm_weight = tl.load(norm_weight_ptr + all_k * norm_weight_strides[0], mask=all_k < K, other=0)
    weight_offset_plus_norm_weight = norm_weight.to(tl.float32) + weight_offset
    normed_x = x_tile.to(tl.float32) / root
    scaled_normed_x = weight_offset_plus_norm_weight * normed_x
    scaled_normed_x_plus_addend = addend_tile.to(tl.float32) + scaled_normed_x
    tl.store(
        out_ptr + offs_m * out_strides[0] + all_k * out_strides[1],
        scaled_normed_x_plus_addend.to(out_ptr.dtype.element_ty),
        mask=all_k < K,
    )


def rms_norm_add(x, norm_weight, eps, addend, weight_offset=None):
    """Return out [M, K]."""
    M, K = x.shape
    weight_offset = 0.0 if weight_offset is None else weight_offset
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("norm_weight", norm_weight, (K,)),
        ("addend", addend, (M, K)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_K = triton.next_power_of_2(K)
    out = x.new_empty((M, K))
    elements = ALL_K
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (M,)
    tensors = (x, norm_weight, addend, out)
    numbers = (eps, weight_offset, M, K, ALL_K)
    _rms_norm_add[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
