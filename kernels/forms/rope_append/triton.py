# mirage-kernels generate rope_append
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, Hq, P] = q and k rotated by position; k and v written to a paged cache

import triton
import triton.language as tl


@triton.jit
def _rope_append_1(
    q_first_ptr,
    q_second_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    q_turned_ptr,
    positions_ptr,
    q_first_strides,
    q_second_strides,
    cos_strides,
    sin_strides,
    out_strides,
    q_turned_strides,
    positions_strides,
    M,
    Hq,
    P,
    table_rows,
    BLOCK_P: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_p = block % tl.cdiv(P, BLOCK_P) * BLOCK_P + tl.arange(0, BLOCK_P)
    block = block // tl.cdiv(P, BLOCK_P)
    offs_hq = block % Hq
    offs_m = block // Hq
    q_first_tile = tl.load(
        q_first_ptr
        + offs_m * q_first_strides[0]
        + offs_hq * q_first_strides[1]
        + offs_p * q_first_strides[2],
        mask=offs_p < P,
        other=0,
    )
    cos_tile_row = tl.load(positions_ptr + offs_m * positions_strides[0]).to(tl.int64) + 0 * offs_p
    cos_tile_read = tl.load(
        cos_ptr + cos_tile_row * cos_strides[0] + offs_p * cos_strides[1],
        mask=(offs_p < P) & (cos_tile_row >= 0) & (cos_tile_row < table_rows),
        other=0,
    )
    cos_tile = tl.where(
        (cos_tile_row >= 0) & (cos_tile_row < table_rows), cos_tile_read, float("nan")
    )
    scaled_q_first = q_first_tile.to(tl.float32) * cos_tile.to(tl.float32)
    q_second_tile = tl.load(
        q_second_ptr
        + offs_m * q_second_strides[0]
        + offs_hq * q_second_strides[1]
        + offs_p * q_second_strides[2],
        mask=offs_p < P,
        other=0,
    )
    sin_tile_row = tl.load(positions_ptr + offs_m * positions_strides[0]).to(tl.int64) + 0 * offs_p
    sin_tile_read = tl.load(
        sin_ptr + sin_tile_row * sin_strides[0] + offs_p * sin_strides[1],
        mask=(offs_p < P) & (sin_tile_row >= 0) & (sin_tile_row < table_rows),
        other=0,
    )
    sin_tile = tl.where(
        (sin_tile_row >= 0) & (sin_tile_row < table_rows), sin_tile_read, float("nan")
    )
    scaled_q_second = q_second_tile.to(tl.float32) * sin_tile.to(tl.float32)
    scaled_q_first_minus_scaled_q_second = scaled_q_first - scaled_q_second
    tl.store(
        out_ptr + offs_m * out_strides[0] + offs_hq * out_strides[1] + offs_p * out_strides[2],
        scaled_q_first_minus_scaled_q_second.to(out_ptr.dtype.element_ty),
        mask=offs_p < P,
    )
    scaled_q_second_2 = q_second_tile.to(tl.float32) * cos_tile.to(tl.float32)
    scaled_q_first_2 = q_first_tile.to(tl.float32) * sin_tile.to(tl.float32)
    q_turned_tile = scaled_q_second_2 + scaled_q_first_2
    tl.store(
        q_turned_ptr
        + offs_m * q_turned_strides[0]
        + offs_hq * q_turned_strides[1]
        + offs_p * q_turned_strides[2],
        q_turned_tile.to(q_turned_ptr.dtype.element_ty),
        mask=offs_p < P,
    )


@triton.jit
def _rope_append_2(
    q_rest_ptr, q_kept_ptr, q_rest_strides, q_kept_strides, M, Hq, S, BLOCK_S: tl.constexpr
):
    block = tl.program_id(0).to(tl.int64)
    offs_s = block % tl.cdiv(S, BLOCK_S) * BLOCK_S + tl.arange(0, BLOCK_S)
    block = block // tl.cdiv(S, BLOCK_S)
    offs_hq = block % Hq
    offs_m = block // Hq
    q_rest_tile = tl.load(
        q_rest_ptr
        + offs_m * q_rest_strides[0]
        + offs_hq * q_rest_strides[1]
        + offs_s * q_rest_strides[2],
        mask=offs_s < S,
        other=0,
    )
    scaled_q_rest = 1.0 * q_rest_tile.to(tl.float32)
    tl.store(
        q_kept_ptr
        + offs_m * q_kept_strides[0]
        + offs_hq * q_kept_strides[1]
        + offs_s * q_kept_strides[2],
        scaled_q_rest.to(q_kept_ptr.dtype.element_ty),
        mask=offs_s < S,
    )


@triton.jit
def _rope_append_3(
    k_first_ptr,
    k_second_ptr,
    cos_ptr,
    sin_ptr,
    k_written_ptr,
    k_turned_ptr,
    positions_ptr,
    slots_ptr,
    k_first_strides,
    k_second_strides,
    cos_strides,
    sin_strides,
    k_written_strides,
    k_turned_strides,
    positions_strides,
    slots_strides,
    M,
    Hkv,
    P,
    table_rows,
    pages,
    page_size,
    BLOCK_P: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_p = block % tl.cdiv(P, BLOCK_P) * BLOCK_P + tl.arange(0, BLOCK_P)
    block = block // tl.cdiv(P, BLOCK_P)
    offs_hkv = block % Hkv
    offs_m = block // Hkv
    out_stored_row = tl.load(slots_ptr + offs_m * slots_strides[0]).to(tl.int64) + 0 * offs_p
    k_first_tile = tl.load(
        k_first_ptr
        + offs_m * k_first_strides[0]
        + offs_hkv * k_first_strides[1]
        + offs_p * k_first_strides[2],
        mask=offs_p < P,
        other=0,
    )
    cos_tile_row = tl.load(positions_ptr + offs_m * positions_strides[0]).to(tl.int64) + 0 * offs_p
    cos_tile_read = tl.load(
        cos_ptr + cos_tile_row * cos_strides[0] + offs_p * cos_strides[1],
        mask=(offs_p < P) & (cos_tile_row >= 0) & (cos_tile_row < table_rows),
        other=0,
    )
    cos_tile = tl.where(
        (cos_tile_row >= 0) & (cos_tile_row < table_rows), cos_tile_read, float("nan")
    )
    scaled_k_first = k_first_tile.to(tl.float32) * cos_tile.to(tl.float32)
    k_second_tile = tl.load(
        k_second_ptr
        + offs_m * k_second_strides[0]
        + offs_hkv * k_second_strides[1]
        + offs_p * k_second_strides[2],
        mask=offs_p < P,
        other=0,
    )
    sin_tile_row = tl.load(positions_ptr + offs_m * positions_strides[0]).to(tl.int64) + 0 * offs_p
    sin_tile_read = tl.load(
        sin_ptr + sin_tile_row * sin_strides[0] + offs_p * sin_strides[1],
        mask=(offs_p < P) & (sin_tile_row >= 0) & (sin_tile_row < table_rows),
        other=0,
    )
    sin_tile = tl.where(
        (sin_tile_row >= 0) & (sin_tile_row < table_rows), sin_tile_read, float("nan")
    )
    scaled_k_second = k_second_tile.to(tl.float32) * sin_tile.to(tl.float32)
    scaled_k_first_minus_scaled_k_second = scaled_k_first - scaled_k_second
    tl.store(
        k_written_ptr
        + (out_stored_row // page_size) * k_written_strides[0]
        + (out_stored_row % page_size) * k_written_strides[1]
        + offs_hkv * k_written_strides[2]
        + offs_p * k_written_strides[3],
        scaled_k_first_minus_scaled_k_second.to(k_written_ptr.dtype.element_ty),
        mask=(offs_p < P) & (out_stored_row >= 0) & (out_stored_row < pages * page_size),
    )
    k_turned_stored_row = tl.load(slots_ptr + offs_m * slots_strides[0]).to(tl.int64) + 0 * offs_p
    scaled_k_second_2 = k_second_tile.to(tl.float32) * cos_tile.to(tl.float32)
    scaled_k_first_2 = k_first_tile.to(tl.float32) * sin_tile.to(tl.float32)
    k_turned_tile = scaled_k_second_2 + scaled_k_first_2
    tl.store(
        k_turned_ptr
        + (k_turned_stored_row // page_size) * k_turned_strides[0]
        + (k_turned_stored_row % page_size) * k_turned_strides[1]
        + offs_hkv * k_turned_strides[2]
        + offs_p * k_turned_strides[3],
        k_turned_tile.to(k_turned_ptr.dtype.element_ty),
        mask=(offs_p < P) & (k_turned_stored_row >= 0) & (k_turned_stored_row < pages * page_size),
    )


@triton.jit
def _rope_append_4(
    k_rest_ptr,
    k_kept_ptr,
    slots_ptr,
    k_rest_strides,
    k_kept_strides,
    slots_strides,
    M,
    Hkv,
    S,
    pages,
    page_size,
    BLOCK_S: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_s = block % tl.cdiv(S, BLOCK_S) * BLOCK_S + tl.arange(0, BLOCK_S)
    block = block // tl.cdiv(S, BLOCK_S)
    offs_hkv = block % Hkv
    offs_m = block // Hkv
    out_stored_row = tl.load(slots_ptr + offs_m * slots_strides[0]).to(tl.int64) + 0 * offs_s
    k_rest_tile = tl.load(
        k_rest_ptr
        + offs_m * k_rest_strides[0]
        + offs_hkv * k_rest_strides[1]
        + offs_s * k_rest_strides[2],
        mask=offs_s < S,
        other=0,
    )
    scaled_k_rest = 1.0 * k_rest_tile.to(tl.float32)
    tl.store(
        k_kept_ptr
        + (out_stored_row // page_size) * k_kept_strides[0]
        + (out_stored_row % page_size) * k_kept_strides[1]
        + offs_hkv * k_kept_strides[2]
        + offs_s * k_kept_strides[3],
        scaled_k_rest.to(k_kept_ptr.dtype.element_ty),
        mask=(offs_s < S) & (out_stored_row >= 0) & (out_stored_row < pages * page_size),
    )


@triton.jit
def _rope_append_5(
    v_ptr,
    v_written_ptr,
    slots_ptr,
    v_strides,
    v_written_strides,
    slots_strides,
    M,
    Hkv,
    D,
    pages,
    page_size,
    BLOCK_D: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_d = block % tl.cdiv(D, BLOCK_D) * BLOCK_D + tl.arange(0, BLOCK_D)
    block = block // tl.cdiv(D, BLOCK_D)
    offs_hkv = block % Hkv
    offs_m = block // Hkv
    out_stored_row = tl.load(slots_ptr + offs_m * slots_strides[0]).to(tl.int64) + 0 * offs_d
    v_tile = tl.load(
        v_ptr + offs_m * v_strides[0] + offs_hkv * v_strides[1] + offs_d * v_strides[2],
        mask=offs_d < D,
        other=0,
    )
    scaled_v = 1.0 * v_tile.to(tl.float32)
    tl.store(
        v_written_ptr
        + (out_stored_row // page_size) * v_written_strides[0]
        + (out_stored_row % page_size) * v_written_strides[1]
        + offs_hkv * v_written_strides[2]
        + offs_d * v_written_strides[3],
        scaled_v.to(v_written_ptr.dtype.element_ty),
        mask=(offs_d < D) & (out_stored_row >= 0) & (out_stored_row < pages * page_size),
    )


def rope_append(
    q_first,
    q_second,
    q_rest,
    k_first,
    k_second,
    k_rest,
    v,
    cos,
    sin,
    positions,
    slots,
    k_written,
    k_turned,
    k_kept,
    v_written,
):
    """Return results.

    out [M, Hq, P].
    q_turned [M, Hq, P].
    q_kept [M, Hq, S].
    k_written [pages, page_size, Hkv, P].
    k_turned [pages, page_size, Hkv, P].
    k_kept [pages, page_size, Hkv, S].
    v_written [pages, page_size, Hkv, D].
    """
    M, Hq, P = q_first.shape
    S = q_rest.shape[2]
    Hkv = k_first.shape[1]
    D = v.shape[2]
    table_rows = cos.shape[0]
    pages = k_written.shape[0]
    page_size = k_written.shape[1]
    for name, tensor, shape in (
        ("q_first", q_first, (M, Hq, P)),
        ("q_second", q_second, (M, Hq, P)),
        ("q_rest", q_rest, (M, Hq, S)),
        ("k_first", k_first, (M, Hkv, P)),
        ("k_second", k_second, (M, Hkv, P)),
        ("k_rest", k_rest, (M, Hkv, S)),
        ("v", v, (M, Hkv, D)),
        ("cos", cos, (table_rows, P)),
        ("sin", sin, (table_rows, P)),
        ("positions", positions, (M,)),
        ("slots", slots, (M,)),
        ("k_written", k_written, (pages, page_size, Hkv, P)),
        ("k_turned", k_turned, (pages, page_size, Hkv, P)),
        ("k_kept", k_kept, (pages, page_size, Hkv, S)),
        ("v_written", v_written, (pages, page_size, Hkv, D)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    BLOCK_P = min(1024, triton.next_power_of_2(P))
    out = q_first.new_empty((M, Hq, P))
    q_turned = q_first.new_empty((M, Hq, P))
    elements = BLOCK_P
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(P, BLOCK_P) * Hq * M,)
    tensors = (q_first, q_second, cos, sin, out, q_turned, positions)
    numbers = (M, Hq, P, table_rows, BLOCK_P)
    _rope_append_1[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    BLOCK_S = min(1024, triton.next_power_of_2(S))
    q_kept = q_first.new_empty((M, Hq, S))
    elements = BLOCK_S
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(S, BLOCK_S) * Hq * M,)
    tensors = (q_rest, q_kept)
    numbers = (M, Hq, S, BLOCK_S)
    _rope_append_2[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    BLOCK_P = min(1024, triton.next_power_of_2(P))
    elements = BLOCK_P
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(P, BLOCK_P) * Hkv * M,)
    tensors = (k_first, k_second, cos, sin, k_written, k_turned, positions, slots)
    numbers = (M, Hkv, P, table_rows, pages, page_size, BLOCK_P)
    _rope_append_3[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    BLOCK_S = min(1024, triton.next_power_of_2(S))
    elements = BLOCK_S
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(S, BLOCK_S) * Hkv * M,)
    tensors = (k_rest, k_kept, slots)
    numbers = (M, Hkv, S, pages, page_size, BLOCK_S)
    _rope_append_4[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    BLOCK_D = min(1024, triton.next_power_of_2(D))
    elements = BLOCK_D
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(D, BLOCK_D) * Hkv * M,)
    tensors = (v, v_written, slots)
    numbers = (M, Hkv, D, pages, page_size, BLOCK_D)
    _rope_append_5[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out, q_turned, q_kept, k_written, k_turned, k_kept, v_written
