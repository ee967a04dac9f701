# mirage-kernels generate lora_linear
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)

import triton
import triton.language as tl


@triton.jit
def _lora_linear(
    x_ptr,
    weight_ptr,
    lora_a_ptr,
    lora_b_ptr,
    out_ptr,
    x_strides,
    weight_strides,
    lora_a_strides,
    lora_b_strides,
    out_strides,
    scale,
    M,
    K: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    ALL_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEP_K: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_n = block % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = block // tl.cdiv(N, BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    all_r = tl.arange(0, ALL_R).to(tl.int64)
    storage = x_ptr.dtype.element_ty
    lora_b_tile = tl.load(
        lora_b_ptr + offs_n[:, None] * lora_b_strides[0] + all_r[None, :] * lora_b_strides[1],
        mask=(offs_n[:, None] < N) & (all_r[None, :] < R),
        other=0,
    )
    weight_product_total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    lora_a_product_total = tl.full((BLOCK_M, ALL_R), 0.0, tl.float32)
    for first in range(0, K, STEP_K):
        step_k = first + tl.arange(0, STEP_K).to(tl.int64)
        x_tile = tl.load(
            x_ptr + offs_m[:, None] * x_strides[0] + step_k[None, :] * x_strides[1],
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
            other=0,
        )
        weight_tile = tl.load(
            weight_ptr + offs_n[None, :] * weight_strides[0] + step_k[:, None] * weight_strides[1],
            mask=(step_k[:, None] < K) & (offs_n[None, :] < N),
            other=0,
        )
        lora_a_tile = tl.load(
            lora_a_ptr + all_r[None, :] * lora_a_strides[0] + step_k[:, None] * lora_a_strides[1],
            mask=(step_k[:, None] < K) & (all_r[None, :] < R),
            other=0,
        )
        weight_product_total = tl.dot(x_tile, weight_tile, weight_product_total)
        lora_a_product_total = tl.dot(x_tile, lora_a_tile, lora_a_product_total)
    lora_a_product_total = lora_a_product_total.to(storage)
    lora_a_product_product = tl.dot(lora_a_product_total, tl.permute(lora_b_tile, (1, 0)))
    scaled_lora_a_product_product = scale * lora_a_product_product
    scaled_lora_a_product_product_plus = weight_product_total + scaled_lora_a_product_product
    tl.store(
        out_ptr + offs_m[:, None] * out_strides[0] + offs_n[None, :] * out_strides[1],
        scaled_lora_a_product_product_plus.to(out_ptr.dtype.element_ty),
        mask=(offs_m[:, None] < M) & (offs_n[None, :] < N),
    )


def lora_linear(x, weight, lora_a, lora_b, scale):
    """Return out [M, N]."""
    M, K = x.shape
    N = weight.shape[0]
    R = lora_a.shape[0]
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("weight", weight, (N, K)),
        ("lora_a", lora_a, (R, K)),
        ("lora_b", lora_b, (N, R)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_R = max(16, triton.next_power_of_2(R))
    BLOCK_M = max(16, min(128, 16384 // ALL_R, triton.next_power_of_2(M)))
    BLOCK_N = max(16, min(64, 16384 // ALL_R, triton.next_power_of_2(N)))
    STEP_K = max(16, min(128, 8192 // max(ALL_R, BLOCK_M, BLOCK_N), triton.next_power_of_2(K)))
    out = x.new_empty((M, N))
    elements = max(ALL_R * BLOCK_M, BLOCK_M * BLOCK_N)
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(N, BLOCK_N) * triton.cdiv(M, BLOCK_M),)
    tensors = (x, weight, lora_a, lora_b, out)
    numbers = (scale, M, K, N, R, ALL_R, BLOCK_M, BLOCK_N, STEP_K)
    _lora_linear[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
