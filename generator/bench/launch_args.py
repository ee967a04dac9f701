"""The arguments of a launch as ctypes has them: the structures of csrc/launch.h."""

from __future__ import annotations

import ctypes

Pointer, I64, I32, F32, Bool = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int32,
    ctypes.c_float,
    ctypes.c_bool,
)


class LaunchArgs(ctypes.Structure):
    """`mirage::LaunchArgs`, as far as candidates need it: zeros may follow."""

    _fields_ = (
        ("inputs", Pointer * 8),
        ("outputs", Pointer * 4),
        ("row_strides", I64 * 8),
        ("dims", I64 * 4),
        ("scalars", F32 * 4),
        ("constant_weights", Bool),
        ("workspace", Pointer),
        ("nonce", ctypes.c_uint64),
    )


class Lines(ctypes.Structure):
    """`mirage::Lines`."""

    _fields_ = (("at", Pointer), ("token", I64), ("head", I64))


class Cache(ctypes.Structure):
    """`mirage::Cache`."""

    _fields_ = (("at", Pointer), ("page", I64), ("token", I64), ("head", I64))


class AttentionArgs(ctypes.Structure):
    """`mirage::AttentionArgs`, but for what the launch fills in."""

    _fields_ = (
        *(("q", Lines), ("more_q", Lines), ("k", Cache), ("v", Cache)),
        *(("block_table", Pointer), ("table_row", I64)),
        *(("page_size", I32), ("pages", ctypes.c_uint32)),
        *(("seq_lens", Pointer), ("first_tokens", Pointer)),
        *(("vectors", Pointer * 4), ("vector_heads", I64 * 4)),
        *(("scalars", F32 * 8), ("integers", I32 * 2), ("sinks", Pointer)),
        *(("out", Pointer), ("out_token", I64), ("out_head", I64), ("lse", Pointer)),
        *(("B", I32), ("Hkv", I32), ("G", I32), ("q_len", I32), ("max_len", I32)),
        *(("first_window", I32), ("multiprocessors", I32)),
        *(("workspace", Pointer), ("nonce", ctypes.c_uint64)),
        *(("constant_weights", Bool), ("constant_history", Bool)),
    )


Args = LaunchArgs | AttentionArgs
