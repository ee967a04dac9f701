"""Attention kernels on a GPU: sampled calls against float64, and life with graphs and streams.

The grid is B, lengths, groups, head sizes, types, page sizes, layouts and options; calls are drawn
from it with fixed seeds, so that each value of each axis comes several times.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from attention_cases import Case, check, error, made, same_lse
from torch import Tensor

from mirage_kernels import constant_history, constant_weights, gqa, kernel_table

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("memory_given_back")]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
COMPILED = {
    recipe: sorted({(e.dims["D"], e.dtype) for e in kernel_table() if e.recipe == recipe})
    for recipe in (
        *("gqa", "sliding_window_attention", "gqa_full"),
        *("qk_norm_attention", "qk_layer_norm_attention"),
    )
}
NORMS = {"qk_norm_attention": "rms", "qk_layer_norm_attention": "layer"}
GROUPS = [1, 2, 4, 7, 8, 16, 32]
PAGE_SIZES = [0, 1, 16, 64, 256]
SEEDS = range(40)
MOST_KEYS = 1 << 18  # times heads and sequences: what a call's reference may take


def some_lengths(draw: random.Random, page: int) -> tuple[int, ...]:
    """Draw lengths that are special to pages and splits, alone or mixed in one batch."""
    page = page or 16
    special = [0, 1, page - 1, page, page + 1, 1000, 4096, 16384]
    kind = draw.choice(["one", "alike", "special", "mixed"])
    if kind == "one":
        return (draw.choice(special),)
    if kind == "alike":
        return (draw.choice(special[:-1]),) * draw.choice([2, 3, 8])
    if kind == "special":
        draw.shuffle(special)
        return tuple(special)
    most = draw.choice([8, 300, 3000])
    return tuple(draw.randrange(most) for _ in range(draw.choice([5, 17, 64, 150])))


def some_case(recipe: str, seed: int) -> Case:
    """Draw a call that a kernel of the recipe serves."""
    draw = random.Random(f"{recipe} {seed}")
    depth, dtype = draw.choice(COMPILED[recipe])
    page = draw.choice(PAGE_SIZES)
    lengths = some_lengths(draw, page)
    if page == 0 and max(lengths) == 0:
        lengths = (*lengths, 5)
    group, kv_heads = draw.choice(GROUPS), draw.choice([1, 2, 8])
    while kv_heads * sum(lengths) > MOST_KEYS and kv_heads > 1:
        kv_heads //= 2
    case = Case(
        lengths,
        (1,),
        (group * kv_heads, kv_heads),
        depth,
        DTYPES[dtype],
        "cuda",
        page,
        layout=draw.choice(["NHD", "HND"]),
        packed=page > 0 and draw.random() < 0.3,
        sinks=draw.random() < 0.3,
        spread=draw.choice([1.0, 1.0, 30.0]),
        norm=NORMS.get(recipe, ""),
        per_head=recipe == "qk_layer_norm_attention" and draw.random() < 0.5,
        seed=seed,
    )
    return with_options(recipe, case, draw)


def with_options(recipe: str, case: Case, draw: random.Random) -> Case:
    """Give a call the options that make it one of the recipe."""
    options: dict[str, object] = {}
    if draw.random() < 0.3:
        options["scale"] = 0.7 * case.depth**-0.5
    if recipe == "qk_norm_attention" and draw.random() < 0.5:
        options["weight_offset"] = draw.choice([1.0, -0.25])
    if recipe == "gqa" or recipe in NORMS:
        tokens = draw.choice([1, 1, 1, 2, 5])
        several = {"causal": False} if tokens > 1 else {}
        return replace(case, tokens=(tokens,), options=options | several)
    options["causal"] = True
    if recipe == "gqa_full":
        options["logits_soft_cap"] = draw.choice([5.0, 30.0, 50.0])
    windows = [-1, 0, 1, 15, 16, 127, 1000, 10**6]
    options["window_left"] = draw.choice(windows)
    tokens = (draw.choice([1, 2, 3, 8, 16]),)
    if len(case.lengths) > 1 and draw.random() < 0.5:
        tokens = tuple(draw.choice([0, 1, 1, 2, 4, 9]) for _ in case.lengths)
    if tokens == (1,) and options["window_left"] == -1 and recipe != "gqa_full":
        tokens = (2,)
    return replace(case, tokens=tokens, options=options)


def check_promised(case: Case) -> None:
    """Check a call; promises change no bit of it, also where all of them choose another kernel."""
    call = check(case)
    out = call.run()
    with constant_history():
        assert torch.equal(call.run(), out)
        with constant_weights():
            for _ in range(2):
                assert torch.equal(call.run(), out)
            again, lse = call.poisoned()
            call.run(out=again, lse=lse)
            assert torch.equal(again, out)
            assert not lse.isnan().any()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("recipe", COMPILED)
def test_is_close_to_float64_and_the_same_every_time(recipe: str, seed: int) -> None:
    if not COMPILED[recipe]:
        pytest.skip(f"this build has no kernel of {recipe}")
    check_promised(some_case(recipe, seed))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("depth", "dtype"), COMPILED["gqa"])
def test_every_group_works_with_every_kernel(depth: int, dtype: str, group: int) -> None:
    heads = (2 * group, 2)
    check_promised(Case((1, 100, 33), (1,), heads, depth, DTYPES[dtype], "cuda", page_size=16))


@pytest.mark.parametrize("tokens", [1, 5, 16, 64, 100])
def test_rows_beyond_a_tile_work(tokens: int) -> None:
    """More query tokens times heads than one tile of rows has; no lse: dense without prefill.

    Where this build has no kernel for causal tokens, those are PyTorch's.
    """
    case = first(lengths=(300, 300), tokens=(tokens,), page_size=0, options={"causal": False})
    check_promised(case)
    windowed = [(depth, DTYPES[name]) for depth, name in COMPILED["sliding_window_attention"]]
    if (case.depth, case.dtype) in windowed:
        check_promised(replace(case, options={}))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_long_sequences_are_cut_over_blocks(page_size: int) -> None:
    check_promised(first(lengths=(16384,), heads=(8, 2), page_size=page_size))
    check_promised(first(lengths=(16384, 0, 5, 16383), heads=(8, 1), page_size=page_size))


@pytest.mark.parametrize("page_size", [16, 32, 48, 64, 128, 256])
@pytest.mark.parametrize(("depth", "dtype"), [k for k in COMPILED["gqa"] if k[0] in (64, 128)])
def test_many_rows_are_cut_over_blocks(depth: int, dtype: str, page_size: int) -> None:
    """Boxes of many tokens begin at multiples of them, wherever blocks' parts do."""
    case = first(depth=depth, dtype=DTYPES[dtype], page_size=page_size, tokens=(20,))
    for lengths in ((1555, 2700), (4096,), (40, 3000, 21, 999)):
        check_promised(replace(case, lengths=lengths))
        check_promised(replace(case, lengths=lengths, options={"window_left": 700}))


