# mirage-kernels generate qk_layer_norm_attention
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [B, Hkv, G, D] = gqa of layer_norm(q) * q_weight + q_bias and layer_norm(k) * k_weight +
#           k_bias, over D

import triton
import triton.language as tl


@triton.jit
def _qk_layer_norm_attention(
    q_ptr,
    k_ptr,
    v_ptr,
    q_weight_ptr,
    q_bias_ptr,
    k_weight_ptr,
    k_bias_ptr,
    seq_lens_ptr,
    out_ptr,
    q_strides,
    k_strides,
    v_strides,
    q_weight_strides,
    q_bias_strides,
    k_weight_strides,
    k_bias_strides,
    seq_lens_strides,
    out_strides,
    scale,
    eps,
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
    sum_q = tl.sum(q_tile.to(tl.float32), axis=1)
    mean_q = sum_q / (D * 1.0)
    q_minus_mean_q = q_tile.to(tl.float32) - mean_q[:, None]
    terms = tl.where(all_d[None, :] < D, q_minus_mean_q * q_minus_mean_q, 0.0)
    q_minus_mean_q_squared = tl.sum(terms, axis=1)
    mean_q_minus_mean_q_squared = q_minus_mean_q_squared / (D * 1.0)
    mean_q_minus_mean_q_squared_plus = mean_q_minus_mean_q_squared + eps
    root = tl.sqrt(mean_q_minus_mean_q_squared_plus)
    normed_q_minus_mean_q = q_minus_mean_q / root[:, None]
    q_weight_tile = tl.load(
        q_weight_ptr
        + offs_hkv * q_weight_strides[0]
        + offs_g[:, None] * q_weight_strides[1]
        + all_d[None, :] * q_weight_strides[2],
        mask=(offs_g[:, None] < G) & (all_d[None, :] < D),
        other=0,
    )
    scaled_normed_q_minus_mean_q = normed_q_minus_mean_q * q_weight_tile.to(tl.float32)
    q_bias_tile = tl.load(
        q_bias_ptr
        + offs_hkv * q_bias_strides[0]
        + offs_g[:, None] * q_bias_strides[1]
        + all_d[None, :] * q_bias_strides[2],
        mask=(offs_g[:, None] < G) & (all_d[None, :] < D),
        other=0,
    )
    scaled_normed_q_minus_mean_q_plus = scaled_normed_q_minus_mean_q + q_bias_tile.to(tl.float32)
    made = scale * scaled_normed_q_minus_mean_q_plus
    scaled_scaled_normed_q_minus_mean_q_plus = tl.where(all_d[None, :] < D, made, 0.0).to(storage)
    peak = tl.full((BLOCK_G,), -3.4028234663852886e38, tl.float32)
    sum_masked_total = tl.full((BLOCK_G,), 0.0, tl.float32)
    masked_product_total = tl.full((BLOCK_G, ALL_D), 0.0, tl.float32)
    step_l = tl.arange(0, STEP_L).to(tl.int64)
    end = min(L, tl.max(seq_lens_tile - step_l.to(tl.int32)))
    for first in range(0, end, STEP_L):
        step_l = first + tl.arange(0, STEP_L).to(tl.int64)
        v_tile = tl.load(
            v_ptr
            + offs_b * v_strides[0]
            + step_l[None, :] * v_strides[1]
            + offs_hkv * v_strides[2]
            + all_d[:, None] * v_strides[3],
            mask=(all_d[:, None] < D) & (step_l[None, :] < L),
            other=0,
        )
        k_tile = tl.load(
            k_ptr
            + offs_b * k_strides[0]
            + step_l[None, :] * k_strides[1]
            + offs_hkv * k_strides[2]
            + all_d[:, None] * k_strides[3],
            mask=(all_d[:, None] < D) & (step_l[None, :] < L),
            other=0,
        )
        sum_k = tl.sum(k_tile.to(tl.float32), axis=0)
        mean_k = sum_k / (D * 1.0)
        k_minus_mean_k = k_tile.to(tl.float32) - mean_k[None, :]
        step_terms = tl.where(all_d[:, None] < D, k_minus_mean_k * k_minus_mean_k, 0.0)
        k_minus_mean_k_squared = tl.sum(step_terms, axis=0)
        mean_k_minus_mean_k_squared = k_minus_mean_k_squared / (D * 1.0)
        mean_k_minus_mean_k_squared_plus = mean_k_minus_mean_k_squared + eps
        root_2 = tl.sqrt(mean_k_minus_mean_k_squared_plus)
        normed_k_minus_mean_k = k_minus_mean_k / root_2[None, :]
        k_weight_tile = tl.load(
            k_weight_ptr + offs_hkv * k_weight_strides[0] + all_d * k_weight_strides[1],
            mask=all_d < D,
            other=0,
        )
        scaled_normed_k_minus_mean_k = normed_k_minus_mean_k * k_weight_tile.to(tl.float32)[:, None]
        k_bias_tile = tl.load(
            k_bias_ptr + offs_hkv * k_bias_strides[0] + all_d * k_bias_strides[1],
            mask=all_d < D,
            other=0,
        )
        step_made = scaled_normed_k_minus_mean_k + k_bias_tile.to(tl.float32)[:, None]
        scaled_normed_k_minus_mean_k_plus = tl.where(all_d[:, None] < D, step_made, 0.0).to(storage)
        scaled_scaled_normed_q_minus_mean_q_plus_product = tl.dot(
            scaled_scaled_normed_q_minus_mean_q_plus, scaled_normed_k_minus_mean_k_plus
        )
        mask = step_l.to(tl.int32) < seq_lens_tile
        seen_scaled_scaled_normed_q_minus_mean_q_plus_product = tl.where(
            mask[None, :], scaled_scaled_normed_q_minus_mean_q_plus_product, float("-inf")
        )
        step_terms = tl.where(
            step_l[None, :] < L,
            seen_scaled_scaled_normed_q_minus_mean_q_plus_product,
            -3.4028234663852886e38,
        )
        peak_before = peak
        peak = tl.maximum(peak, tl.max(step_terms, axis=1))
        peak_rescale = tl.exp(peak_before - peak)
        lowered_scaled_scaled_normed_q_minus_mean_q_plus_product = (
            scaled_scaled_normed_q_minus_mean_q_plus_product - peak[:, None]
        )
        exp = tl.exp(lowered_scaled_scaled_normed_q_minus_mean_q_plus_product)
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


def qk_layer_norm_attention(q, k, v, q_weight, q_bias, k_weight, k_bias, seq_lens, scale, eps):
    """Return out [B, Hkv, G, D]."""
    B, Hkv, G, D = q.shape
    L = k.shape[1]
    q_bias = q.new_zeros(()).expand((Hkv, G, D)) if q_bias is None else q_bias
    k_bias = q.new_zeros(()).expand((Hkv, D)) if k_bias is None else k_bias
    for name, tensor, shape in (
        ("q", q, (B, Hkv, G, D)),
        ("k", k, (B, L, Hkv, D)),
        ("v", v, (B, L, Hkv, D)),
        ("q_weight", q_weight, (Hkv, G, D)),
        ("q_bias", q_bias, (Hkv, G, D)),
        ("k_weight", k_weight, (Hkv, D)),
        ("k_bias", k_bias, (Hkv, D)),
        ("seq_lens", seq_lens, (B,)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_D = max(16, triton.next_power_of_2(D))
    BLOCK_G = max(16, min(128, 16384 // ALL_D, triton.next_power_of_2(G)))
    STEP_L = max(16, min(128, 8192 // max(ALL_D, BLOCK_G), triton.next_power_of_2(L)))
    out = q.new_empty((B, Hkv, G, D))
    elements = max(ALL_D * BLOCK_G, ALL_D * STEP_L, BLOCK_G * STEP_L)
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(G, BLOCK_G) * Hkv * B,)
    tensors = (q, k, v, q_weight, q_bias, k_weight, k_bias, seq_lens, out)
    numbers = (scale, eps, B, Hkv, G, L, D, ALL_D, BLOCK_G, STEP_L)
    _qk_layer_norm_attention[grid](
        *tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps
    )
    return out
