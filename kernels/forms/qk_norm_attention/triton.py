# mirage-kernels generate qk_norm_attention
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [B, Hkv, G, D] = gqa of q and k after rms_norm over D, by their weights plus
#           weight_offset

import triton
import triton.language as tl


@triton.jit
def _qk_norm_attention(
    q_ptr,
    k_ptr,
    v_ptr,
    q_weight_ptr,
    k_weight_ptr,
    seq_lens_ptr,
    out_ptr,
    q_stride_B,
    q_stride_Hkv,
    q_stride_G,
    q_stride_D,
    k_stride_B,
    k_stride_L,
    k_stride_Hkv,
    k_stride_D,
    v_stride_B,
    v_stride_L,
    v_stride_Hkv,
    v_stride_D,
    q_weight_stride_D,
    k_weight_stride_D,
    seq_lens_stride_B,
    out_stride_B,
    out_stride_Hkv,
    out_stride_G,
    out_stride_D,
    scale,
    eps,
    weight_offset,
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
    block = block // Hkv
    offs_b = block
    all_d = tl.arange(0, ALL_D).to(tl.int64)
    q_tile = tl.load(
        q_ptr
        + offs_b * q_stride_B
        + offs_hkv * q_stride_Hkv
        + offs_g[:, None] * q_stride_G
        + all_d[None, :] * q_stride_D,
        mask=(offs_g[:, None] < G) & (all_d[None, :] < D),
        other=0,
    )
    seq_lens_tile = tl.load(seq_lens_ptr + offs_b * seq_lens_stride_B)
    q_squared = tl.sum(q_tile.to(tl.float32) * q_tile.to(tl.float32), axis=1)
    q_weight = tl.load(q_weight_ptr + all_d * q_weight_stride_D, mask=all_d < D, other=0)
    weight_offset_plus_q_weight = q_weight.to(tl.float32) + weight_offset
    k_weight = tl.load(k_weight_ptr + all_d * k_weight_stride_D, mask=all_d < D, other=0)
    weight_offset_plus_k_weight = k_weight.to(tl.float32) + weight_offset
    weight_offset_plus_q_weight_times_weight_offset_plus_k_weight = (
        weight_offset_plus_q_weight * weight_offset_plus_k_weight
    )
    scaled_q = (
        q_tile.to(tl.float32)
        * weight_offset_plus_q_weight_times_weight_offset_plus_k_weight[None, :]
    )
    mean_q_squared = q_squared / (D * 1.0)
    mean_q_squared_plus_eps = eps + mean_q_squared
    root = tl.sqrt(mean_q_squared_plus_eps)
    normed_scaled_q = scaled_q / root[:, None]
    normed_scaled_q = normed_scaled_q.to(q_ptr.dtype.element_ty)
    peak = tl.full((BLOCK_G,), float("-inf"), tl.float32)
    sum_masked_total = tl.full((BLOCK_G,), 0.0, tl.float32)
    masked_product_total = tl.full((BLOCK_G, ALL_D), 0.0, tl.float32)
    for first in range(0, L, STEP_L):
        step_l = first + tl.arange(0, STEP_L).to(tl.int64)
        k_tile = tl.load(
            k_ptr
            + offs_b * k_stride_B
            + step_l[None, :] * k_stride_L
            + offs_hkv * k_stride_Hkv
            + all_d[:, None] * k_stride_D,
            mask=(all_d[:, None] < D) & (step_l[None, :] < L),
            other=0,
        )
        v_tile = tl.load(
            v_ptr
            + offs_b * v_stride_B
            + step_l[None, :] * v_stride_L
            + offs_hkv * v_stride_Hkv
            + all_d[:, None] * v_stride_D,
            mask=(all_d[:, None] < D) & (step_l[None, :] < L),
            other=0,
        )
        k_squared = tl.sum(k_tile.to(tl.float32) * k_tile.to(tl.float32), axis=0)
        normed_scaled_q_product = tl.full((BLOCK_G, STEP_L), 0.0, tl.float32)
        normed_scaled_q_product = tl.dot(normed_scaled_q, k_tile, normed_scaled_q_product)
        mask = tl.where(step_l.to(tl.float32) < seq_lens_tile.to(tl.float32), 1.0, 0.0)
        mean_k_squared = k_squared / (D * 1.0)
        mean_k_squared_plus_eps = eps + mean_k_squared
        root_2 = tl.sqrt(mean_k_squared_plus_eps)
        normed_root_2 = scale / root_2
        scaled_normed_scaled_q_product = normed_scaled_q_product * normed_root_2[None, :]
        seen_scaled_normed_scaled_q_product = tl.where(
            mask[None, :] != 0, scaled_normed_scaled_q_product, float("-inf")
        )
        peak_terms = tl.where(
            step_l[None, :] < L, seen_scaled_normed_scaled_q_product, float("-inf")
        )
        peak_before = peak
        peak = tl.maximum(peak, tl.max(peak_terms, axis=1))
        peak_rescale = tl.where(peak == float("-inf"), 1.0, tl.exp(peak_before - peak))
        lowered_scaled_normed_scaled_q_product = scaled_normed_scaled_q_product - peak[:, None]
        exp = tl.exp(lowered_scaled_normed_scaled_q_product)
        masked = tl.where(mask[None, :] != 0, exp, 0.0)
        masked = tl.where(step_l[None, :] < L, masked, 0.0)
        masked = masked.to(q_ptr.dtype.element_ty)
        sum_masked_total = sum_masked_total * peak_rescale
        sum_masked_total += tl.sum(masked.to(tl.float32), axis=1)
        masked_product_total = masked_product_total * peak_rescale[:, None]
        masked_product_total = tl.dot(masked, tl.permute(v_tile, (1, 0)), masked_product_total)
    peak_last = peak
    combine_sum_masked = tl.where(peak_last == float("-inf"), 0.0, sum_masked_total)
    combine_masked_product = tl.where(
        peak_last[:, None] == float("-inf"), 0.0, masked_product_total
    )
    normed_combine_masked_product = combine_masked_product / combine_sum_masked[:, None]
    tl.store(
        out_ptr
        + offs_b * out_stride_B
        + offs_hkv * out_stride_Hkv
        + offs_g[:, None] * out_stride_G
        + all_d[None, :] * out_stride_D,
        normed_combine_masked_product.to(out_ptr.dtype.element_ty),
        mask=(offs_g[:, None] < G) & (all_d[None, :] < D),
    )


def qk_norm_attention(q, k, v, q_weight, k_weight, seq_lens, scale, eps, weight_offset):
    """Return out [B, Hkv, G, D]."""
    B, Hkv, G, D = q.shape
    L = k.shape[1]
    for name, tensor, shape in (
        ("q", q, (B, Hkv, G, D)),
        ("k", k, (B, L, Hkv, D)),
        ("v", v, (B, L, Hkv, D)),
        ("q_weight", q_weight, (D,)),
        ("k_weight", k_weight, (D,)),
        ("seq_lens", seq_lens, (B,)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_D = max(16, triton.next_power_of_2(D))
    BLOCK_G = max(16, min(128, 16384 // ALL_D, triton.next_power_of_2(G)))
    STEP_L = max(16, min(128, 8192 // max(ALL_D, BLOCK_G), triton.next_power_of_2(L)))
    elements = max(ALL_D * BLOCK_G, BLOCK_G * STEP_L)
    num_warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    out = q.new_empty((B, Hkv, G, D))
    grid = (triton.cdiv(G, BLOCK_G) * Hkv * B,)
    _qk_norm_attention[grid](
        q,
        k,
        v,
        q_weight,
        k_weight,
        seq_lens,
        out,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *q_weight.stride(),
        *k_weight.stride(),
        *seq_lens.stride(),
        *out.stride(),
        scale,
        eps,
        weight_offset,
        B,
        Hkv,
        G,
        L,
        D,
        ALL_D,
        BLOCK_G,
        STEP_L,
        num_warps=num_warps,
    )
    return out
