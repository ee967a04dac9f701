# mirage-kernels generate mla_decode
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [B, Hq, C] = softmax(scale * (q_latent latent^T + q_rope k_rope^T)) latent over the
#           first seq_lens

import triton
import triton.language as tl


@triton.jit
def _mla_decode(
    q_latent_ptr,
    q_rope_ptr,
    latent_ptr,
    k_rope_ptr,
    seq_lens_ptr,
    out_ptr,
    q_latent_strides,
    q_rope_strides,
    latent_strides,
    k_rope_strides,
    seq_lens_strides,
    out_strides,
    scale,
    B,
    Hq,
    L,
    C: tl.constexpr,
    P: tl.constexpr,
    ALL_C: tl.constexpr,
    ALL_P: tl.constexpr,
    BLOCK_Hq: tl.constexpr,
    STEP_L: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_hq = block % tl.cdiv(Hq, BLOCK_Hq) * BLOCK_Hq + tl.arange(0, BLOCK_Hq)
    offs_b = block // tl.cdiv(Hq, BLOCK_Hq)
    all_c = tl.arange(0, ALL_C).to(tl.int64)
    all_p = tl.arange(0, ALL_P).to(tl.int64)
    storage = q_latent_ptr.dtype.element_ty
    q_rope_tile = tl.load(
        q_rope_ptr
        + offs_b * q_rope_strides[0]
        + offs_hq[:, None] * q_rope_strides[1]
        + all_p[None, :] * q_rope_strides[2],
        mask=(offs_hq[:, None] < Hq) & (all_p[None, :] < P),
        other=0,
    )
    q_latent_tile = tl.load(
        q_latent_ptr
        + offs_b * q_latent_strides[0]
        + offs_hq[:, None] * q_latent_strides[1]
        + all_c[None, :] * q_latent_strides[2],
        mask=(offs_hq[:, None] < Hq) & (all_c[None, :] < C),
        other=0,
    )
    seq_lens_tile = tl.load(seq_lens_ptr + offs_b * seq_lens_strides[0])
    peak = tl.full((BLOCK_Hq,), -3.4028234663852886e38, tl.float32)
    sum_masked_total = tl.full((BLOCK_Hq,), 0.0, tl.float32)
    masked_product_total = tl.full((BLOCK_Hq, ALL_C), 0.0, tl.float32)
    step_l = tl.arange(0, STEP_L).to(tl.int64)
    end = min(L, tl.max(seq_lens_tile - step_l.to(tl.int32)))
    for first in range(0, end, STEP_L):
        step_l = first + tl.arange(0, STEP_L).to(tl.int64)
        k_rope_tile = tl.load(
            k_rope_ptr
            + offs_b * k_rope_strides[0]
            + step_l[None, :] * k_rope_strides[1]
            + all_p[:, None] * k_rope_strides[2],
            mask=(all_p[:, None] < P) & (step_l[None, :] < L),
            other=0,
        )
        latent_tile = tl.load(
            latent_ptr
            + offs_b * latent_strides[0]
            + step_l[None, :] * latent_strides[1]
            + all_c[:, None] * latent_strides[2],
            mask=(all_c[:, None] < C) & (step_l[None, :] < L),
            other=0,
        )
        k_rope_product = tl.dot(q_rope_tile, k_rope_tile)
        latent_product = tl.dot(q_latent_tile, latent_tile)
        mask = step_l.to(tl.int32) < seq_lens_tile
        latent_product_plus_k_rope_product = latent_product + k_rope_product
        scaled_latent_product_plus_k_rope_product = scale * latent_product_plus_k_rope_product
        seen_scaled_latent_product_plus_k_rope_product = tl.where(
            mask[None, :], scaled_latent_product_plus_k_rope_product, float("-inf")
        )
        step_terms = tl.where(
            step_l[None, :] < L,
            seen_scaled_latent_product_plus_k_rope_product,
            -3.4028234663852886e38,
        )
        peak_before = peak
        peak = tl.maximum(peak, tl.max(step_terms, axis=1))
        peak_rescale = tl.exp(peak_before - peak)
        lowered_scaled_latent_product_plus_k_rope_product = (
            scaled_latent_product_plus_k_rope_product - peak[:, None]
        )
        exp = tl.exp(lowered_scaled_latent_product_plus_k_rope_product)
        step_made = tl.where(mask[None, :], exp, 0.0)
        masked = tl.where(step_l[None, :] < L, step_made, 0.0).to(storage)
        sum_masked_total = sum_masked_total * peak_rescale + tl.sum(masked.to(tl.float32), axis=1)
        masked_product_total = masked_product_total * peak_rescale[:, None]
        masked_product_total = tl.dot(masked, tl.permute(latent_tile, (1, 0)), masked_product_total)
    normed_combine_masked_product = masked_product_total / sum_masked_total[:, None]
    tl.store(
        out_ptr
        + offs_b * out_strides[0]
        + offs_hq[:, None] * out_strides[1]
        + all_c[None, :] * out_strides[2],
        normed_combine_masked_product.to(out_ptr.dtype.element_ty),
        mask=(offs_hq[:, None] < Hq) & (all_c[None, :] < C),
    )


def mla_decode(q_latent, q_rope, latent, k_rope, seq_lens, scale):
    """Return out [B, Hq, C]."""
    B, Hq, C = q_latent.shape
    P = q_rope.shape[2]
    L = latent.shape[1]
    for name, tensor, shape in (
        ("q_latent", q_latent, (B, Hq, C)),
        ("q_rope", q_rope, (B, Hq, P)),
        ("latent", latent, (B, L, C)),
        ("k_rope", k_rope, (B, L, P)),
        ("seq_lens", seq_lens, (B,)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_C = max(16, triton.next_power_of_2(C))
    ALL_P = max(16, triton.next_power_of_2(P))
    BLOCK_Hq = max(16, min(128, 16384 // max(ALL_C, ALL_P), triton.next_power_of_2(Hq)))
    STEP_L = max(16, min(128, 8192 // max(ALL_C, ALL_P, BLOCK_Hq), triton.next_power_of_2(L)))
    out = q_latent.new_empty((B, Hq, C))
    elements = max(ALL_C * BLOCK_Hq, BLOCK_Hq * STEP_L)
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(Hq, BLOCK_Hq) * B,)
    tensors = (q_latent, q_rope, latent, k_rope, seq_lens, out)
    numbers = (scale, B, Hq, L, C, P, ALL_C, ALL_P, BLOCK_Hq, STEP_L)
    _mla_decode[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
