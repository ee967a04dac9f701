"""What kernels are launched with, and which calls launch none: the bindings, compiled to pretend.

The CPU counts as the GPU, and the kernels of the table print their arguments.
"""

from __future__ import annotations

import pytest

STACKED = "stacked M=3 | 3c00/64 4200/64 4880/64 4900/8"
SPACE = "space 1, nonce 1"

# kernel and tokens | inputs: first element and row stride | scalars | how many outputs
LAUNCHES = {
    "plain": "rms M=3 | 3c00/64 4000/64 4200/64 - - | 1e-06 0 | 1",
    "strided": "rms M=3 | 3c00/80 4000/64 4200/64 - - | 1e-06 0 | 1",
    "bias": "rms_full M=3 | 3c00/64 4000/64 4200/64 4400/96 - | 1e-06 0 | 1",
    "offset": "rms_full M=3 | 3c00/64 4000/64 4200/64 - - | 1e-06 1 | 1",
    "residual": "rms M=3 | 4600/64 4000/64 4200/64 - - | 1e-06 0 | 1",
    "residual of few tokens": "sum M=2 | 3c00/64 4000/64 4200/64 - 4500/64 | 1e-06 0 | 2",
    "few tokens and options": "sum M=2 | 3c00/80 4000/64 4200/64 4400/96 4500/128 | 1e-06 1 | 2",
    "residual and bias": "rms_full M=3 | 4600/64 4000/64 4200/64 4400/96 - | 1e-06 0 | 1",
    "all options": "rms_all M=3 | 3f80/64 4000/64 4040/64 4080/96 40a0/64 | 1e-06 1 | 2",
    "options left out": "rms_all M=3 | 3f80/64 4000/64 4040/64 - - | 1e-06 0 | 1",
    "many tokens": "",
    "no tokens": "",
    "norm_bias": "layer_full M=3 | 3c00/64 4000/64 4600/64 4200/64 - | 1e-05 0 | 1",
    "no norm_bias": "layer_full M=3 | 3c00/64 4000/64 - 4200/64 - | 1e-05 0 | 1",
    "zeros for norm_bias": "layer M=3 | 3f80/64 4000/64 0000/64 4040/64 - | 1e-05 0 | 1",
    "lora": "lora M=3 | 3c00/64 4200/64 4880/64 4900/8 - | 0.5 0 | 1 | space 1, nonce 1",
    "lora and bias": "lora M=3 | 3c00/64 4200/64 4880/64 4900/8 - | 0.5 0 | 1 | space 1, nonce 1",
    "batched": f"{STACKED} - | 0.5 0 | 1 | slices 0 -1 of 1, wide 1 | {SPACE}",
    "batched and bias": f"{STACKED} 4400/96 | 0.5 0 | 1 | slices 0 -1 of 1, wide 0 | {SPACE}",
    "batched with ids apart": f"{STACKED} - | 0.5 0 | 1 | slices 0 -1 of 1, wide 1 | {SPACE}",
    "batched, many tokens": "",
    "batched of another rank": "",
    "gate and up": "gated M=3 | 3c00/64 4700/64 4800/64 - - | 0 0 | 1",
    "packed": "gated M=3 | 3c00/64 4700/64 4800/64 - - | 0 0 | 1",
    "packed and offset": "rms_geglu M=3 | 3c00/64 4200/64 4700/64 4800/64 - | 1e-06 0 | 1",
    "ntrans": "ntrans M=3 | 4500/64 3c00/80 4000/64 - - | 0 0 | 1",
    "ntrans of many tokens": "ntrans M=99 | 4500/64 3c00/64 4000/64 - - | 0 0 | 1",
    "norm": "norm M=3 | 3c00/64 4000/64 - - - | 1e-06 0 | 1",
    "norm of another size": "",
    "norm and residual": "norm_sum M=3 | 3c00/80 4000/64 4500/64 - - | 1e-06 1 | 2",
    "layer norm": "norm_of_layers M=3 | 3c00/64 4000/64 4600/64 - - | 1e-05 0 | 1",
    "layer norm without bias": "norm_of_layers M=3 | 3c00/64 4000/64 - - - | 1e-05 0 | 1",
    "two halves": "silu M=3 | 4700/96 4800/96 - - - | 0 0 | 1",
    "packed halves": "silu M=6 | 4700/192 4700/192 - - - | 0 0 | 1",
    "halves of another activation": "",
}

# What a call prints, part by part; parts left out are those of APPEND.
APPEND = {
    "sizes": "3x4+2",
    "qkv": "qkv 3c00/512",
    "weights": "4000/0 4200/0 0000/0 0000/0",
    "norm": "rms 1e-06 0",
    "rope": "neox float 64 of 64, 10 rows",
    "indices": "at 7/1 wide, to 9/1 wide",
    "k": "k 4600 2048 128 64",
    "v": "v 4700 2048 128 64",
    "pages": "80 slots in pages of 16",
    "rest": "q 1, promised 0",
}
APPEND_LAYER = {"norm": "layer 1e-06 0", "weights": "4000/0 4200/0 4400/0 4500/64"}

