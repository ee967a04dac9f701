# mirage-kernels generate ntrans
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, K] = norm(h + alpha * (norm(x) - h)), where norm(x) = x / sqrt(sum(x^2))

import triton
import triton.language as tl


@triton.jit
def _ntrans(
    h_ptr,
    x_ptr,
    alpha_ptr,
    out_ptr,
    h_strides,
    x_strides,
    alpha_strides,
    out_strides,
    M,
    K: tl.constexpr,
    ALL_K: tl.constexpr,
):
    offs_m = tl.program_id(0).to(tl.int64)
    all_k = tl.arange(0, ALL_K).to(tl.int64)
    h_tile = tl.load(h_ptr + offs_m * h_strides[0] + all_k * h_strides[1], mask=all_k < K, other=0)
    x_tile = tl.load(x_ptr + offs_m * x_strides[0] + all_k * x_strides[1], mask=all_k < K, other=0)
    alpha = tl.load(alpha_ptr + all_k * alpha_strides[0], mask=all_k < K, other=0)
    x_squared = x_tile.to(tl.float32) * x_tile.to(tl.float32)
    sum_x_squared = tl.sum(x_squared, axis=0)
    root_sum_x_squared = tl.sqrt(sum_x_squared)
    normed_x = x_tile.to(tl.float32) / root_sum_x_squared
    normed_x_minus_h = normed_x - h_tile.to(tl.float32)
    scaled_normed_x_minus_h = alpha.to(tl.float32) * normed_x_minus_h
    scaled_normed_x_minus_h_plus = h_tile.to(tl.float32) + scaled_normed_x_minus_h
    scaled_normed_x_minus_h_plus_squared = (
        scaled_normed_x_minus_h_plus * scaled_normed_x_minus_h_plus
    )
    terms = tl.where(all_k < K, scaled_normed_x_minus_h_plus_squared, 0.0)
    sum_scaled_normed_x_minus_h_plus_squared = tl.sum(terms, axis=0)
    root = tl.sqrt(sum_scaled_normed_x_minus_h_plus_squared)
    normed_scaled_normed_x_minus_h_plus = scaled_normed_x_minus_h_plus / root
    tl.store(
        out_ptr + offs_m * out_strides[0] + all_k * out_strides[1],
        normed_scaled_normed_x_minus_h_plus.to(out_ptr.dtype.element_ty),
        mask=all_k < K,
    )


def ntrans(h, x, alpha):
    """Return out [M, K]."""
    M, K = h.shape
    for name, tensor, shape in (
        ("h", h, (M, K)),
        ("x", x, (M, K)),
        ("alpha", alpha, (K,)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_K = triton.next_power_of_2(K)
    out = h.new_empty((M, K))
    elements = ALL_K
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (M,)
    tensors = (h, x, alpha, out)
    numbers = (M, K, ALL_K)
    _ntrans[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