def first(**changes: object) -> Case:
    """Return a call of the first kernel there is, or skip."""
    if not COMPILED["gqa"]:
        pytest.skip("this build has no kernel of gqa")
    depth, dtype = next((k for k in COMPILED["gqa"] if k[0] == 128), COMPILED["gqa"][0])
    case = Case(depth=depth, dtype=DTYPES[dtype], device="cuda", heads=(8, 2))
    return replace(case, **changes)  # type: ignore[arg-type]


SPECIAL = {
    "plain": {},
    "window": {"options": {"window_left": 20}},
    "several tokens": {"tokens": (4,), "lengths": (70, 300)},
    "varlen": {"tokens": (1, 0, 7), "lengths": (70, 300, 5)},
    "dense": {"page_size": 0, "lengths": (100, 100), "tokens": (3,)},
    "prefill": {"page_size": 0, "lengths": (256, 256), "tokens": (256,)},
    "normed": {"norm": "rms"},
    "normed by layer": {"norm": "layer", "per_head": True},
    "sinks": {"sinks": True},
}


@pytest.mark.parametrize("name", SPECIAL)
def test_waits_for_nothing(sync_is_an_error, name: str) -> None:
    call = made(first(**SPECIAL[name]))
    expected = call.run()
    with sync_is_an_error():
        y = call.run()
    assert torch.allclose(y, expected, atol=1e-2)


@pytest.mark.parametrize("name", SPECIAL)
def test_runs_on_the_current_stream(name: str) -> None:
    call = made(first(**SPECIAL[name]))
    expected = call.run()
    q, call.q = call.q, torch.zeros_like(call.q)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # a kernel on any other stream would overtake the copy
        call.q.copy_(q)
        y = call.run()
    stream.synchronize()
    assert torch.allclose(y, expected, atol=1e-2)


