"""Calls drawn at random, right and wrong ones: what each does, and what it must do.

A right call brings a check of its results; a wrong one breaks one thing, which the op must name in
a sentence. Everything follows from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import append_cases
import attention_cases
import torch
from exact import results
from op_cases import CASES, Case, kernel_cases
from torch import Tensor

import mirage_kernels

Arguments = dict[str, object]
DTYPES = (torch.float16, torch.bfloat16)
WIDEST = 1 << 26  # elements of the weights of a call on a GPU


@dataclass(frozen=True)
class Drawn:
    """One call. `wrong` says what is wrong about it, "" for nothing."""

    op: str
    what: str
    wrong: str
    run: Callable[[], object]
    right: Callable[[object], bool]  # of what a right call returns


# -- ops with named dims ---------------------------------------------------------------------------


def dense_call(draw: random.Random, device: str, op: str) -> Drawn:
    """Draw a call of an op whose arguments have named dims."""
    case = draw.choice(_cases(device, op))
    if device == "cpu":
        names = ("K", "N", "R", "A")
        sizes = dict(zip(names, (8 * draw.randint(1, 12) for _ in names), strict=True))
        case = replace(case, sizes=sizes | {"A": draw.randint(1, 9)}, dtype=draw.choice(DTYPES))
    leading = draw.choice([(), (1,), (3,), (8,), (2, 3), (0,), (17,)])
    arguments = case.arguments(*leading, seed=draw.randrange(1 << 30))
    if "adapter_ids" in arguments and draw.random() < 0.5:
        arguments["adapter_ids"] = arguments["adapter_ids"].int()  # type: ignore[attr-defined]
    if draw.random() < 0.3:
        arguments["constant_weights"] = draw.choice([True, False])
    if op == "act_and_mul":
        arguments.pop("constant_weights", None)
    wrong = ""
    if draw.random() < 0.5:
        wrong, changes = draw.choice(_wrong_dense(draw, case, arguments))
        return _dense(case, arguments | changes, f"{case.name} {leading}", wrong)
    return _dense(case, arguments, f"{case.name} {leading}", wrong)


def _cases(device: str, op: str) -> list[Case]:
    if device == "cpu":
        return [case for case in CASES if case.op == op]
    fitting = [c for c in kernel_cases() if c.op == op and _elements(c) < WIDEST]
    return fitting or [replace(case, device=device) for case in CASES if case.op == op]


def _elements(case: Case) -> int:
    return case.sizes.get("K", 1) * case.sizes.get("N", 1)


def _dense(case: Case, arguments: Arguments, what: str, wrong: str) -> Drawn:
    def right(made: object) -> bool:
        given = {n: v for n, v in arguments.items() if n not in ("constant_weights", "out")}
        close = 3 * torch.finfo(case.dtype).eps
        return all(
            y.shape == exact.shape and bool((y.double() - exact).norm() <= close * exact.norm())
            for y, exact in zip(results(made), case.oracle(given), strict=True)
        )

    return Drawn(case.op, what, wrong, lambda: case.call(**arguments), right)


def _wrong_dense(
    draw: random.Random, case: Case, arguments: Arguments
) -> list[tuple[str, Arguments]]:
    """Return what may be wrong about a call, each with the arguments that make it so."""
    tensors = {n: v for n, v in arguments.items() if isinstance(v, Tensor)}
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    optional = name in ("bias", "norm_bias", "residual", "adapter_ids", "up_weight", "up")
    wrong: list[tuple[str, Arguments]] = [
        (f"{name} is float64", {name: tensor.double()}),
        (f"{name} is a number", {name: 3}),
        ("constant_weights is 3", {"constant_weights": 3}),
        ("out is a list", {"out": [1]}),
        ("out has another shape", {"out": tensor.new_empty(3, 3, 3, 3, 3).to(case.dtype)}),
    ]
    if case.op == "act_and_mul":
        wrong.pop(2)
    if not optional:
        wrong.append((f"{name} is None", {name: None}))
    if name != "adapter_ids":
        wrong.append((f"{name} requires grad", {name: tensor.clone().requires_grad_()}))
        wrong.append((f"{name} is one longer", {name: tensor.new_ones(*_longer(tensor))}))
    if tensor.dim() > 1 and name.endswith(("weight", "lora_a", "lora_b")):
        turned = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
        if not turned.is_contiguous():
            wrong.append((f"{name} is not contiguous", {name: turned}))
    if "norm_weight" in tensors:
        wrong.append(("eps is negative", {"eps": -1e-6}))
    if {"gate", "gate_weight"} & {*tensors}:
        wrong.append(("activation is no word of these", {"activation": "swish"}))
    ids = tensors.get("adapter_ids")
    if ids is not None and ids.numel():
        outside = draw.choice([case.sizes["A"], -2, 10**6])
        wrong.append(("an id is no adapter's", {"adapter_ids": torch.full_like(ids, outside)}))
    return wrong


def _longer(tensor: Tensor) -> list[int]:
    return [*tensor.shape[:-1], tensor.shape[-1] + 1]


# -- attention -------------------------------------------------------------------------------------


def attention_call(draw: random.Random, device: str, op: str) -> Drawn:
    """Draw a call of gqa, gqa_csr, qk_norm_attention or mla_decode."""
    case = _attention_case(draw, device, op)
    call = attention_cases.made(case)
    more: Arguments = {}
    if case.page_size and draw.random() < 0.3:
        for name in ("block_table", "seq_lens"):
            call.given[name] = call.given[name].long()  # type: ignore[attr-defined]
    if draw.random() < 0.3:
        more["constant_history"] = draw.choice([True, False])
    if case.page_size and draw.random() < 0.3:
        more["max_seq_len"] = max(case.lengths)
    wrong = ""
    if draw.random() < 0.5:
        tables = ("block_table", "seq_lens") if op == "gqa_csr" else ()
        possible = [w for w in _wrong_attention(draw, call) if not {*tables} & {*w[1]}]
        wrong, changes = draw.choice(possible)
        more |= changes

    def right(made: object) -> bool:
        out, lse = results(made)
        exact, exact_lse = call.exact()
        close = attention_cases.error(out, exact) < 2 * case.tolerance
        return close and attention_cases.same_lse(lse, exact_lse, 2 * case.lse_tolerance)

    def run() -> object:
        if op == "gqa_csr":
            return _by_lists(call, more | {"return_lse": True})
        return call.run(**more | {"return_lse": True})

    return Drawn(op, str(case), wrong, run, right)


def _attention_case(draw: random.Random, device: str, op: str) -> attention_cases.Case:
    page_size = 16 if op == "gqa_csr" else draw.choice([0, 1, 8, 16, 16, 64])
    lengths = tuple(draw.randint(0, 90) for _ in range(draw.randint(1, 5)))
    if max(lengths) == 0 or op == "gqa_csr":
        lengths = (*lengths[1:], 33)
    tokens = draw.choice([(1,), (1,), (3,), tuple(draw.randint(0, 4) for _ in lengths)])
    if len(tokens) > 1 and sum(tokens) == 0:
        tokens = (1,)
    sizes = {
        "lengths": lengths,
        "tokens": tokens,
        "dtype": draw.choice(DTYPES),
        "device": device,
        "page_size": page_size,
        "seed": draw.randrange(1 << 30),
    }
    options = {} if op == "mla_decode" else _masks(draw)
    options |= {"causal": False} if draw.random() < 0.3 else {}
    if op == "mla_decode":
        latent = draw.choice([(32, 16), (64, 8), (512, 64)])
        heads = draw.choice([1, 4, 16])
        more = {"apart": draw.random() < 0.5, "with_head": draw.random() < 0.5}
        return attention_cases.latent_case(latent, heads, options=options, **sizes, **more)
    return attention_cases.Case(
        heads=draw.choice([(4, 2), (8, 8), (6, 2), (8, 1)]),
        depth=draw.choice([64, 128, 72]),
        layout=draw.choice(["NHD", "HND"]),
        sinks=draw.random() < 0.2,
        norm=draw.choice(["rms", "layer"]) if op == "qk_norm_attention" else "",
        options=options,
        **sizes,  # type: ignore[arg-type]
    )


def _masks(draw: random.Random) -> Arguments:
    options: Arguments = {}
    if draw.random() < 0.3:
        options["window_left"] = draw.choice([0, 3, 40])
    if draw.random() < 0.2:
        options["logits_soft_cap"] = draw.choice([5.0, 30.0])
    return options


def _by_lists(call: attention_cases.Call, more: Arguments) -> object:
    """Call gqa_csr with the pages of a paged call."""
    table, lens = call.given["block_table"], call.given["seq_lens"]
    assert isinstance(table, Tensor)
    assert isinstance(lens, Tensor)
    page_size = call.case.page_size
    counts = (lens + page_size - 1) // page_size
    used = [table[b, : int(n)] for b, n in enumerate(counts)]
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0).to(counts.dtype)])
    last = torch.where(counts > 0, lens - (counts - 1) * page_size, 0)
    lists = {"indptr": starts, "indices": torch.cat(used), "last_page_len": last}
    names = ("block_table", "seq_lens")
    given = {n: v for n, v in call.given.items() if n not in names} | call.case.all_options
    return mirage_kernels.gqa_csr(call.q, call.k, call.v, **lists | given | more)  # type: ignore[arg-type]


def _wrong_attention(
    draw: random.Random, call: attention_cases.Call
) -> list[tuple[str, Arguments]]:
    given, case = call.given, call.case
    wrong: list[tuple[str, Arguments]] = [
        ("causal is None", {"causal": None}),
        ("scale is infinite", {"scale": torch.inf}),
        ("constant_history is a word", {"constant_history": "yes"}),
        ("max_seq_len is -2", {"max_seq_len": -2}),
        ("out is of another type", {"out": call.poisoned()[0].double()}),
        ("lse is of another shape", {"lse": call.poisoned()[1][..., :0]}),
    ]
    if not case.latent:
        wrong.append(("window_left is -2", {"window_left": -2}))
        wrong.append(("there is no such layout", {"kv_layout": "DNH"}))
        wrong.append(("a soft cap is negative", {"logits_soft_cap": -1.0}))
    if case.norm:
        wrong.append(("a weight is short", {"q_weight": call.norms["q_weight"][..., 1:]}))
        wrong.append(("there is no such norm", {"norm": "l2"}))
    starts = given.get("cu_seqlens_q")
    if isinstance(starts, Tensor):
        most = max(case.counts)
        wrong.append(("max_q_len is too small", {"max_q_len": most - 1}))
        wrong.append(("tokens end behind q", {"cu_seqlens_q": starts + 1}))
    if "block_table" in given:
        wrong += _wrong_tables(draw, call)
    return wrong


def _wrong_tables(draw: random.Random, call: attention_cases.Call) -> list[tuple[str, Arguments]]:
    table, lens = call.given["block_table"], call.given["seq_lens"]
    assert isinstance(table, Tensor)
    assert isinstance(lens, Tensor)
    longest = max(call.case.lengths)
    wrong: list[tuple[str, Arguments]] = [
        ("max_seq_len is too small", {"max_seq_len": longest - 1}),
    ]
    broken = table.clone()
    row = call.case.lengths.index(longest)
    broken[row, (longest - 1) // call.case.page_size] = draw.choice(
        [-1, call.k.shape[0] * 9, 2**30]
    )
    bad_length = draw.choice([-1, table.shape[1] * call.case.page_size + 1])
    wrong.append(("a page is none of the cache's", {"block_table": broken}))
    wrong.append(("a length has no room", {"seq_lens": torch.full_like(lens, bad_length)}))
    wrong.append(("seq_lens is missing", {"seq_lens": None}))
    wrong.append(("seq_lens is int16", {"seq_lens": lens.short()}))
    return wrong


# -- the step in front of attention, and page lists ---------------------------------------------


def append_call(draw: random.Random, device: str, op: str) -> Drawn:
    """Draw a call of qk_norm_rope_append."""
    drawn = append_cases.some_case(draw.choice([64, 128, 96, 72]), draw.randrange(1 << 30))
    rotated = min(drawn.rotated, drawn.depth) // 2 * 2
    case = replace(drawn, device=device, dtype=draw.choice(DTYPES), rotated=rotated)
    call = append_cases.made(case)
    wrong, changes = "", {}
    if draw.random() < 0.5:
        wrong, changes = draw.choice(_wrong_append(call))

    def right(made: object) -> bool:
        assert isinstance(made, Tensor)
        append_cases.check_results(call, made)  # raises AssertionError
        return True

    return Drawn(op, str(case), wrong, lambda: call.run(**changes), right)


def _wrong_append(call: append_cases.Call) -> list[tuple[str, Arguments]]:
    slots, positions = call.slots, call.positions
    end = call.slot_lines(call.caches[0]).shape[0]
    written = torch.zeros_like(slots)
    wrong: list[tuple[str, Arguments]] = [
        ("a slot is past the last page", {"slot_mapping": slots.clone().fill_(end)}),
        (
            "a position is past the table",
            {"positions": positions + 50, "slot_mapping": written + 1},
        ),
        ("rope is no word of these", {"rope": "yarn"}),
        ("there are no heads", {"num_heads": 0}),
        ("both caches are one", {"v_cache": call.caches[0]}),
        ("positions are fp32", {"positions": positions.float()}),
        ("constant_weights is 3", {"constant_weights": 3}),
    ]
    if slots.shape[0] > 1:
        wrong.append(("two tokens share a slot", {"slot_mapping": written}))
    return wrong


def list_call(draw: random.Random, device: str, op: str) -> Drawn:
    """Draw a call of block_table_from_csr."""
    counts = torch.tensor([draw.randint(0, 5) for _ in range(draw.randint(1, 6))])
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    indices = torch.randperm(int(starts[-1]) + 3)[: int(starts[-1])]
    last = torch.where(counts > 0, torch.randint(1, 17, counts.shape), 0)
    lists = {"indptr": starts, "indices": indices, "last_page_len": last}
    arguments: Arguments = {
        n: t.to(draw.choice([torch.int32, torch.int64])).to(device) for n, t in lists.items()
    }
    arguments["page_size"] = 16
    wrong = ""
    if draw.random() < 0.5:
        wrong, changes = draw.choice(_wrong_lists(arguments))
        arguments |= changes

    def right(made: object) -> bool:
        table, lens = results(made)
        wanted = torch.where(counts > 0, (counts - 1) * 16 + last, 0)
        rows = zip(table.cpu(), counts, starts, strict=False)
        same = all(torch.equal(row[:n].long(), indices[s : s + n]) for row, n, s in rows)
        return same and torch.equal(lens.cpu().long(), wanted)

    def run() -> object:
        return mirage_kernels.block_table_from_csr(**arguments)  # type: ignore[arg-type]

    return Drawn(op, f"{counts.tolist()} pages", wrong, run, right)


def _wrong_lists(arguments: Mapping[str, object]) -> list[tuple[str, Arguments]]:
    starts, last = arguments["indptr"], arguments["last_page_len"]
    assert isinstance(starts, Tensor)
    assert isinstance(last, Tensor)
    wrong: list[tuple[str, Arguments]] = [
        ("page lists end behind the pages", {"indptr": starts + 1}),
        ("page lists are one short", {"indptr": starts[:-1]}),
        ("page size is 0", {"page_size": 0}),
        ("indices are missing", {"indices": None}),
    ]
    if bool((starts.diff() > 0).any()):
        wrong.append(("starts decrease", {"indptr": starts.flip(0)}))
        wrong.append(("a last page has too many keys", {"last_page_len": last + 17}))
    return wrong


DRAW: Mapping[str, Callable[[random.Random, str, str], Drawn]] = {
    **dict.fromkeys(sorted({case.op for case in CASES}), dense_call),
    **dict.fromkeys(("gqa", "gqa_csr", "qk_norm_attention", "mla_decode"), attention_call),
    "qk_norm_rope_append": append_call,
    "block_table_from_csr": list_call,
}