APPENDS = {
    "append plain": {},
    "append strided qkv": {"qkv": "qkv 3c00/520"},
    "append short indices": {"indices": "at 7/1 short, to 9/1 short"},
    "append strided indices": {"indices": "at 7/2 wide, to 9/2 wide"},
    "append heads first": {"k": "k 4600 2048 64 1024", "v": "v 4700 2048 64 1024"},
    "append halves": {"k": "k 4600 4096 256 128", "v": "v 4700 4096 256 128"},
    "append weights by head": {"weights": "4000/64 4200/0 0000/0 0000/0"},
    "append offset": {"norm": "rms 0.001 1"},
    "append layer": APPEND_LAYER,
    "append no bias": {"norm": "layer 1e-06 0"},
    "append half angles": {"rope": "neox half 64 of 64, 10 rows"},
    "append part of the angles": {"rope": "neox float 64 of 32, 10 rows"},
    "append interleaved": {"rope": "interleaved float 64 of 64, 10 rows"},
    "append interleaved octets": {"rope": "interleaved float 64 of 24, 10 rows"},
    "append promised": {"rest": "q 1, promised 1"},
}

# The same of attention.
ATTENTION = {
    "kernel": "gqa B=3 Hkv=2 G=4 q_len=1 max_len=64",
    "q": "q 3c00 512 64",
    "k": "k 4000 2048 128 64",
    "v": "v 4200 2048 128 64",
    "cache": "table 5/4 of 16, lens 7, first -1",
    "numbers": "scalars 0.125 0 0, window 1073741824 skip -1",
    "vectors": "vectors 0000/0 0000/0 0000/0 0000/0, sinks 0000",
    "out": "out 1 512 64, lse 0",
    "history": "9 pages, history 0",
}
CAUSAL = {"kernel": "sliding B=3 Hkv=2 G=4 q_len=2 max_len=64"}
DENSE = {
    "kernel": "gqa B=3 Hkv=2 G=4 q_len=5 max_len=50",
    "k": "k 4000 6400 128 64",
    "v": "v 4200 6400 128 64",
    "cache": "table -1/0 of 50, lens -1, first -1",
    "history": "3 pages, history 0",
}
NORMED = {
    "kernel": "normed B=3 Hkv=2 G=4 q_len=1 max_len=64",
    "numbers": "scalars 0.125 1e-06 0, window 1073741824 skip -1",
    "vectors": "vectors 4500/0 4600/0 0000/0 0000/0, sinks 0000",
}
LAYERED = {
    **NORMED,
    "kernel": "layered B=3 Hkv=2 G=4 q_len=1 max_len=64",
    "vectors": "vectors 4500/0 0000/0 4600/0 0000/0, sinks 0000",
}
LATENT = {
    "kernel": "latent B=3 Hkv=1 G=8 q_len=1 max_len=64",
    "q": "q 3c00 640 80, more 4880 640 80",
    "k": "k 4000 1280 80 64",
    "v": "v 4200 1280 80 16",
    "numbers": "scalars 2 0 0, window 1073741824 skip -1",
}