@pytest.mark.parametrize("options", [{}, {"window_left": 40}], ids=["plain", "window"])
@pytest.mark.parametrize(("batch", "tokens"), [(6, 1), (6, 3), (240, 1)])
@pytest.mark.parametrize("promised", [False, True])
def test_a_graph_serves_other_lengths_and_pages(
    captured, promised: bool, batch: int, tokens: int, options: dict[str, object]
) -> None:
    """Captured with short sequences; replayed with long, mixed and empty ones."""
    most, mixed = 2048, (2000, 0, 1, 16, 17, 999)
    lengths = [(4,) * batch, mixed * (batch // 6), (0,) * batch, (most,) * batch]
    calls = [
        made(first(lengths=n, tokens=(tokens,), options=options, seed=i))
        for i, n in enumerate(lengths)
    ]
    pages = max(call.k.shape[0] for call in calls)
    width = most // 16
    held = made(first(lengths=(pages * 16,), tokens=(tokens,), options=options))
    held.q = torch.zeros_like(calls[0].q)
    held.given["block_table"] = held.q.new_zeros(batch, width, dtype=torch.int32)
    held.given["seq_lens"] = held.q.new_zeros(batch, dtype=torch.int32)
    out, lse = held.poisoned()
    results = {"out": out} if promised else {"out": out, "lse": lse}
    with constant_weights(promised), constant_history(promised):
        graph = captured(lambda: held.run(**results, max_seq_len=most))
    for call in calls:
        held.q.copy_(call.q)
        held.k[: len(call.k)], held.v[: len(call.v)] = call.k, call.v
        table = call.given["block_table"][:, :width]
        held.given["block_table"][:, : table.shape[1]] = table
        held.given["seq_lens"].copy_(call.given["seq_lens"])
        out.fill_(torch.nan), lse.fill_(torch.nan)
        graph.replay()
        exact, exact_lse = call.exact()
        assert error(out, exact) < call.case.tolerance
        assert promised or same_lse(lse, exact_lse, call.case.lse_tolerance)
        graph.replay()
        replayed = out.clone()
        held.run(**results, max_seq_len=most)
        assert torch.equal(out, replayed)


def test_many_calls_in_flight_do_not_disturb_each_other() -> None:
    """One stream reuses the memory of workspaces; several have their own."""
    cases = [first(lengths=(3000, 5, 70), heads=(8, h), seed=h) for h in (1, 2, 4, 8)]
    calls = [made(case) for case in cases]
    expected = [call.run() for call in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    found: list[tuple[int, Tensor]] = []
    for _ in range(20):
        for i, call in enumerate(calls):
            found.append((i, call.run()))
            with torch.cuda.stream(streams[i]):
                found.append((i, call.run()))
    torch.cuda.synchronize()
    assert all(torch.equal(y, expected[i]) for i, y in found)


def test_allocates_only_results_and_a_workspace() -> None:
    call = made(first())
    out, lse = call.poisoned()

    def allocations() -> int:
        return int(torch.cuda.memory_stats()["allocation.all.allocated"])

    call.run(out=out, lse=lse)
    before = allocations()
    call.run(out=out, lse=lse)
    assert allocations() <= before + 1
    before = allocations()
    call.run(return_lse=True)
    assert allocations() <= before + 3


def test_writes_nothing_beside_its_results() -> None:
    call = made(first())
    wide = torch.full((5, 10, call.case.depth + 16), 3.0, dtype=call.q.dtype, device="cuda")
    call.run(out=wide[1:4, 1:9, 8:-8])
    assert torch.equal(wide[1:4, 1:9, 8:-8], call.run())
    inside = torch.zeros_like(wide, dtype=torch.bool)
    inside[1:4, 1:9, 8:-8] = True
    assert (wide[~inside] == 3).all()


def test_strided_and_unaligned_queries_are_taken() -> None:
    call = made(first())
    expected, q = call.run(), call.q
    wide = q.new_full((3, 20, q.shape[2]), torch.nan)
    wide[:, 2:10] = q
    odd = torch.cat([q.new_zeros(1), q.flatten()])[1:].view(q.shape)
    for call.q in (wide[:, 2:10], odd, q.transpose(0, 1).contiguous().transpose(0, 1)):
        assert torch.equal(call.run(), expected)


@pytest.mark.parametrize("name", SPECIAL)
def test_compiles_in_one_graph(name: str) -> None:
    torch.compiler.reset()
    call = made(first(**SPECIAL[name]))
    compiled = torch.compile(call.run, fullgraph=True)
    assert torch.allclose(compiled(), call.run(), atol=1e-2)


UNSERVED = {
    "a head size without a kernel": {"depth": 72},
    "all options": {"depth": 72, "tokens": (3, 1, 0), "sinks": True, "page_size": 64},
    "layer norm with an offset": {"norm": "layer", "options": {"weight_offset": 1.0}},
    "rms norm by head": {"norm": "rms", "per_head": True},
    "a normed window": {"norm": "rms", "options": {"window_left": 9}},
    "a window without causality": {
        "tokens": (3,),
        "options": {"causal": False, "window_left": 9, "logits_soft_cap": 9.0},
    },
}


@pytest.mark.parametrize("name", UNSERVED)
def test_what_no_kernel_serves_is_computed(name: str) -> None:
    case = Case(lengths=(0, 300, 40), device="cuda", heads=(8, 2))
    check_promised(replace(case, **UNSERVED[name]))  # type: ignore[arg-type]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [512, 700])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_is_close_to_float64(dtype: str, keys: int, causal: bool) -> None:
    case = Case((keys, keys), (512,), (8, 2), 128, DTYPES[dtype], "cuda", 0)
    call = made(replace(case, options={"causal": causal}))
    exact, _ = call.exact()
    assert error(call.run(), exact) < 2 * case.tolerance
    out = torch.full_like(call.q, torch.nan)
    assert call.run(out=out) is out
    assert error(out, exact) < 2 * case.tolerance


def test_tensors_of_two_devices_are_refused_by_name() -> None:
    call = made(first())
    with pytest.raises(RuntimeError, match="seq_lens is on cpu, but q is on cuda:0; move both"):
        gqa(call.q, call.k, call.v, call.given["block_table"], call.given["seq_lens"].cpu())
