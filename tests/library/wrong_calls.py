"""Wrong calls of every op; what each is told stands in golden/wrong_calls.txt."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

N, A, R = 96, 3, 8
X = torch.ones(2, 3, 64).half()
NORM_WEIGHT = torch.ones(64).half()
WEIGHT = torch.ones(N, 64).half()
BIAS = torch.ones(N).half()
LORA_A, LORA_B = torch.ones(R, 64).half(), torch.ones(N, R).half()
STACK_A, STACK_B = LORA_A.expand(A, R, 64).contiguous(), LORA_B.expand(A, N, R).contiguous()
IDS = torch.zeros(2, 3, dtype=torch.int32)

Q = torch.ones(2, 4, 64).half()
K = torch.ones(9, 16, 2, 64).half()
TABLE = torch.zeros(2, 3).int()
LENGTHS = torch.ones(2).int()
STARTS = torch.tensor([0, 1, 2]).int()
LONG = torch.ones(1, 256, 4, 64).half()
LONG_K = LONG[:, :, :2].contiguous()
LATENT_Q, LATENT = torch.ones(2, 4, 48).half(), torch.ones(9, 16, 48).half()
INDICES = torch.zeros(2).int()

NORMED = {"x": X, "norm_weight": NORM_WEIGHT}
LORA = {"x": X, "weight": WEIGHT, "lora_a": LORA_A, "lora_b": LORA_B, "scale": 1.0}
PAGED = {"q": Q, "k_cache": K, "v_cache": K, "block_table": TABLE, "seq_lens": LENGTHS}
DENSE = {"q": LONG, "k_cache": LONG_K, "v_cache": LONG_K}  # PyTorch's attention computes it
NORMS = {"q_weight": NORM_WEIGHT, "k_weight": NORM_WEIGHT}
LISTS = {"indptr": STARTS, "indices": INDICES, "last_page_len": LENGTHS}
MLA = {"block_table": TABLE, "seq_lens": LENGTHS, "scale": 1.0}
CACHES = {"k_cache": K, "v_cache": K + 1, "slot_mapping": torch.tensor([1, 2])}
ROPE = {"cos_sin_cache": torch.ones(5, 64), "positions": LENGTHS}
HEADS = {"num_heads": 4, "num_kv_heads": 2}
GOOD = {
    "rms_norm_linear": NORMED | {"weight": WEIGHT},
    "linear": {"x": X, "weight": WEIGHT},
    "layer_norm_linear": NORMED | {"norm_bias": NORM_WEIGHT, "weight": WEIGHT},
    "lora_linear": LORA,
    "lora_linear batched": LORA | {"lora_a": STACK_A, "lora_b": STACK_B},
    "gated_mlp": {"x": X, "gate_weight": WEIGHT},
    "rms_norm_gated_mlp": NORMED | {"gate_weight": WEIGHT},
    "rms_norm": NORMED,
    "rms_norm_add": NORMED | {"addend": X},
    "layer_norm": NORMED,
    "act_and_mul": {"gate": X},
    "gqa": PAGED,
    "gqa dense": DENSE,
    "qk_norm_attention": PAGED | NORMS,
    "qk_norm_attention dense": DENSE | NORMS,
    "block_table_from_csr": LISTS | {"page_size": 16},
    "mla_decode": MLA | {"q": LATENT_Q, "kv_cache": LATENT, "latent_dim": 32},
    "qk_norm_rope_append": {"qkv": torch.ones(2, 8 * 64).half()} | NORMS | CACHES | ROPE | HEADS,
}


def odd(tensor: Tensor) -> Tensor:
    """Return the same values, starting two bytes behind an aligned address."""
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


WRONG_NORMS: tuple[dict[str, object], ...] = (
    {"q_weight": NORM_WEIGHT[:56]},
    {"k_weight": torch.ones(4, 64).half()},
    {"q_weight": torch.ones(128).half()[::2]},
    {"k_weight": None},
    {"norm": "l2"},
    {"q_bias": NORM_WEIGHT},
    {"eps": -1.0},
)
WRONG: dict[str, tuple[dict[str, object], ...]] = {
    "rms_norm_linear": (
        {"x": X.float()},
        {"x": X.short()},
        {"x": X.new_zeros(())},
        {"x": X.to_sparse()},
        {"norm_weight": NORM_WEIGHT.bfloat16()},
        {"norm_weight": NORM_WEIGHT[:7]},
        {"weight": WEIGHT.t()},
        {"weight": WEIGHT[0]},
        {"weight": WEIGHT.new_ones(N, 2 * 64)[:, :64]},
        {"weight": odd(WEIGHT)},
        {"weight": None},
        {"weight": [1.0]},
        {"weight": WEIGHT.to("meta")},
        {"eps": -1.0},
        {"eps": "1e-6"},
        {"eps": None},
        {"eps": np.ones(3)},
        {"eps": 10**400},
        {"eps": 1e39},
        {"weight_offset": -1e39},
        {"bias": BIAS[1:]},
        {"bias": 1.0},
        {"residual": 0},
        {"residual": X[0]},
        {"out": X.new_empty(3, N)},
        {"out": torch.empty(2, 3, N)},
        {"out": WEIGHT.new_empty(2, 3, 2 * N)[..., :N]},
        {"out": WEIGHT.view(-1)[: 6 * N].view(2, 3, N)},
        {"out": np.ones(3)},
        {"residual": X, "out": torch.ones(2, 2, 3)},
    ),
    "linear": (
        {"bias": WEIGHT[:1]},
        {"residual": X},
        {"residual": X.float()},
        {"out": X},
    ),
    "layer_norm_linear": ({"norm_bias": NORM_WEIGHT.float()},),
    "lora_linear": (
        {"lora_b": LORA_B[:, 1:].contiguous()},
        {"scale": torch.inf},
    ),
    "lora_linear batched": (
        {"adapter_ids": IDS[0]},
        {"adapter_ids": IDS.float()},
        {"adapter_ids": IDS + A},
        {"adapter_ids": IDS - 2},
    ),
    "gated_mlp": (
        {"gate_weight": WEIGHT[1:].clone()},
        {"up_weight": WEIGHT[8:]},
        {"activation": torch.relu},
    ),
    "rms_norm_gated_mlp": (
        {"activation": "swish"},
        {"residual": X[0]},
        {"residual": X, "out": X.new_empty(2, 3, N)},
        {"out": (X, X)},
        {"constant_weights": 3},
    ),
    "rms_norm": (
        {"x": np.ones((3, 64), np.float16)},
        {"x": X.to(torch.complex64)},
        {"x": torch.nested.nested_tensor([X[0], X[0]], layout=torch.jagged)},
        {"weight_offset": torch.nan},
        {"out": (X, X)},
    ),
    "rms_norm_add": (
        {"addend": X[0]},
        {"addend": X.float()},
        {"addend": None},
        {"out": X},
        {"weight_offset": torch.inf},
    ),
    "layer_norm": ({"norm_bias": 1e-05}, {"residual": X[0]}, {"residual": X, "out": X + 1}),
    "act_and_mul": (
        {"gate": torch.ones(3, 5).half()},
        {"gate": None},
    ),
    "gqa": (
        {"q": Q.float()},
        {"q": Q[0]},
        {"q": Q[..., :60]},
        {"k_cache": K.bfloat16()},
        {"k_cache": K[..., :56]},
        {"v_cache": K[:8]},
        {"k_cache": torch.ones(9, 16, 3, 64).half(), "v_cache": torch.ones(9, 16, 3, 64).half()},
        {"k_cache": torch.ones(9, 16, 2, 128).half()[..., ::2]},
        {"v_cache": torch.ones(9, 16, 2, 68).half()[..., :64]},
        {"k_cache": odd(K)},
        {"block_table": TABLE.float()},
        {"block_table": TABLE - 1},
        {"block_table": TABLE + 9},
        {"block_table": TABLE[0]},
        {"block_table": torch.zeros(3, 2).int().t()},
        {"seq_lens": None},
        {"seq_lens": LENGTHS.short()},
        {"seq_lens": LENGTHS * 49},
        {"seq_lens": LENGTHS * -1},
        {"max_seq_len": 0},
        {"cu_seqlens_q": STARTS.flip(0)},
        {"cu_seqlens_q": STARTS * 2},
        {"cu_seqlens_q": STARTS, "max_q_len": 0},
        {"seq_lens": LENGTHS.to("meta")},
        {"causal": None},
        {"causal": 1},
        {"constant_history": 3},
        {"seq_lens": LENGTHS[:1]},
        {"cu_seqlens_q": STARTS[:2]},
        {"q": torch.ones(3, 4, 64).half()},
        {"max_q_len": 2},
        {"sinks": torch.ones(3).half()},
        {"sinks": torch.ones(4)},
        {"scale": torch.inf},
        {"logits_soft_cap": -1.0},
        {"window_left": -2},
        {"q": None},
        {"q": Q[:, None, None]},
        {"q": Q[..., :0]},
        {"k_cache": None},
        {"k_cache": K[0]},
        {"v_cache": K[0], "kv_layout": "HND"},
        {"k_cache": K.to("meta")},
        {"block_table": TABLE.to("meta")},
        {"max_q_len": -3},
        {"max_seq_len": -2},
        {"out": (Q, Q)},
        {"kv_layout": "DNH"},
        {"out": Q[:1].clone()},
        {"out": Q},
        {"out": K.view(-1)[:512].view(2, 4, 64)},
        {"lse": torch.ones(2, 4).half()},
        {"lse": torch.ones(4, 2)},
        {"sinks": [0.0]},
        {"window_left": "3"},
        {"window_left": 2**63},
        {"max_seq_len": 4096.0},
        {"causal": "yes"},
        {"kv_layout": ["NHD"]},
        {"q": Q[0, 0, 0]},
        {"out": torch.ones(600).half().as_strided((2, 4, 64), (8, 64, 1))},
        {"out": torch.ones(1, 4, 64).half().expand(2, 4, 64)},
    ),
    "gqa dense": (
        {"q": LONG.float(), "k_cache": LONG_K.float(), "v_cache": LONG_K.float()},
        {"window_left": -7},
        {"scale": torch.nan},
        {"max_q_len": 3},
        {"out": LONG.float()},
        {"out": LONG},
        {"window_left": "3"},
        {"scale": "1"},
    ),
    "qk_norm_attention": WRONG_NORMS,
    "qk_norm_attention dense": WRONG_NORMS,
    "block_table_from_csr": (
        {"indices": None},
        {"indices": torch.zeros(2)},
        {"last_page_len": torch.ones(1, 2).int()},
        {"indptr": torch.tensor([0, 2]).int()},
        {"indptr": torch.tensor([0, 2, 1])},
        {"indptr": torch.tensor([0, 1, 3])},
        {"last_page_len": LENGTHS * 17},
        {"indices": INDICES - 1},
        {"max_seq_len": -1},
        {"page_size": "16"},
        {"page_size": None},
        {"max_seq_len": 40.0},
        {"indices": INDICES.to("meta")},
    ),
    "mla_decode": (
        {"q": LATENT_Q[..., :32]},
        {"kv_cache": LATENT.bfloat16()},
        {"kv_cache": LATENT[0]},
        {"kv_cache": LATENT[:, None].expand(9, 4, 16, 48).transpose(1, 2).contiguous()},
        {"kv_cache": LATENT[:, None]},
        {"q": LATENT_Q, "kv_cache": LATENT.to("meta")},
        {"kv_cache": LATENT[..., :40]},
        {"q": (LATENT_Q[..., :32], LATENT_Q[:, :2, 32:])},
        {"q": LATENT_Q[..., :36], "kv_cache": LATENT[..., :36]},
        {"seq_lens": None},
        {"out": LATENT.view(-1)[:256].view(2, 4, 32)},
        {"q": (Q,)},
        {"scale": None},
        {"latent_dim": 512.0},
        {"q": Q[0, 0, 0]},
    ),
    "qk_norm_rope_append": (
        {"num_heads": 4.0},
        {"v_cache": K},
        {"v_cache": K[:1].expand(9, 16, 2, 64)},
        {"qkv": torch.ones(2, 6 * 64).half()},
        {"num_kv_heads": 3},
        {"positions": LENGTHS[:1]},
        {"slot_mapping": torch.ones(2)},
        {"slot_mapping": torch.tensor([0, 144])},
        {"slot_mapping": torch.tensor([7, 7])},
        {"positions": LENGTHS + 4},
        {"positions": LENGTHS - 2},
        {"cos_sin_cache": torch.ones(10, 128)},
        {"rope": "yarn"},
        {"norm": "l2"},
        {"num_heads": 0},
        {"kv_layout": "x"},
    ),
}
