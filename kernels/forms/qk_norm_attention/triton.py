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
    q_strides,
    k_strides,
    v_strides,
    q_weight_strides,
    k_weight_strides,
    seq_lens_strides,
    out_strides,
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
    q_squared = tl.sum(q_tile.to(tl.float32) * q_tile.to(tl.float32), axis=1)
    mean_q_squared = q_squared / (D * 1.0)
    mean_q_squared_plus_eps = eps + mean_q_squared
    root = tl.sqrt(mean_q_squared_plus_eps)
    q_weight = tl.load(q_weight_ptr + all_d * q_weight_strides[0], mask=all_d < D, other=0)
    weight_offset_plus_q_weight = q_weight.to(tl.float32) + weight_offset
    k_weight = tl.load(k_weight_ptr + all_d * k_weight_strides[0], mask=all_d < D, other=0)
    weight_offset_plus_k_weight = k_weight.to(tl.float32) + weight_offset
    weight_offset_plus_q_weight_times_weight_offset_plus_k_weight = (
        weight_offset_plus_q_weight * weight_offset_plus_k_weight
    )
    scaled_q = (
        q_tile.to(tl.float32)
        * weight_offset_plus_q_weight_times_weight_offset_plus_k_weight[None, :]
    )
    made = scaled_q / root[:, None]
    normed_scaled_q = made.to(storage)
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
        k_squared = tl.sum(k_tile.to(tl.float32) * k_tile.to(tl.float32), axis=0)
        normed_scaled_q_product = tl.dot(normed_scaled_q, k_tile)
        mean_k_squared = k_squared / (D * 1.0)
        mean_k_squared_plus_eps = eps + mean_k_squared
        root_2 = tl.sqrt(mean_k_squared_plus_eps)
        normed_root_2 = scale / root_2
        mask = step_l.to(tl.int32) < seq_lens_tile
        scaled_normed_scaled_q_product = normed_scaled_q_product * normed_root_2[None, :]
        seen_scaled_normed_scaled_q_product = tl.where(
            mask[None, :], scaled_normed_scaled_q_product, float("-inf")
        )
        step_terms = tl.where(
            step_l[None, :] < L, seen_scaled_normed_scaled_q_product, -3.4028234663852886e38
        )
        peak_before = peak
        peak = tl.maximum(peak, tl.max(step_terms, axis=1))
        peak_rescale = tl.exp(peak_before - peak)
        lowered_scaled_normed_scaled_q_product = scaled_normed_scaled_q_product - peak[:, None]
        exp = tl.exp(lowered_scaled_normed_scaled_q_product)
        step_made = tl.where(mask[None, :], exp, 0.0)
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
    out = q.new_empty((B, Hkv, G, D))
    elements = max(ALL_D * BLOCK_G, BLOCK_G * STEP_L)
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(G, BLOCK_G) * Hkv * B,)
    tensors = (q, k, v, q_weight, k_weight, seq_lens, out)
    numbers = (scale, eps, weight_offset, B, Hkv, G, L, D, ALL_D, BLOCK_G, STEP_L)
    _qk_norm_attention[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
