"""Rows that an index tensor says: kernels read them from tables and write them into caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from cutting import (
    DIM,
    HEADS,
    ROWS,
    SLOTS,
    Given,
    cut_given,
    drawn,
    numbers,
    really_made,
    require_same_memory,
    rotated,
    ways,
)
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import Indexed
from mirage_kernels.generator.partition.addressing import require_rows
from mirage_kernels.generator.partition.parts import Part
from mirage_kernels.generator.partition.program import Program
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.program_steps import SteppedProgram

# -- what is read ----------------------------------------------------------------------------------


def rope(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    at = (t[positions].unsqueeze(1) for t in (cos, sin))
    return rotated(x.view(-1, HEADS, DIM), *at).reshape(-1, HEADS * DIM)


def of_two_dims(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return torch.tanh(x * table[index])


def of_a_slice(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return torch.exp(x + table[:, 4:12][index])


def selected(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return torch.relu(x) * torch.index_select(table, 1, index)


def embedded(x: Tensor, table: Tensor, index: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x + F.embedding(index, table), (DIM,), w, 1e-5)


def seen_otherwise(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return torch.tanh(x * table[index].view(2, 3, DIM))


READ: dict[str, tuple[Callable[..., Tensor], Given, tuple[str, ...]]] = {
    "tables of a rotation": (
        rope,
        {
            "x": drawn(5, HEADS * DIM),
            "cos": drawn(ROWS, DIM),
            "sin": drawn(ROWS, DIM),
            "positions": numbers(5, below=ROWS),
        },
        ("x", "positions"),
    ),
    "an index of two dims": (
        of_two_dims,
        {
            "x": drawn(3, 4, DIM),
            "table": drawn(ROWS, DIM),
            "index": numbers(3, 4, below=ROWS, dtype=torch.int32, first=-ROWS),
        },
        ("x", "index"),
    ),
    "a slice of a table": (
        of_a_slice,
        {"x": drawn(5, 8), "table": drawn(ROWS, DIM), "index": numbers(5, below=ROWS)},
        (),
    ),
    "rows in the middle": (
        selected,
        {
            "x": drawn(3, 5, DIM),
            "table": drawn(3, ROWS, DIM),
            "index": numbers(5, below=ROWS, dtype=torch.int32),
        },
        ("x", "table"),
    ),
    "an embedding in front of a norm": (
        embedded,
        {
            "x": drawn(5, DIM),
            "table": drawn(ROWS, DIM),
            "index": numbers(5, below=ROWS),
            "w": drawn(DIM),
        },
        ("x", "index"),
    ),
    "a view of what is read": (
        seen_otherwise,
        {"x": drawn(2, 3, DIM), "table": drawn(ROWS, DIM), "index": numbers(6, below=ROWS)},
        (),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_kernel_reads_the_rows_that_an_index_says(name: str) -> None:
    run, given, rows = READ[name]
    program = cut_given(run, given, rows)
    assert len(program.results) == 1
    assert all("[" not in one for way in ways(program) for one in way)
    require_same_memory(program, run, given)


def returned(x: Tensor, table: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    read = table[index]
    return torch.tanh(x * read), read * 1.0


def multiplied(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return F.linear(x, table[index])


def written_over(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    read = table[index]
    table.copy_(table * 2)
    return torch.tanh(x * read)


def turned(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return torch.tanh(x * table[:, index])


STAY: dict[str, tuple[Callable[..., Any], tuple[int, int]]] = {
    "a product takes it": (multiplied, (5, DIM)),
    "its table is written over": (written_over, (5, DIM)),
    "it chooses elements of rows": (turned, (ROWS, 5)),
}


@pytest.mark.parametrize("name", STAY)
def test_pytorch_reads_by_an_index_where(name: str) -> None:
    run, shape = STAY[name]
    below = DIM if run is turned else ROWS
    given = {"x": drawn(*shape), "table": drawn(ROWS, DIM), "index": numbers(5, below=below)}
    program = cut_given(run, given)
    assert "[index]" in ways(program)[0]
    require_same_memory(program, run, given)


# -- what is written -------------------------------------------------------------------------------


def appended(k: Tensor, cos: Tensor, positions: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    c = cos[positions].unsqueeze(1)
    keys[slots] = rotated(k.view(-1, HEADS, DIM), c, c)
    return keys.sum((1, 2))


def pairs_appended(
    k: Tensor, cos: Tensor, positions: Tensor, keys: Tensor, slots: Tensor
) -> Tensor:
    a, b = k.view(-1, HEADS, DIM)[..., ::2], k.view(-1, HEADS, DIM)[..., 1::2]
    c = cos[positions].unsqueeze(1)
    keys[slots] = torch.stack((a * c - b, a + b * c), -1).flatten(-2)
    return keys.sum((1, 2))


def whole(k: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    keys.index_copy_(0, slots, torch.tanh(k).view(-1, HEADS, DIM))
    return keys.sum((1, 2))


def one_row(k: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    made_ = F.rms_norm(k.view(-1, 1, HEADS, DIM), (DIM,), None, 1e-5).transpose(1, 2)
    keys.index_copy_(2, slots, made_ * 2)
    return keys.sum((1, 2, 3))


def joined(k: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    """A rotation of half of the keys; the rest is copied by a kernel of its own."""
    turned = torch.cat((-k[:, 8:16], k[:, :8]), -1)
    rows = torch.cat([k[:, :16] + turned, k[:, 16:]], dim=-1)
    keys[slots] = rows.view(-1, HEADS, DIM)
    return keys


def returns_nothing(k: Tensor, keys: Tensor, slots: Tensor) -> None:
    keys.view(-1, HEADS, DIM)[slots] = torch.tanh(k).view(-1, HEADS, DIM)


def k_and_slots(dtype: torch.dtype) -> Given:
    return {"k": drawn(5, HEADS * DIM), "slots": numbers(5, below=SLOTS, dtype=dtype)}


WRITTEN: dict[str, tuple[Callable[..., Tensor | None], Given, tuple[str, ...]]] = {
    "a rotation of keys": (
        appended,
        {
            **k_and_slots(torch.int64),
            "cos": drawn(ROWS, DIM),
            "positions": numbers(5, below=ROWS),
            "keys": drawn(SLOTS, HEADS, DIM),
        },
        ("k", "slots", "positions", "keys"),
    ),
    "a rotation of pairs": (
        pairs_appended,
        {
            **k_and_slots(torch.int64),
            "cos": drawn(ROWS, DIM // 2),
            "positions": numbers(5, below=ROWS),
            "keys": drawn(SLOTS, HEADS, DIM),
        },
        ("k", "slots", "positions", "keys"),
    ),
    "a view of a result": (
        whole,
        {**k_and_slots(torch.int64), "keys": drawn(SLOTS, HEADS, DIM)},
        ("k", "slots"),
    ),
    "a part of what is joined": (
        joined,
        {**k_and_slots(torch.int64), "keys": drawn(SLOTS, HEADS, DIM)},
        ("k", "slots"),
    ),
    "a view of the table": (
        returns_nothing,
        {**k_and_slots(torch.int64), "keys": drawn(SLOTS // 2, 2, HEADS, DIM)},
        ("k", "slots"),
    ),
    "one row for each sequence": (
        one_row,
        {
            "k": drawn(5, HEADS * DIM),
            "slots": torch.tensor([7]),
            "keys": drawn(5, HEADS, SLOTS, DIM),
        },
        (),
    ),
}


def intos(program: Program) -> list[dict[str, Any]]:
    steps = program.document["ways"][0]["steps"]
    return [r["into"] for s in steps for r in s.get("results", ()) if "into" in r]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_kernel_writes_the_rows_that_an_index_says(name: str) -> None:
    run, given, rows = WRITTEN[name]
    program = cut_given(run, given, rows)
    assert any("scattered" in into for into in intos(program))
    assert not {"[index_put]", "[index_copy]"} & {*ways(program)[0]}
    require_same_memory(program, run, given)


def test_a_table_without_such_a_view_is_refused_as_pytorch_refuses_it() -> None:
    given = {**k_and_slots(torch.int64), "keys": drawn(SLOTS // 2, 2, HEADS, DIM)}
    program = cut_given(returns_nothing, given, ("k", "slots"))
    apart = {**given, "keys": drawn(SLOTS // 2, 4, HEADS, DIM)[:, :2]}
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        SteppedProgram([program.document], lambda *_: [])(**apart)


def also_returned(k: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    new = torch.tanh(k).view(-1, HEADS, DIM)
    keys[slots] = new
    return new * 2


def read_between(k: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    new = torch.tanh(k).view(-1, HEADS, DIM)
    before = keys.sum((1, 2))
    keys[slots] = new
    return before


def added(k: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    keys.index_put_((slots,), torch.tanh(k).view(-1, HEADS, DIM), accumulate=True)
    return keys.sum((1, 2))


@pytest.mark.parametrize("run", [also_returned, read_between, added])
def test_pytorch_writes_by_an_index_what_kernels_cannot(run: Callable[..., Tensor]) -> None:
    given = {**k_and_slots(torch.int64), "keys": drawn(SLOTS, HEADS, DIM)}
    program = cut_given(run, given)
    assert "[index_put]" in ways(program)[0]
    require_same_memory(program, run, given)


def test_kernels_that_read_and_write_by_an_index_are_found() -> None:
    run, given, rows = WRITTEN["a rotation of keys"]
    program = cut_given(run, given, rows, really_made)
    assert ways(program)[0][0].startswith("neg, mul")
    (result,) = (r for r in program.results if r.record.indexed)
    (cuda,) = (text for name, text in result.files.items() if name.endswith(".cu"))
    assert "row_of<true>(args.positions_index" in cuda
    assert "row_of<true>(args.slots_index" in cuda
    assert '"name": "slots", "dtype": "int64"' in cuda.replace('\\"', '"').replace('"\n      "', "")


# -- single elements -------------------------------------------------------------------------------


def router(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    values, chosen = torch.topk(torch.softmax(F.linear(x, w), -1), 4, dim=-1)
    return values / values.sum(-1, keepdim=True), chosen


def gathered(x: Tensor, index: Tensor) -> Tensor:
    return torch.gather(torch.log_softmax(x.float(), -1), -1, index[:, None]).squeeze(-1) * -1


def along(x: Tensor, index: Tensor) -> Tensor:
    return torch.take_along_dim(torch.relu(x), index[:, None], dim=-1) * 2


def entropy(x: Tensor, index: Tensor) -> Tensor:
    return F.cross_entropy(torch.tanh(x) * 3, index)


def smoothed(x: Tensor, index: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), index, reduction="none", label_smoothing=0.1)


def likelihood(x: Tensor, index: Tensor) -> Tensor:
    return F.nll_loss(torch.log_softmax(x, -1), index)


LOGITS: Given = {"x": drawn(6, 32), "index": numbers(6, below=32)}
SINGLE: dict[Callable[..., Any], tuple[list[str], str]] = {
    router: (["linear", "softmax", "[topk]", "sum, div"], "kernels cannot be made of it"),
    gathered: (["[gather]", "logsumexp, sub, mul"], "kernels cannot be made of it"),
    along: (["relu", "[take_along_dim]", "mul"], "kernels cannot be made of it"),
    entropy: (["tanh, mul", "[cross_entropy_loss]"], "kernels cannot be made of it"),
    smoothed: (["[to]", "[cross_entropy_loss]"], "kernels cannot be made of it"),
    likelihood: (["log_softmax", "[nll_loss_nd]"], "kernels cannot be made of it"),
}


@pytest.mark.parametrize("run", SINGLE, ids=lambda run: run.__name__)
def test_single_elements_that_an_index_says_are_pytorch_s(run: Callable[..., Any]) -> None:
    wanted, reason = SINGLE[run]
    given = {"x": drawn(6, 64), "w": drawn(32, 64)} if run is router else LOGITS
    program = cut_given(run, given, ("x",) if run is router else ())
    assert ways(program)[0] == wanted
    assert any(reason in line for line in program.lines() if "PyTorch: " in line)
    if run is not router:
        require_same_memory(program, run, given)


# -- what is refused -------------------------------------------------------------------------------


def rows_of_part() -> tuple[Part, Recipe]:
    run, given, rows = WRITTEN["a rotation of keys"]
    program = cut_given(run, given, rows)
    part = next(p for p in program.ways[0].parts if p.key in program.kernels and p.indexed)
    return part, program.kernels[part.key].request.recipe


MUTANTS: dict[str, Callable[[Indexed], Indexed]] = {
    "negative numbers do not count from the last row": lambda x: replace(x, wraps=False),
    "another dim is in the place of the rows": lambda x: replace(x, place=1 - x.place),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_rows_that_are_addressed_otherwise_are_refused(name: str) -> None:
    part, recipe = rows_of_part()
    require_rows(part, recipe)
    for i, one in enumerate(recipe.indexed):
        changed = [*recipe.indexed]
        changed[i] = MUTANTS[name](one)
        with pytest.raises((VerifyError, IndexError, ValueError, RuntimeError)):
            require_rows(part, replace(recipe, indexed=tuple(changed)))


def test_another_index_tensor_is_refused() -> None:
    part, recipe = rows_of_part()
    same = tuple(replace(x, by="slots") for x in recipe.indexed)
    with pytest.raises(VerifyError):
        require_rows(part, replace(recipe, indexed=same))
