"""Emitted kernels of every schedule: formatted, as large as planned, launched as chosen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from compilers import compiled, formatted

from mirage_kernels.generator.emit.cuda import Header, emit_cuda
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Layout
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.sources import files_of, table_of
from mirage_kernels.generator.schedules.batched_lora import (
    PRODUCER_BLOCKS,
    TASKS_BYTES,
    first_launch,
    slices_ahead,
)
from mirage_kernels.generator.schedules.choose import programs_of, shared_bytes, variants
from mirage_kernels.generator.schedules.cluster_split_k import ClusterSplitK
from mirage_kernels.generator.schedules.loop import BARRIER_BYTES, LoopKnobs, kept_bytes
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.sliced_k.area import Area
from mirage_kernels.generator.schedules.streaming import Kernel, stacked_kernel
from mirage_kernels.generator.target import target

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "sm_90a"
ON = target("sm_90a")
HEADER = Header("command", "stem", [("Formula", "none")])
SPACE = "mirage::generated::"
BLOCKS = {
    "sliced_k": "SharedMap",
    "register_operand": "RegisterOperandBlock",
    "cluster_split_k": "ClusterSplitKBlock",
}
SPLIT = {  # written by hand: what the norm weight scales, element type, N
    "split w 6144": ("w", DType.FP16, 6144),
    "split x 6144": ("x", DType.BF16, 6144),
    "split w 4096": ("w", DType.FP16, 4096),
}
ADAPTED = {  # by hand as well: a fixture's muGraph, rank; the last one without producer blocks
    "adapted, rank 8": ("adapted", 8),
    "adapted, rank 24": ("adapted", 24),
    "normed and adapted": ("normed_adapted", 64),
}
PROLOGUE = ["layer_norm_linear/K4096_N6144_fp16", "layer_norm_linear_full/K4096_N4096_bf16"]
LORA = ["lora_linear/K4096_N4096_R16_bf16", "lora_linear/K4096_N4096_R64_fp16"]
GATED = ["gated_mlp/K4096_N4096_fp16", "gated_mlp/K4096_N14336_bf16"]
NORMED = ["rms_norm_linear/K8192_N10240_bf16", "rms_norm_gated_mlp/K4096_N14336_bf16"]
STACKED = ["lora_linear_full/K4096_N4096_R16_bf16", "lora_linear_full/K4096_N4096_R64_fp16"]
# Every kind of block, with half and brain floats where a size depends on them.
SIZED = ["split w 6144", "split x 6144", "adapted, rank 8", "normed and adapted", *NORMED]
SIZED += [PROLOGUE[0], LORA[1], GATED[0], STACKED[1]]
Kernels = Callable[[str], Kernel]
each_lora = pytest.mark.parametrize("name", LORA)


def stacked(name: str) -> KernelRecord:
    return replace(load_record(KERNELS / f"{name}.json"), stacked=("lora_a", "lora_b"))


@pytest.fixture(scope="module")
def kernel(request: pytest.FixtureRequest, fused: Callable[..., Graph]) -> Kernels:
    """Return the kernel of a name, with the rule's variants."""

    @cache
    def make(name: str) -> Kernel:
        if name in SPLIT:
            scales, dtype, n = SPLIT[name]
            shape = Shape("a test", {"K": 4096, "N": n})
            program = tile_program("mine", fused(scales, shape=shape, dtype=dtype))
            chosen = variants(program, ON)
            if scales == "x":  # whose tokens the rule holds in registers
                last = replace(chosen[-1], knobs=ClusterSplitK(64, 96, 6))
                chosen = (*chosen[:-1], last)
            return Kernel(program, chosen, dtype, HEADER)
        if name in ADAPTED:
            fixture, rank = ADAPTED[name]
            shape = Shape("a test", {"K": 4096, "N": 4096, "R": rank})
            graph = with_threads(request.getfixturevalue(fixture)(shape))
            program = programs_of("lora_linear", graph, ON.arch)[-1 if rank == 64 else 0]
            return Kernel(program, variants(program, ON), DType.FP16, HEADER)
        if name in STACKED:
            made = stacked_kernel(stacked(name))
            assert made is not None
            return made
        record = load_record(KERNELS / f"{name}.json")
        program = programs_of(record.recipe, record.graph, record.arch)[0]
        return Kernel(program, variants(program, ON), record.storage, HEADER)

    return make


@pytest.mark.parametrize("name", [*SPLIT, *ADAPTED, *STACKED])
def test_it_is_formatted_as_clang_format_would(kernel: Kernels, name: str) -> None:
    text = emit_cuda(kernel(name))
    assert formatted(text) == text


