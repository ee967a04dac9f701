"""General tile programs: every form as one, run; changed ones refused; their stores end in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import pytest
import torch
from tiled_forms import FORMS, KERNELS, programs

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType, Graph, Phase
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general import variants_of
from mirage_kernels.generator.schedules.general.plan import knobs_by_size
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tiles.check import compare, shortened
from mirage_kernels.generator.tiles.cuda import KernelWriter
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.memory import TileError
from mirage_kernels.generator.tiles.program import BlockProgram, Tile
from mirage_kernels.generator.tiles.statements import Apply, Barrier, Fill, Statement


@pytest.mark.parametrize("form", FORMS)
def test_computes_what_its_mugraph_does(form: str) -> None:
    compare(*programs(form))


def without_a_barrier(program: BlockProgram) -> Iterator[BlockProgram]:
    """Every program that has one barrier less."""
    for phase, said in program.statements.items():
        for i, s in enumerate(said):
            if isinstance(s, Barrier) and not s.cluster:
                left = (*said[:i], *said[i + 1 :])
                yield replace(program, statements={**program.statements, phase: left})


@pytest.mark.parametrize("form", ["gated_mlp", "layer_norm_linear", "gqa"])
def test_a_dropped_barrier_is_a_race(form: str) -> None:
    graph, (program,), sizes = programs(form)
    mutants = [*without_a_barrier(program)]
    assert mutants
    for mutant in mutants:
        with pytest.raises(TileError):
            compare(graph, [mutant], sizes)


def test_a_wrong_number_of_stages_is_refused() -> None:
    graph, (program,), sizes = programs("gated_mlp")
    tiles = {name: replace(t, stages=min(t.stages, 2)) for name, t in program.tiles.items()}
    with pytest.raises(MirageError):
        compare(graph, [replace(program, tiles=tiles)], sizes)


class Swapped(Tile):
    """A tile whose strides are those of its dims in the other order."""

    @cached_property
    def strides(self) -> dict[str, int]:
        """The wrong strides."""
        strides = super().strides
        return dict(zip(strides, reversed(strides.values()), strict=True))


def test_a_swapped_layout_is_refused() -> None:
    graph, (program,), sizes = programs("gated_mlp")
    tile = next(t for t in program.tiles.values() if len(t.dims) == 2)
    swapped = Swapped(tile.name, tile.dims, tile.dtype, tile.stages)
    with pytest.raises(MirageError):
        compare(graph, [replace(program, tiles={**program.tiles, tile.name: swapped})], sizes)


def test_statements_in_another_order_are_refused() -> None:
    graph, (program,), sizes = programs("gqa")
    said: list[Statement] = list(program.statements[Phase.LOOP])
    work = [i for i, s in enumerate(said) if not isinstance(s, Barrier)]
    said[work[-1]], said[work[-2]] = said[work[-2]], said[work[-1]]
    with pytest.raises(MirageError):
        compare(
            graph,
            [replace(program, statements={**program.statements, Phase.LOOP: tuple(said)})],
            sizes,
        )


STORED = re.compile(r"const int left =\s+([^;]*);\s*write_within<(\d+)")


@pytest.mark.parametrize("form", ["gated_mlp", "silu_and_mul", "gqa"])
def test_a_store_of_uneven_tiles_is_cut_at_the_end(form: str) -> None:
    _, own, _ = programs(form)
    for program in own:
        text = "\n".join(KernelWriter(program, "it", DType.FP16).text())
        (left, width) = STORED.findall(text)[-1]
        output = program.body.of("output")[-1]
        last = program.extents[output.out.type.names[-1]]
        tile = program.type(output.args[0]).dim(last.name).size
        even = last.size % tile == 0 and tile % int(width) == 0
        assert even or str(last.size) in left or "args." in left


@pytest.mark.parametrize("form", ["gqa_full", "sliding_window_attention", "layer_norm_linear"])
def test_blocks_have_room_for_forms_with_several_dims_of_rows(form: str) -> None:
    graph = load_record(min((KERNELS / form).glob("*_fp16.json"))).graph
    assert variants_of(knobs_by_size(graph, target("sm_90a")))[-1].bucket == 0


def of_few_queries() -> Graph:
    """Attention of 4 queries a head, where tensor cores take 8: scaled as they are read."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("hgd,hld->hgl", q * 0.25, k)
        return torch.einsum("hgl,hld->hgd", torch.softmax(scores, dim=-1), v)

    shapes = {"q": (2, 4, 32), "k": (2, 64, 32), "v": (2, 64, 32)}
    given = {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    recipe = from_torch(attention, given, dynamic={"k": {1: "L"}, "v": {1: "L"}})
    request = Request(recipe, recipe.shapes[0], DType.BF16)
    return generate(request, jobs=1, progress=lambda event: None).record.graph


def test_query_rows_of_several_dims_are_rounded_up_together() -> None:
    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        scores = torch.einsum("htgd,hld->htgl", q * 0.25, k) + bias[:, None]
        return torch.einsum("htgl,hld->htgd", torch.softmax(scores, dim=-1), v)

    shapes = {"q": (2, 4, 4, 32), "k": (2, 64, 32), "v": (2, 64, 32), "bias": (4, 64)}
    given = {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    recipe = from_torch(
        attention, given, dynamic={n: {shapes[n].index(64): "L"} for n in ("k", "v", "bias")}
    )
    request = Request(recipe, recipe.shapes[0], DType.BF16)
    graph = generate(request, jobs=1, progress=lambda event: None).record.graph
    (program,) = block_programs(graph, threads=64, stages=2)
    assert max(f.extents[2] for f in program.fragments.values()) <= 16  # not 8 of 4, by 8 of 4


def test_reads_in_place_end_with_the_tensor_where_tiles_are_rounded_up() -> None:
    (program,) = block_programs(of_few_queries(), threads=64, stages=2)
    scaled = next(s.value for s in program.statements[Phase.BEFORE] if isinstance(s, Fill))
    assert [d.size for d in program.tiles[scaled].dims] == [1, 8, 32]
    text = "\n".join(KernelWriter(program, "attention", DType.BF16).text())
    (left,) = re.findall(r"args\.q_tile_in [^;]+;\s*const int left = ([^;]+);", text)
    assert re.search(r"_at < 4 \?", left)


def test_a_read_that_nothing_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sizes = shortened(of_few_queries())
    programs = block_programs(graph, threads=64, stages=2)
    compare(graph, programs, sizes)
    own = BlockProgram.is_uneven
    monkeypatch.setattr(  # takes tiles for what they are before they are rounded up
        BlockProgram, "is_uneven", lambda p, x, d, _: own(p, x, d, p.type(x).dim(d).size)
    )
    with pytest.raises(TileError, match="nothing tells where q_tile ends"):
        compare(graph, programs, sizes)


def test_what_many_results_share_is_computed_once() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("hd,hld->hl", q, k) * 0.25
        return torch.einsum("hl,hld->hd", torch.softmax(scores, dim=-1), v)

    shapes = {"q": (4, 32), "k": (4, 64, 32), "v": (4, 64, 32)}
    given = {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    recipe = from_torch(attention, given, dynamic={"k": {1: "L"}, "v": {1: "L"}})
    request = Request(recipe, recipe.shapes[0], DType.BF16)
    record = generate(request, jobs=1, progress=lambda event: None).record
    (program,) = block_programs(record.graph, threads=64, stages=2)
    filled = {
        phase: [program.node(s.value).op for s in said if isinstance(s, Fill | Apply)]
        for phase, said in program.statements.items()
    }
    assert filled[Phase.BEFORE] == ["mul"]  # queries times the scale: no step changes them
    assert filled[Phase.LOOP] == ["exp"]
    text = "\n".join(KernelWriter(program, "attention", DType.BF16).text())
    assert text.count("template add<") == 2  # tensor cores multiply vectors: queries, weights


def row_norm(columns: int) -> tuple[BlockProgram, str]:
    """The program and text of rows over their sums, a row to a block."""

    def normed(x: torch.Tensor) -> torch.Tensor:
        return x / x.abs().mean(dim=-1, keepdim=True)

    given = {"x": torch.empty(4, columns, dtype=torch.bfloat16, device="meta")}
    recipe = from_torch(normed, given, dynamic={"x": {0: "M"}})
    request = Request(recipe, recipe.shapes[0], DType.BF16)
    record = generate(request, jobs=1, progress=lambda event: None).record
    (program,) = block_programs(record.graph, threads=64, stages=2)[-1:]
    return program, "\n".join(KernelWriter(program, "norm", DType.BF16).text())


def test_rows_of_uneven_length_are_read_as_words_and_stored_one_element_a_thread() -> None:
    _, even = row_norm(256)
    _, uneven = row_norm(255)
    assert "load_vector<8, kAligned>" in even or "read_within<8, kAligned>" in even
    assert "read_uneven" not in even
    assert set(re.findall(r"(\w+)<\d, kAligned>", uneven)) == {"read_uneven", "write_within"}
    assert "write_within<1, kAligned>" in uneven


def test_what_a_store_reads_of_memory_is_read_before_it_stores() -> None:
    _, (program,), _ = programs("silu_and_mul")
    text = "\n".join(KernelWriter(program, "it", DType.FP16).text())
    taken = re.search(r"each_taken<Taken, \d+, \d+, (\d+)>", text)
    assert taken is not None
    assert int(taken[1]) > 1


def emitted(run: Callable[..., torch.Tensor], names: str) -> list[tuple[BlockProgram, str]]:
    """The programs of a function of tensors [M, 256], which were run, and their texts."""
    given = {n: torch.empty(4, 256, dtype=torch.bfloat16, device="meta") for n in names}
    recipe = from_torch(run, given, dynamic={n: {0: "M"} for n in names})
    request = Request(recipe, recipe.shapes[0], DType.BF16)
    record = generate(request, jobs=1, progress=lambda event: None).record
    made = block_programs(record.graph, threads=64, stages=2)
    return [(p, "\n".join(KernelWriter(p, "it", DType.BF16).text())) for p in made]


def test_sums_that_read_a_tensor_alike_are_one_pass_without_shared_memory() -> None:
    def margins(a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.triplet_margin_loss(a, p, n)

    (program, text), *_ = emitted(margins, "apn")
    assert not {*program.tiles} & {*program.tensors}  # no input is copied
    assert re.search(r"reduce<Taken, Sum, 64, \d+, 32, 2, false, \d+>", text)  # two sums a thread
    assert text.count("taken.a_tile = ") == 1


def test_sums_of_which_one_takes_the_other_read_twice() -> None:
    def spread(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(dim=-1, keepdim=True)).abs().mean(dim=-1)

    (program, text), *_ = emitted(spread, "x")
    assert "x_tile" in program.tiles
    assert not re.search(r"reduce<\w+, Sum, 64, \d+, \d+, 2, false", text)


def test_sums_along_an_extent_of_run_time_end_with_it() -> None:
    _, (_, text) = emitted(lambda x: x.square().mean(), "x")
    assert "}, (args.M_parts + 7) / 8);" in text


def column_sums(columns: int) -> str:
    """The text of sums over the middle dim of [M, 64, columns]."""
    given = {"x": torch.empty(4, 64, columns, dtype=torch.bfloat16, device="meta")}
    recipe = from_torch(lambda x: x.square().sum(dim=1), given, dynamic={"x": {0: "M"}})
    request = Request(recipe, recipe.shapes[0], DType.BF16)
    record = generate(request, jobs=1, progress=lambda event: None).record
    (program,) = block_programs(record.graph, threads=256, stages=2)
    return "\n".join(KernelWriter(program, "it", DType.BF16).text())


def test_sums_over_rows_of_uneven_length_go_through_words_as_they_lie() -> None:
    uneven = column_sums(4095)
    assert re.search(r"reduce_words<kAligned, __nv_bfloat16, Sum, 256, \d+, \d+, 64, 4>", uneven)
    assert "shifted" not in uneven
    assert "reduce_words" not in column_sums(4096)


def test_threads_that_sum_up_what_they_read_in_place_have_registers_for_it() -> None:
    (_, text), *_ = emitted(lambda x, y: (x - y).square().mean(), "xy")
    assert "__launch_bounds__(64, 16)" in text
    _, staged = row_norm(512)
    assert "__launch_bounds__(64)" in staged
    _, held = row_norm(256)
    assert "__launch_bounds__(64, 8)" in held
