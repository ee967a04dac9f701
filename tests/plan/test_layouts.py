"""Layouts: as cheap as the cheapest of all choices, and what is chosen where one knows why."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from types import ModuleType

import pytest

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Axis, Graph, Space
from mirage_kernels.generator.plan.blocks import default_sizes
from mirage_kernels.generator.plan.forms import Copy, Fragment, Lanes, Place, Stored, Swizzle
from mirage_kernels.generator.plan.implementations import Offered
from mirage_kernels.generator.plan.integer_program import Held, Problem, Way, possible, price, solve
from mirage_kernels.generator.plan.layouts import Layouts, Setup, layouts, problem_of
from mirage_kernels.generator.plan.prune import pruned
from mirage_kernels.generator.target import target

ON = target("sm_90a")
FEW = Offered(
    copies=(Copy.CP_ASYNC, None),
    swizzles=(Swizzle.NONE, Swizzle.HALVES),
    slices=(True,),
    lanes=(Lanes.OCTETS,),
)


def makers(held: Held, moves: Sequence[Way], chosen: Sequence[Way]) -> Iterator[list[Way]]:
    """Yield every chain of moves that makes a value in a form out of what is made."""
    for move in moves:
        if held not in move.makes:
            continue
        (need,) = move.needs
        if any(need in w.makes for w in chosen):
            yield [move]
        if not move.first_hand:
            yield from ([move, *chain] for chain in makers(need, moves, chosen))


def choices(problem: Problem) -> Iterator[tuple[Way, ...]]:
    """Yield every possible choice without idle moves."""
    for ways in product(*problem.items.values()):
        made = {h for w in ways for h in w.makes}
        missing = list(dict.fromkeys(h for w in ways for h in w.needs if h not in made))
        for chains in product(*(list(makers(h, problem.moves, ways)) for h in missing)):
            moves = list({id(m): m for chain in chains for m in chain}.values())
            if possible((*ways, *moves)):
                yield (*ways, *moves)


def small(mugraphs: ModuleType, seed: int) -> Graph:
    """Return a random kernel: a product, with or without a scale, a norm, a loop, an activation."""
    rng = random.Random(seed)
    looped = rng.random() < 0.5
    fmap = " / K" if looped else ""
    inputs = [f"x_tile = x * M{fmap}", f"w_tile = w N *{fmap}"]
    steps, operand = [], "w_tile"
    if rng.random() < 0.4:
        inputs.append(f"g_tile = g * *{fmap}")
        steps.append("scaled = mul w_tile g_tile")
        operand = "scaled"
    steps.append(f"y = contract x_tile {operand} over K")
    last = "y"
    if looped:
        steps.append("y_total = accum y")
        last = "y_total"
    if rng.random() < 0.4:
        steps.append(f"acted = {rng.choice(('silu', 'exp', 'relu'))} {last}")
        last = "acted"
    grid = (Axis("x", "N", rng.choice((16, 32, 48))), Axis("y", "M", rng.choice((8, 16))))
    loop = Axis("loop", "K", rng.choice((64, 128))) if looped else None
    kernel = mugraphs.Kernel(Space(grid, loop), inputs, steps, [f"{last} -> out N M"])
    sizes = mugraphs.dims(M="64", K=rng.choice((64, 256)) if looped else 64, N=96)
    tensors = {"x": "M K", "w": "N K", "g": "K"}
    used = {line.split(" = ")[1].split()[0] for line in inputs}
    kept = {name: dims for name, dims in tensors.items() if name in used}
    return mugraphs.build(mugraphs.Program(sizes, kept, {"out": "M N"}, [kernel]))


# Those of the first 40 with at most 4,000 combinations of ways, times the moves between forms.
FEW_CHOICES = (0, 1, 2, 5, 6, 11, 12, 13, 15, 16, 24, 37)


@pytest.mark.parametrize("seed", FEW_CHOICES)
def test_no_choice_of_layouts_is_cheaper(mugraphs: ModuleType, seed: int) -> None:
    offered = FEW if seed % 2 else Offered((Copy.CP_ASYNC,), (Swizzle.NONE,), (True, False))
    setup = Setup(ON, warps=4, offered=offered)
    graph = small(mugraphs, seed)
    _, problem = problem_of(graph, setup)
    cheapest = min(price(problem, chosen) for chosen in choices(pruned(problem)))
    made = layouts(graph, setup)
    assert possible(made.solution.all)
    assert made.cycles <= cheapest + 1.0  # of a cycle, what the order of the ways is worth


@pytest.mark.parametrize("seed", range(6))
def test_what_is_pruned_is_not_missed(mugraphs: ModuleType, seed: int) -> None:
    _, problem = problem_of(small(mugraphs, seed), Setup(ON, warps=4))
    smaller = pruned(problem)
    assert len(smaller.moves) < len(problem.moves)
    assert solve(smaller).cycles == pytest.approx(solve(problem).cycles, abs=2.0)


def planned(mugraphs: ModuleType, name: str, **more: int) -> Layouts:
    graph = mugraphs.MUGRAPHS[name]()
    return layouts(graph, Setup(ON, default_sizes(graph) | more))


def form(found: Layouts, value: str, place: int = 0) -> Fragment | Stored:
    return found.forms(found.blocks[0], value)[place]


def test_the_same_mugraph_has_the_same_layouts(mugraphs: ModuleType) -> None:
    first, second = (planned(mugraphs, "gated MLP, 8 tokens") for _ in range(2))
    assert first.describe() == second.describe()


def test_weights_take_the_m_side_where_tokens_are_few(mugraphs: ModuleType) -> None:
    found = planned(mugraphs, "gated MLP, 8 tokens")
    assert found.m_side(found.blocks[0], "gated") == "gate_tile"
    assert found.m_side(found.blocks[0], "raised") == "up_tile"


def test_the_contracted_dim_is_dealt_out_and_the_warps_meet_after_the_loop(
    mugraphs: ModuleType,
) -> None:
    found = planned(mugraphs, "gated MLP, 8 tokens")
    made = form(found, "gated")
    assert isinstance(made, Fragment)
    assert made.pending == "K"
    stored = form(found, "gated_total", 1)
    assert isinstance(stored, Stored)
    assert stored.parts == "K"


def test_octets_want_halves_swapped_and_pairs_the_copy_engines_swizzle(
    mugraphs: ModuleType,
) -> None:
    """Two layouts of the weights without bank conflicts, one for each lane map."""
    graph = mugraphs.gated_mlp()
    swizzles = {}
    for lanes in (Lanes.OCTETS, Lanes.PAIRS):
        found = layouts(graph, Setup(ON, offered=Offered((Copy.CP_ASYNC,), lanes=(lanes,))))
        stored = form(found, "gate_tile")
        assert isinstance(stored, Stored)
        swizzles[lanes] = stored.swizzle
    assert swizzles == {Lanes.OCTETS: Swizzle.HALVES, Lanes.PAIRS: Swizzle.XOR}


def test_decoding_deals_keys_out_to_warps_each_with_its_own_maximum(mugraphs: ModuleType) -> None:
    found = planned(mugraphs, "GQA, one kernel", B=8)
    scores, bound = form(found, "scores"), form(found, "bound")
    assert isinstance(scores, Fragment)
    assert isinstance(bound, Fragment)
    assert (scores.split, bound.pending) == ("L", "L")


def test_probabilities_reach_the_second_product_without_shared_memory(
    mugraphs: ModuleType,
) -> None:
    found = planned(mugraphs, "GQA, one kernel", B=8)
    forms = found.forms(found.blocks[0], "weights")
    assert all(isinstance(f, Fragment) for f in forms)


def test_blocks_of_a_cluster_combine_through_distributed_shared_memory(
    mugraphs: ModuleType,
) -> None:
    found = planned(mugraphs, "GQA, a cluster per head", B=8)
    combined = form(found, "mixed_all")
    assert isinstance(combined, Stored)
    assert combined.place is Place.CLUSTER


def test_more_blocks_than_a_cluster_has_combine_through_device_memory(
    mugraphs: ModuleType,
) -> None:
    graph = mugraphs.gqa_cluster(4096)
    sizes = default_sizes(graph) | {"B": 8, "L": 8192}
    found = layouts(graph, Setup(ON, sizes))
    combined = form(found, "mixed_all")
    assert isinstance(combined, Stored)
    assert combined.place is Place.DEVICE


def test_a_tensor_between_two_kernels_lies_alike_for_both(mugraphs: ModuleType) -> None:
    found = planned(mugraphs, "GQA, split in two kernels", B=8)
    forms = {
        held_form
        for way in found.solution.all
        for held, held_form in (*way.needs, *way.makes)
        if held == "mixed_parts"
    }
    assert len(forms) == 1


def test_tensors_from_outside_lie_as_they_are_given(mugraphs: ModuleType) -> None:
    found = planned(mugraphs, "gated MLP, 8 tokens")
    assert found.device("up") == Stored(Place.DEVICE, ("N", "K"))
    assert found.device("out") == Stored(Place.DEVICE, ("M", "N"))


def test_rows_that_are_not_16_byte_aligned_take_plain_loads(mugraphs: ModuleType) -> None:
    kernel = mugraphs.Kernel(
        Space((Axis("x", "N", 32), Axis("y", "M", 8)), Axis("loop", "K", 60)),
        ("x_tile = x * M / K", "w_tile = w N * / K"),
        ("y = contract x_tile w_tile over K", "y_total = accum y"),
        ("y_total -> out N M",),
    )
    sizes = mugraphs.dims(M="64", K=4100, N=96)
    program = mugraphs.Program(sizes, {"x": "M K", "w": "N K"}, {"out": "M N"}, [kernel])
    graph = mugraphs.build(program)
    stored = form(layouts(graph, Setup(ON, offered=Offered(copies=tuple(Copy)))), "w_tile")
    assert isinstance(stored, Stored)
    assert stored.copy is Copy.PLAIN
    with pytest.raises(PlanError, match="no choice of layouts"):
        layouts(graph, Setup(ON, offered=Offered(copies=(Copy.CP_ASYNC, Copy.TENSOR))))


@pytest.mark.parametrize("seed", range(6))
def test_more_to_choose_from_is_never_dearer(mugraphs: ModuleType, seed: int) -> None:
    graph = small(mugraphs, seed)
    everything = layouts(graph, Setup(ON, warps=4)).cycles
    assert everything <= layouts(graph, Setup(ON, warps=4, offered=FEW)).cycles + 1.0
