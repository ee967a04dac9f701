# mirage-kernels generate sliding_window_attention
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [B, T, Hkv, G, D] = softmax(scale * q k^T) v, each query token over the last `window`
#           keys up to its own

import triton
import triton.language as tl


@triton.jit
def _sliding_window_attention(
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
    window,
    scale,
    B,
    T,
    Hkv,
    G,
    L,
    D: tl.constexpr,
    ALL_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STEP_L: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_g = block % tl.cdiv(G, BLOCK_G) * BLOCK_G + tl.arange(0, BLOCK_G)
    block = block // tl.cdiv(G, BLOCK_G)
    offs_hkv = block % Hkv
    block = block // Hkv
    offs_t = block % tl.cdiv(T, BLOCK_T) * BLOCK_T + tl.arange(0, BLOCK_T)
    offs_b = block // tl.cdiv(T, BLOCK_T)
    all_d = tl.arange(0, ALL_D).to(tl.int64)
    storage = q_ptr.dtype.element_ty
    q_tile = tl.load(
        q_ptr
        + offs_b * q_strides[0]
        + offs_t[:, None, None] * q_strides[1]
        + offs_hkv * q_strides[2]
        + offs_g[None, :, None] * q_strides[3]
        + all_d[None, None, :] * q_strides[4],
        mask=(offs_t[:, None, None] < T) & (offs_g[None, :, None] < G) & (all_d[None, None, :] < D),
        other=0,
    )
    seq_lens_tile = tl.load(seq_lens_ptr + offs_b * seq_lens_strides[0])
    peak = tl.full((BLOCK_T, BLOCK_G), -3.4028234663852886e38, tl.float32)
    sum_masked_total = tl.full((BLOCK_T, BLOCK_G), 0.0, tl.float32)
    masked_product_total = tl.full((BLOCK_T, BLOCK_G, ALL_D), 0.0, tl.float32)
    step_l = tl.arange(0, STEP_L).to(tl.int64)
    int_1_minus_int_size_T = 1 - T
    int_1_minus_int_size_T_plus = seq_lens_tile + int_1_minus_int_size_T
    int_1_minus_int_size_T_plus_plus = offs_t.to(tl.int32) + int_1_minus_int_size_T_plus
    end = min(L, tl.max(int_1_minus_int_size_T_plus_plus[:, None] - step_l.to(tl.int32)[None, :]))
    seq_lens_minus_int_size_T = seq_lens_tile - T
    seq_lens_minus_int_size_T_plus = offs_t.to(tl.int32) + seq_lens_minus_int_size_T
    position_L_plus_window = window + step_l.to(tl.int32)
    seen = tl.max(position_L_plus_window[None, :] - seq_lens_minus_int_size_T_plus[:, None])
    start = max(0, (STEP_L - seen) // STEP_L * STEP_L)
    for first in range(start, end, STEP_L):
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
        k_product_step = tl.dot(tl.reshape(q_tile, (BLOCK_T * BLOCK_G, ALL_D)), k_tile)
        k_product = tl.reshape(k_product_step, (BLOCK_T, BLOCK_G, STEP_L))
        int_1_minus_int_size_T = 1 - T
        int_1_minus_int_size_T_plus = seq_lens_tile + int_1_minus_int_size_T
        int_1_minus_int_size_T_plus_plus = offs_t.to(tl.int32) + int_1_minus_int_size_T_plus
        mask = step_l.to(tl.int32)[None, :] < int_1_minus_int_size_T_plus_plus[:, None]
        seq_lens_minus_int_size_T = seq_lens_tile - T
        seq_lens_minus_int_size_T_plus = offs_t.to(tl.int32) + seq_lens_minus_int_size_T
        position_L_plus_window = window + step_l.to(tl.int32)
        mask_2 = seq_lens_minus_int_size_T_plus[:, None] < position_L_plus_window[None, :]
        mask_3 = mask & mask_2
        scaled_k_product = scale * k_product
        seen_scaled_k_product = tl.where(mask_3[:, None, :], scaled_k_product, float("-inf"))
        step_terms = tl.where(
            step_l[None, None, :] < L, seen_scaled_k_product, -3.4028234663852886e38
        )
        peak_before = peak
        peak = tl.maximum(peak, tl.max(step_terms, axis=2))
        peak_rescale = tl.exp(peak_before - peak)
        lowered_scaled_k_product = scaled_k_product - peak[:, :, None]
        exp_scaled_k_product = tl.exp(lowered_scaled_k_product)
        step_made = tl.where(mask_3[:, None, :], exp_scaled_k_product, 0.0)
        masked = tl.where(step_l[None, None, :] < L, step_made, 0.0).to(storage)
        sum_masked_total = sum_masked_total * peak_rescale + tl.sum(masked.to(tl.float32), axis=2)
        masked_product_total = masked_product_total * peak_rescale[:, :, None]
        masked_product_total_step = tl.dot(
            tl.reshape(masked, (BLOCK_T * BLOCK_G, STEP_L)), tl.permute(v_tile, (1, 0))
        )
        masked_product_total += tl.reshape(masked_product_total_step, (BLOCK_T, BLOCK_G, ALL_D))
    normed_combine_masked_product = masked_product_total / sum_masked_total[:, :, None]
    tl.store(
        out_ptr
        + offs_b * out_strides[0]
        + offs_t[:, None, None] * out_strides[1]
        + offs_hkv * out_strides[2]
        + offs_g[None, :, None] * out_strides[3]
        + all_d[None, None, :] * out_strides[4],
        normed_combine_masked_product.to(out_ptr.dtype.element_ty),
        mask=(offs_t[:, None, None] < T) & (offs_g[None, :, None] < G) & (all_d[None, None, :] < D),
    )


def sliding_window_attention(q, k, v, seq_lens, window, scale):
    """Return out [B, T, Hkv, G, D]."""
    B, T, Hkv, G, D = q.shape
    L = k.shape[1]
    for name, tensor, shape in (
        ("q", q, (B, T, Hkv, G, D)),
        ("k", k, (B, L, Hkv, D)),
        ("v", v, (B, L, Hkv, D)),
        ("seq_lens", seq_lens, (B,)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_D = max(16, triton.next_power_of_2(D))
    BLOCK_G = max(1, min(128, 16384 // ALL_D, triton.next_power_of_2(G)))
    BLOCK_T = max(
        16 // BLOCK_G, min(128 // BLOCK_G, 16384 // ALL_D // BLOCK_G, triton.next_power_of_2(T))
    )
    STEP_L = max(16, min(128, 8192 // max(ALL_D, BLOCK_G * BLOCK_T), triton.next_power_of_2(L)))
    out = q.new_empty((B, T, Hkv, G, D))
    elements = max(ALL_D * BLOCK_G * BLOCK_T, BLOCK_G * BLOCK_T * STEP_L)
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(G, BLOCK_G) * Hkv * triton.cdiv(T, BLOCK_T) * B,)
    tensors = (q, k, v, seq_lens, out)
    numbers = (window, scale, B, T, Hkv, G, L, D, ALL_D, BLOCK_G, BLOCK_T, STEP_L)
    _sliding_window_attention[grid](
        *tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps
    )
    return out