def sizes(made: Kernel) -> Iterator[tuple[str, int]]:
    """Yield the types of all blocks of a kernel, and the shared memory planned for each."""
    program = made.program
    for variant in made.variants:
        knobs, config = variant.knobs, SPACE + variant.name("M")
        assert isinstance(knobs, LoopKnobs)
        planned = shared_bytes(program, knobs)
        if program.stacked:
            slice_bytes = kept_bytes(knobs.rows // knobs.blocks, program.extents["R"])
            planned += TASKS_BYTES + (slices_ahead(program, knobs, ON) - 1) * slice_bytes
        assert planned <= ON.shared_bytes
        yield f"{BLOCKS[variant.schedule]}<{config}>", planned
        if knobs.producers:
            assert program.producers is not None
            block = f"producing::SharedMap<{SPACE}Producers<{config}>>"
            paired = f"ProducersBlock<{config}>" if knobs.producers.groups else block
            yield paired, shared_bytes(program.producers, knobs.producer_knobs)
    if program.stacked:
        first, sums = first_launch(program), Area("sums", Layout.ACCUM, partial=True)
        met = sums.bytes(first) + sums.bytes(replace(first, warps=PRODUCER_BLOCKS))
        block = f"producing::SharedMap<{SPACE}Producers<{SPACE}Shape>>"
        yield block, TASKS_BYTES + met + BARRIER_BYTES


@pytest.mark.parametrize("name", SIZED)
def test_its_blocks_are_as_large_as_planned(kernel: Kernels, name: str, tmp_path: Path) -> None:
    made = kernel(name)
    checks = [f"static_assert({SPACE}{b}::kBytes == {size});\n" for b, size in sizes(made)]
    ran = compiled(emit_cuda(made) + "".join(checks), tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr
    assert "warning" not in ran.stderr


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("split w 6144", ["SlicedK", "SlicedK", "SlicedK", "ClusterSplitK"]),
        ("split x 6144", ["SlicedK", "SlicedK", "SlicedK", "ClusterSplitK"]),
        ("split w 4096", ["SlicedK", "SlicedK", "ClusterSplitK", "ClusterSplitK"]),
        *((name, ["SlicedK", *["AfterPrologue"] * 3]) for name in PROLOGUE),
        *((name, [*["SlicedK"] * 2, *["RegisterOperand"] * 2]) for name in GATED),
    ],
)
def test_more_tokens_are_launched_by_other_schedules(
    kernel: Kernels, name: str, served: list[str]
) -> None:
    configs = re.findall(r"using (\w+M) =\s+(\w+)<Shape", emit_cuda(kernel(name)))
    assert configs == list(zip(("UpTo8M", "UpTo16M", "UpTo32M", "AnyM"), served, strict=True))


def test_who_finishes_nothing_leaves_before_sums_are_added(kernel: Kernels) -> None:
    text = emit_cuda(kernel("split w 6144"))
    leaves = text.index("if (!block.finishes(M - first_token)) return;")
    assert text.index("wait_for_partials(block);") < leaves < text.index("add_partials(block")


# -- a prologue kernel -----------------------------------------------------------------------------


def test_few_tokens_need_no_workspace(kernel: Kernels) -> None:
    text = emit_cuda(kernel(PROLOGUE[0]))
    assert re.findall(r"int64_t workspace\((\w+)", text) == ["AfterPrologue"]


def test_what_follows_starts_when_the_kernels_before_have_ended(kernel: Kernels) -> None:
    text = emit_cuda(kernel(PROLOGUE[0]))
    front = text[text.index("layer_norm_linear_prologue(") : text.index("launch(AfterPrologue")]
    assert front.index("launch_prologue()") < front.index(".load()")
    behind = "return launch(RegisterOperand<Config>{}, tile::launch_behind(args, 0, K), stream);"
    assert behind in text


def test_a_file_whose_variants_are_all_of_few_tokens_has_no_prologue(kernel: Kernels) -> None:
    made = kernel(PROLOGUE[0])
    text = emit_cuda(replace(made, variants=made.variants[:1]))
    assert "prologue" not in text
    assert "workspace" not in text


