# mirage-kernels generate rms_norm_gated_mlp_residual
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, N] = silu(linear(rms_norm(total), gate_weight)) * linear(rms_norm(total),
#           up_weight); total = x + residual

import triton
import triton.language as tl


@triton.jit
def _rms_norm_gated_mlp_residual(
    x_ptr,
    norm_weight_ptr,
    gate_weight_ptr,
    up_weight_ptr,
    residual_ptr,
    out_ptr,
    total_ptr,
    x_strides,
    norm_weight_strides,
    gate_weight_strides,
    up_weight_strides,
    residual_strides,
    out_strides,
    total_strides,
    eps,
    M,
    K: tl.constexpr,
    N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEP_K: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_m = block % tl.cdiv(M, BLOCK_M) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = block // tl.cdiv(M, BLOCK_M) * BLOCK_N + tl.arange(0, BLOCK_N)
    storage = x_ptr.dtype.element_ty
    total_squared_total = tl.full((BLOCK_M,), 0.0, tl.float32)
    scaled_product_total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    scaled_product_2_total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for first in range(0, K, STEP_K):
        step_k = first + tl.arange(0, STEP_K).to(tl.int64)
        up_weight_tile = tl.load(
            up_weight_ptr
            + offs_n[None, :] * up_weight_strides[0]
            + step_k[:, None] * up_weight_strides[1],
            mask=(step_k[:, None] < K) & (offs_n[None, :] < N),
            other=0,
        )
        gate_weight_tile = tl.load(
            gate_weight_ptr
            + offs_n[None, :] * gate_weight_strides[0]
            + step_k[:, None] * gate_weight_strides[1],
            mask=(step_k[:, None] < K) & (offs_n[None, :] < N),
            other=0,
        )
        x_tile = tl.load(
            x_ptr + offs_m[:, None] * x_strides[0] + step_k[None, :] * x_strides[1],
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
            other=0,
        )
        norm_weight_tile = tl.load(
            norm_weight_ptr + step_k * norm_weight_strides[0], mask=step_k < K, other=0
        )
        residual_tile = tl.load(
            residual_ptr
            + offs_m[:, None] * residual_strides[0]
            + step_k[None, :] * residual_strides[1],
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
            other=0,
        )
        total_tile = x_tile.to(tl.float32) + residual_tile.to(tl.float32)
        total_tile = total_tile.to(storage).to(tl.float32)
        step_terms = tl.where(step_k[None, :] < K, total_tile * total_tile, 0.0)
        total_squared_total += tl.sum(step_terms, axis=1)
        step_made = norm_weight_tile.to(tl.float32)[None, :] * total_tile
        scaled_total = step_made.to(storage)
        scaled_product_total = tl.dot(scaled_total, up_weight_tile, scaled_product_total)
        scaled_product_2_total = tl.dot(scaled_total, gate_weight_tile, scaled_product_2_total)
        tl.store(
            total_ptr + offs_m[:, None] * total_strides[0] + step_k[None, :] * total_strides[1],
            total_tile.to(total_ptr.dtype.element_ty),
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
        )
    mean_total_squared = total_squared_total / (K * 1.0)
    mean_total_squared_plus_eps = eps + mean_total_squared
    root = tl.sqrt(mean_total_squared_plus_eps)
    normed_scaled_product = scaled_product_total / root[:, None]
    normed_scaled_product_2 = scaled_product_2_total / root[:, None]
    silu = normed_scaled_product_2 * tl.sigmoid(normed_scaled_product_2)
    normed_scaled_product_times_silu = normed_scaled_product * silu
    tl.store(
        out_ptr + offs_m[:, None] * out_strides[0] + offs_n[None, :] * out_strides[1],
        normed_scaled_product_times_silu.to(out_ptr.dtype.element_ty),
        mask=(offs_m[:, None] < M) & (offs_n[None, :] < N),
    )


def rms_norm_gated_mlp_residual(x, norm_weight, gate_weight, up_weight, eps, residual):
    """Return out [M, N] and total [M, K]."""
    M, K = x.shape
    N = gate_weight.shape[0]
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("norm_weight", norm_weight, (K,)),
        ("gate_weight", gate_weight, (N, K)),
        ("up_weight", up_weight, (N, K)),
        ("residual", residual, (M, K)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    BLOCK_M = max(16, min(128, triton.next_power_of_2(M)))
    BLOCK_N = max(16, min(64, triton.next_power_of_2(N)))
    STEP_K = max(16, min(128, 8192 // max(BLOCK_M, BLOCK_N), triton.next_power_of_2(K)))
    out = x.new_empty((M, N))
    total = x.new_empty((M, K))
    elements = max(BLOCK_M * BLOCK_N, BLOCK_M * STEP_K)
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N),)
    tensors = (x, norm_weight, gate_weight, up_weight, residual, out, total)
    numbers = (eps, M, K, N, BLOCK_M, BLOCK_N, STEP_K)
    _rms_norm_gated_mlp_residual[grid](
        *tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps
    )
    return out, total
