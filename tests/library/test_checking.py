"""Checking mode: what is named, what is not looked at, and that it works behind a compiler.

The sentences stand in golden/wrong_calls.txt.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from attention_cases import Call, Case, latent_case, made
from torch import Tensor

from mirage_kernels import checking, gqa, gqa_csr, lora_linear, qk_norm_rope_append

PAGED = Case(lengths=(5, 33, 16))


def broken(call: Call, name: str, element: tuple[int, ...], value: int) -> Call:
    tensor = call.given[name]
    assert isinstance(tensor, Tensor)
    tensor[element] = value
    return call


@pytest.mark.parametrize("call_case", [PAGED, replace(PAGED, norm="rms"), latent_case()])
def test_a_page_in_use_that_is_none_is_named(call_case: Case) -> None:
    call = broken(made(call_case), "block_table", (1, 2), 10**6)
    with pytest.raises(RuntimeError, match=r"block_table\[1, 2\] is 1000000; 0 to \d+, the pages"):
        call.run()


def test_a_page_behind_the_last_key_may_be_anything() -> None:
    broken(made(PAGED), "block_table", (0, 1), -5).run()


def test_a_page_before_every_window_may_be_anything() -> None:
    windowed = made(replace(PAGED, options={"window_left": 3}))
    broken(windowed, "block_table", (1, 0), -5).run()
    with pytest.raises(RuntimeError, match=r"block_table\[1, 1\] is -5"):
        broken(windowed, "block_table", (1, 1), -5).run()


@pytest.mark.parametrize("value", [-1, 49])
def test_a_length_that_the_table_has_no_room_for_is_named(value: int) -> None:
    call = made(replace(PAGED, lengths=(5, 32, 16)))
    with pytest.raises(RuntimeError, match=rf"seq_lens\[1\] is {value}; 0 to 48, the keys that a"):
        broken(call, "seq_lens", (1,), value).run()


def test_a_dense_length_beyond_the_tensor_is_named() -> None:
    call = made(replace(PAGED, page_size=0))
    with pytest.raises(RuntimeError, match=r"seq_lens\[0\] is 34; 0 to 33, the keys that a seq"):
        broken(call, "seq_lens", (0,), 34).run()


def test_a_bound_that_is_too_small_is_named() -> None:
    call = made(PAGED)
    assert isinstance(call.run(max_seq_len=33), Tensor)
    with pytest.raises(RuntimeError, match=r"seq_lens\[1\] is 33; 0 to 32, max_seq_len, work"):
        call.run(max_seq_len=32)


def test_too_many_query_tokens_are_named() -> None:
    call = made(replace(PAGED, tokens=(2, 0, 4)))
    call.run(max_q_len=4)
    with pytest.raises(RuntimeError, match=r"cu_seqlens_q\[3\] is 6; up to 3, max_q_len, more"):
        call.run(max_q_len=3)


def test_page_lists_of_pages_beyond_the_cache_are_named() -> None:
    call = made(replace(PAGED, lengths=(16, 16)))
    starts, last = torch.tensor([0, 1, 2]), torch.tensor([16, 16])
    with pytest.raises(RuntimeError, match=r"gqa: block_table\[1, 0\] is 77; 0 to"):
        gqa_csr(call.q, call.k, call.v, starts, torch.tensor([0, 77]), last, max_seq_len=16)


def test_what_stands_behind_the_last_page_of_a_list_is_not_looked_at() -> None:
    call = made(replace(PAGED, lengths=(16, 16)))
    starts, pages, last = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.tensor([16, 16])
    lists = (starts, torch.cat([pages, torch.tensor([-7, 2**40])]), last)
    expected = gqa_csr(call.q, call.k, call.v, starts, pages, last, max_seq_len=16)
    assert torch.equal(gqa_csr(call.q, call.k, call.v, *lists, max_seq_len=16), expected)
    assert torch.equal(gqa_csr(call.q, call.k, call.v, *lists), expected)
    with pytest.raises(RuntimeError, match=r"indices\[1\] is -1; page numbers from 0 on work"):
        gqa_csr(call.q, call.k, call.v, starts, torch.tensor([0, -1, 3]), last)


def appended(**changed: Tensor) -> Tensor:
    weight, cache = torch.ones(16).half(), torch.zeros(2, 8, 2, 16).half()
    tokens = {"positions": torch.tensor([0, 4, 8]), "slot_mapping": torch.tensor([3, -1, 9])}
    return qk_norm_rope_append(
        *(torch.ones(3, 8 * 16).half(), weight, weight, torch.rand(9, 16)),
        **tokens | changed,
        k_cache=cache,
        v_cache=cache.clone(),
        num_heads=4,
        num_kv_heads=2,
    )


def test_padding_has_neither_slot_nor_position() -> None:
    assert appended(positions=torch.tensor([0, 10**9, 8])).shape == (3, 4, 16)


def test_a_slot_of_two_tokens_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"slot_mapping\[2\] is 3; a slot that no token before"):
        appended(slot_mapping=torch.tensor([3, -1, 3]))


def test_padding_may_share_its_slot() -> None:
    assert appended(slot_mapping=torch.tensor([-1, -1, -1])).shape == (3, 4, 16)


@pytest.mark.usefixtures("fresh_compiler")
def test_values_are_looked_at_in_a_compiled_function() -> None:
    call = made(PAGED)
    compiled = torch.compile(call.run, fullgraph=True, backend="aot_eager")
    compiled()
    broken(call, "seq_lens", (0,), 99)
    with pytest.raises(RuntimeError, match=r"seq_lens\[0\] is 99"):
        compiled()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", ["block_table", "seq_lens", "cu_seqlens_q"])
def test_tables_and_lengths_may_be_of_either_width(name: str, dtype: torch.dtype) -> None:
    call = made(replace(PAGED, tokens=(2, 0, 4)))
    tensor = call.given[name]
    assert isinstance(tensor, Tensor)
    assert torch.equal(call.run(**{name: tensor.to(dtype)}), call.run())  # type: ignore[arg-type]


CUDA = """
import torch
from mirage_kernels import gqa
q, k = torch.ones(1, 4, 64, device="cuda").half(), torch.ones(3, 16, 2, 64, device="cuda").half()
table, lens = torch.tensor([[1, 9]], device="cuda"), torch.tensor([20], device="cuda")
try:
    gqa(q, k, k, table, lens)