@pytest.mark.parametrize("name", [PROLOGUE[0], LORA[1]])
def test_a_file_of_the_last_variant_alone_compiles(
    kernel: Kernels, name: str, tmp_path: Path
) -> None:
    made = kernel(name)
    alone = replace(made, variants=[Variant(0, made.variants[-1].knobs)])
    ran = compiled(emit_cuda(alone), tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr


# -- producer blocks -------------------------------------------------------------------------------


@each_lora
def test_consumers_in_pairs_are_served_by_pairs_others_by_slices(
    kernel: Kernels, name: str
) -> None:
    text = emit_cuda(kernel(name))
    held = text[text.index("lora_linear_register_operand(const") :]
    assert "if (producers.is_producer()) return lora_linear_produce<Config>(given, shared);" in held
    assert "producing::" not in held
    assert "producers.template receive<tile::kReceivingWarps>(" in held
    slices = text[: text.index("// The arguments of a launch of producer and consumer blocks.")]
    assert "lora_linear_produce" not in slices
    assert "producers.receive(" in slices


@each_lora
def test_a_workspace_has_room_for_blocks_that_share_rows(kernel: Kernels, name: str) -> None:
    made = kernel(name)
    rows = r"tile::ceil_div\(N, Config::kRows\)"
    room = rf"ProducerBlocks<Config>::bytes\(args\.dims\[0\], (\d+) \* {rows}\)"
    (consumers_of_rows,) = re.findall(room, emit_cuda(made))
    knobs = [v.knobs for v in made.variants if isinstance(v.knobs, LoopKnobs)]
    assert max(k.blocks for k in knobs) == int(consumers_of_rows)


def test_the_table_names_workspaces_where_there_are_some() -> None:
    records = [load_record(KERNELS / f"{name}.json") for name in LORA]
    assert len(re.findall(r"SPACE\(lora_linear, ", table_of("sm_90a", records))) == 2


# -- register operands -----------------------------------------------------------------------------


LINES = {
    # What is computed of tokens stands in the loop, and beside the pipeline.
    NORMED[0]: (
        "static constexpr int kVectors = 1, kTokenSums = 1;",
        "tile::TokenPartial<tile::kRowTile> x_squared;       // [M]",
        "const auto copy_vectors = [&] { block.copy_vector(0, norm_weight); };",
        "const auto x_squared_parts = tile::store_partials(block, 0, x_squared);",
        "tile::contract(scaled_x_product, weight_tile, ",
    ),
    # Blocks of a pair copy the same rows, and finish half of them.
    LORA[1]: (
        "const int tile_row = producers.consumer() / Block::kBlocks * Block::kRows;",
        "const int first_row = tile_row + Block::rank() * Block::kOwnRows;",
        "tile::copy_tile_once(buffer.rows(0), given.maps[1], tile_row, k, buffer.full);",
        "const tile::OutputTile out_tile{first_row, N, first_token, M};",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_kernel_of_register_operands_has_its_lines(kernel: Kernels, name: str) -> None:
    lines = [line.strip() for line in emit_cuda(kernel(name)).splitlines()]
    for wanted in LINES[name]:
        assert any(line.startswith(wanted) for line in lines), wanted


def test_every_warp_of_a_consumer_tells_the_cluster_once(kernel: Kernels) -> None:
    text = emit_cuda(kernel(LORA[1]))
    user = text[text.index("lora_linear_register_operand(const __grid_constant__") :]
    assert user.count("Block::sync_cluster();") == 1  # the warp that receives
    assert user.count("block.begin();") == 1  # all others


# -- batched LoRA ----------------------------------------------------------------------------------


def test_a_record_whose_weights_may_be_stacked_has_a_second_kernel_and_row() -> None:
    made = stacked(STACKED[0])
    plain = replace(made, stacked=())
    path = "sm_90a/lora_linear_batched/K4096_N4096_R16_bf16.cu"
    assert path in files_of(made)
    assert path not in files_of(plain)
    row = "SPACE(lora_linear_batched, K4096_N4096_R16_bf16, bf16,"
    assert row in table_of("sm_90a", [made])
    assert row not in table_of("sm_90a", [plain])


@pytest.mark.parametrize("arch", ["sm_80", "sm_120a"])
def test_elsewhere_there_is_none(arch: str) -> None:
    assert stacked_kernel(replace(stacked(STACKED[0]), arch=arch)) is None


@pytest.mark.parametrize("inputs", [(), ("lora_a",), ("weight", "lora_b")])
def test_what_is_stacked_is_both_factors_of_the_adapter(inputs: tuple[str, ...]) -> None:
    assert stacked_kernel(replace(stacked(STACKED[0]), stacked=inputs)) is None


def test_the_tiles_of_stacked_kernels_are_those_of_the_record(kernel: Kernels) -> None:
    proved = stacked(STACKED[1])
    for variant in kernel(STACKED[1]).variants:
        assert proved.tiles(variant) in map(proved.tiles, proved.variants)
