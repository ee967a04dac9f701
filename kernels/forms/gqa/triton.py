# mirage-kernels generate gqa
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [B, Hkv, G, D] = softmax(scale * q k^T) v over the first seq_lens keys of each sequence

import triton
import triton.language as tl


@triton.jit
def _gqa(
    q_ptr,
    k_ptr,
    v_ptr,
    seq_lens_ptr,
    out_ptr,
    q_strides,
    k_strides,
    v_strides,
    seq_lens_strides,
    out_strides,
    scale,
    B,
    Hkv,
    G,
    L,
    D: tl.constexpr,
    ALL_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    STEP_L: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_g = block % tl.cdiv(G, BLOCK_G) * BLOCK_G + tl.arange(0, BLOCK_G)
    block = block // tl.cdiv(G, BLOCK_G)
    offs_hkv = block % Hkv
    offs_b = block // Hkv
    all_d = tl.arange(0, ALL_D).to(tl.int64)
    storage = q_ptr.dtype.element_ty
    q_tile = tl.load(
        q_ptr
        + offs_b * q_strides[0]
        + offs_hkv * q_strides[1]
        + offs_g[:, None] * q_strides[2]
        + all_d[None, :] * q_strides[3],
        mask=(offs_g[:, None] < G) & (all_d[None, :] < D),
        other=0,
    )
    seq_lens_tile = tl.load(seq_lens_ptr + offs_b * seq_lens_strides[0])
    peak = tl.full((BLOCK_G,), -3.4028234663852886e38, tl.float32)
    sum_masked_total = tl.full((BLOCK_G,), 0.0, tl.float32)
    masked_product_total = tl.full((BLOCK_G, ALL_D), 0.0, tl.float32)
    step_l = tl.arange(0, STEP_L).to(tl.int64)
    end = min(L, tl.max(seq_lens_tile - step_l.to(tl.int32)))
    for first in range(0, end, STEP_L):
        step_l = first + tl.arange(0, STEP_L).to(tl.int64)
        k_tile = tl.load(
            k_ptr
            + offs_b * k_strides[0]
            + step_l[None, :] * k_strides[1]
            + offs_hkv * k_strides[2]
            + all_d[:, None] * k_strides[3],
            mask=(all_d[:, None] < D) & (step_l[None, :] < L),
            other=0,
        )
        v_tile = tl.load(
            v_ptr
            + offs_b * v_strides[0]
            + step_l[None, :] * v_strides[1]
            + offs_hkv * v_strides[2]
            + all_d[:, None] * v_strides[3],
            mask=(all_d[:, None] < D) & (step_l[None, :] < L),
            other=0,
        )
        k_product = tl.dot(q_tile, k_tile)
        mask = step_l.to(tl.int32) < seq_lens_tile
        scaled_k_product = scale * k_product
        seen_scaled_k_product = tl.where(mask[None, :], scaled_k_product, float("-inf"))
        step_terms = tl.where(step_l[None, :] < L, seen_scaled_k_product, -3.4028234663852886e38)
        peak_before = peak
        peak = tl.maximum(peak, tl.max(step_terms, axis=1))
        peak_rescale = tl.exp(peak_before - peak)
        lowered_scaled_k_product = scaled_k_product - peak[:, None]
        exp_scaled_k_product = tl.exp(lowered_scaled_k_product)
        step_made = tl.where(mask[None, :], exp_scaled_k_product, 0.0)
        masked = tl.where(step_l[None, :] < L, step_made, 0.0).to(storage)
        sum_masked_total = sum_masked_total * peak_rescale + tl.sum(masked.to(tl.float32), axis=1)
        masked_product_total = masked_product_total * peak_rescale[:, None]
        masked_product_total = tl.dot(masked, tl.permute(v_tile, (1, 0)), masked_product_total)
    normed_combine_masked_product = masked_product_total / sum_masked_total[:, None]
    tl.store(
        out_ptr
        + offs_b * out_strides[0]
        + offs_hkv * out_strides[1]
        + offs_g[:, None] * out_strides[2]
        + all_d[None, :] * out_strides[3],
        normed_combine_masked_product.to(out_ptr.dtype.element_ty),
        mask=(offs_g[:, None] < G) & (all_d[None, :] < D),
    )


def gqa(q, k, v, seq_lens, scale):
    """Return out [B, Hkv, G, D]."""
    B, Hkv, G, D = q.shape
    L = k.shape[1]
    for name, tensor, shape in (
        ("q", q, (B, Hkv, G, D)),
        ("k", k, (B, L, Hkv, D)),
        ("v", v, (B, L, Hkv, D)),
        ("seq_lens", seq_lens, (B,)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_D = max(16, triton.next_power_of_2(D))
    BLOCK_G = max(16, min(128, 16384 // ALL_D, triton.next_power_of_2(G)))
    STEP_L = max(16, min(128, 8192 // max(ALL_D, BLOCK_G), triton.next_power_of_2(L)))
    out = q.new_empty((B, Hkv, G, D))
    elements = max(ALL_D * BLOCK_G, BLOCK_G * STEP_L)
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(G, BLOCK_G) * Hkv * B,)
    tensors = (q, k, v, seq_lens, out)
    numbers = (scale, B, Hkv, G, L, D, ALL_D, BLOCK_G, STEP_L)
    _gqa[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