except RuntimeError as error:
    print(error)
torch.cuda.synchronize()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("asked", ["1", "0"])
def test_the_environment_asks_for_it_on_a_gpu(asked: str) -> None:
    pages_exist = CUDA if asked == "1" else CUDA.replace("9", "2")
    ran = subprocess.run(
        [sys.executable, "-c", pages_exist],
        env=os.environ | {"MIRAGE_KERNELS_CHECK": asked},
        capture_output=True,
        text=True,
        check=True,
    )
    named = "mirage_kernels::gqa: block_table[0, 1] is 9; 0 to 2, the pages of the cache, work\n"
    assert ran.stdout == (named if asked == "1" else "")


def test_every_op_with_indices_has_a_check() -> None:
    from mirage_kernels.signatures import signatures

    missing = {s.op for s in signatures() if checking.has_values(s) and not checking.program(s)}
    assert not missing


def test_adapters_are_counted_in_the_stack() -> None:
    x, weight, stack = torch.ones(2, 8).half(), torch.ones(4, 8).half(), torch.ones(3, 2, 8).half()
    ids = torch.tensor([0, 3])
    with pytest.raises(
        RuntimeError, match=r"adapter_ids\[1\] is 3; 0 to 2, the adapters of lora_a"
    ):
        lora_linear(x, weight, stack, torch.ones(3, 4, 2).half(), 1.0, adapter_ids=ids)


def test_gqa_without_lengths_looks_at_nothing() -> None:
    k = torch.ones(1, 4, 2, 8).half()
    assert gqa(torch.ones(1, 2, 8).half(), k, k).shape == (1, 2, 8)