ATTENTIONS = {
    "attention": {},
    "attention promised": {"history": "9 pages, history 1"},
    "attention dense promised": DENSE,
    "attention bound": {"kernel": "gqa B=3 Hkv=2 G=4 q_len=1 max_len=20"},
    "attention bound beyond the table": {},
    "attention lse": {"out": "out 1 512 64, lse 1"},
    "attention out": {"out": "out 1 1024 128, lse 0"},
    "attention scale and sinks": {
        "numbers": "scalars 0.5 0 0, window 1073741824 skip -1",
        "vectors": "vectors 0000/0 0000/0 0000/0 0000/0, sinks 4400",
    },
    "attention varlen of one": {"cache": "table 5/4 of 16, lens 7, first 0"},
    "attention varlen": {
        "kernel": "sliding B=3 Hkv=2 G=4 q_len=3 max_len=64",
        "cache": "table 5/4 of 16, lens 7, first 0",
    },
    "attention part of a table": {"cache": "table 5/8 of 16, lens 7, first -1"},
    "attention heads first": {"k": "k 4000 2048 64 1024", "v": "v 4000 2048 64 1024"},
    "attention halves": {"k": "k 4000 4096 256 128", "v": "v 4200 4096 256 128"},
    "attention unaligned q": {},
    "attention window": {
        "kernel": "sliding B=3 Hkv=2 G=4 q_len=1 max_len=64",
        "numbers": "scalars 0.125 0 0, window 6 skip 5",
    },
    "attention window of all": {"kernel": "sliding B=3 Hkv=2 G=4 q_len=1 max_len=64"},
    "attention cap": {
        "kernel": "full B=3 Hkv=2 G=4 q_len=1 max_len=64",
        "numbers": "scalars 0.125 30 0, window 1073741824 skip -1",
    },
    "attention cap and window": {
        "kernel": "full B=3 Hkv=2 G=4 q_len=2 max_len=64",
        "numbers": "scalars 0.125 30 0, window 1 skip 0",
    },
    "attention several": CAUSAL,
    "attention several see all": {"kernel": "gqa B=3 Hkv=2 G=4 q_len=2 max_len=64"},
    "attention dense": DENSE,
    "attention dense causal": {**DENSE, "kernel": "sliding B=3 Hkv=2 G=4 q_len=5 max_len=50"},
    "attention dense lens": {**DENSE, "cache": "table -1/0 of 50, lens 7, first -1"},
    "attention normed": NORMED,
    "attention normed offset": {
        **NORMED,
        "numbers": "scalars 0.125 0.001 1, window 1073741824 skip -1",
        "out": "out 1 512 64, lse 1",
    },
    "attention normed by layer": LAYERED,
    "attention normed by layer and head": {
        **LAYERED,
        "vectors": "vectors 4500/64 4700/0 4600/64 4800/64, sinks 0000",
    },
    "attention latent": LATENT,
    "attention latent, heads of one": {**LATENT, "out": "out 1 512 64, lse 1"},
    "attention latent several see all": {
        **LATENT,
        "kernel": "latent B=3 Hkv=1 G=8 q_len=2 max_len=64",
        "q": "q 3c00 512 64, more 4880 128 16",
    },
    "attention latent apart": {
        **LATENT,
        "q": "q 3c00 512 64, more 4880 128 16",
        "k": "k 4000 1024 64 64",
        "v": "v 4200 256 16 16",
    },
    "attention wide": {
        "kernel": "wide B=3 Hkv=1 G=4 q_len=1 max_len=64",
        "q": "q 3f80 512 128",
        "k": "k 3f80 2048 128 128",
        "v": "v 3f80 2048 128 128",
        "numbers": "scalars 0.0883883 0 0, window 1073741824 skip -1",
        "out": "out 1 512 128, lse 0",
    },
}

# Calls without a kernel, which run PyTorch's program.
SILENT = [
    "append misaligned qkv",
    "append an octet and a half",
    "append half an octet",
    "append angles by column",
    "append no tokens",
    "append other heads",
    "attention several see all in a window",
    "attention several see all capped",
    "attention no tokens",
    "attention no heads",
    "attention no sequences",
    "attention no keys",
    "attention normed by layer, offset",
    "attention normed window",
    "attention normed by head",
    "attention latent several",
]

WANTED = (
    LAUNCHES
    | {call: " | ".join((APPEND | parts).values()) for call, parts in APPENDS.items()}
    | {call: " | ".join((ATTENTION | parts).values()) for call, parts in ATTENTIONS.items()}
    | dict.fromkeys(SILENT, "")
)


@pytest.mark.parametrize("call", WANTED)
def test_a_call_launches_what_serves_it(told: dict[str, str], call: str) -> None:
    said = told[call].rpartition(" | ")[0] if call in ATTENTIONS else told[call]
    assert said == WANTED[call]


def test_an_uncovered_shape_is_refused(told: dict[str, str]) -> None:
    assert told["uncovered"].startswith(
        "mirage_kernels::rms_norm_linear: no kernel covers K=64,N=88 in fp16; the nearest covered "
        "are K=64,N=96 fp16, K=64,N=96 bf16; `mirage-kernels generate rms_norm_linear"
    )


def test_an_activation_without_kernels_is_refused_with_its_recipe(told: dict[str, str]) -> None:
    assert "gated_mlp: no kernel of gated_mlp_relu covers K=64,N=96" in told["no such activation"]
    assert "`mirage-kernels generate gated_mlp_relu --dtype fp16" in told["no such activation"]


def test_a_workspace_comes_with_every_launch_and_a_nonce_of_its_own(told: dict[str, str]) -> None:
    lasts = [told[call].rpartition(" | ")[2] for call in ATTENTIONS]
    assert {last.partition(", nonce ")[0] for last in lasts} == {"132 SMs, space 1"}
    nonces = [int(last.rpartition(" ")[2], 16) for last in lasts]
    assert len(set(nonces)) == len(nonces)
    assert max(nonces) >= 2**56  # all 64 bits are mixed


def test_an_uncovered_head_size_is_still_computed(told: dict[str, str]) -> None:
    assert told["attention uncovered"] == "computed 1"


def test_where_even_that_fails_the_way_to_a_kernel_is_said(told: dict[str, str]) -> None:
    assert told["attention out of memory"] == (
        "mirage_kernels::gqa: PyTorch's own program failed: CUDA out of memory.; it ran because "
        "there is no kernel: mirage_kernels::gqa: no kernel covers D=72 in fp16; the nearest "
        "covered are D=64 fp16, D=128 bf16; `mirage-kernels generate gqa --dtype fp16 --shape "
        "D=72` makes it"
    )
