"""Rows that lie in pages, unknown rows that are NaN, index tensors of either type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from mirage_kernels.generator.errors import PlanError, RecipeError
from mirage_kernels.generator.ir import Dim, DType, Indexed, of_results
from mirage_kernels.generator.ir.text import parse_type
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.recipe import Recipe, recipe
from mirage_kernels.generator.records.programs import object_text
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general import roles_of, sizes_for
from mirage_kernels.generator.schedules.general.plan import launcher, sources
from mirage_kernels.generator.tiles.check import compare, require_same, shortened
from mirage_kernels.generator.tiles.indices import draws, gathered, scattered
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.rows import require_zeros
from mirage_kernels.recipes.rope_cache_write import rope_cache_write, rope_cache_write_fp32

PAGE = Dim("page_size", 2**31 - 1, dynamic=True)
CACHE = Indexed("result_0", ("M",), 0, Dim("pages", 9, dynamic=True), "slots", "int", page=PAGE)
TABLE = Indexed("cos", ("M",), 0, Dim("table_rows", 9), "positions", "int", unknown_is_nan=True)


def record_of(source: Recipe) -> KernelRecord:
    request = Request(source, source.shapes[0], DType.BF16, "sm_90a")
    return generate(request, jobs=1, progress=lambda event: None).record


@pytest.fixture(scope="module")
def record() -> KernelRecord:
    return record_of(rope_cache_write)


@pytest.fixture(scope="module")
def text(record: KernelRecord) -> str:
    (found,) = sources([record]).values()
    return " ".join(found.split())


def compared(record: KernelRecord, mutant: Mapping[str, Indexed]) -> None:
    """Compare programs that are addressed like `mutant` with what the record says."""
    short, sizes = shortened(record.graph)
    own = of_results(record.indexed, record.graph.outputs)
    programs = [p.with_indices({**own, **mutant}) for p in block_programs(short, 32, 1)]
    compare(short, programs, sizes, own)


def test_a_row_of_pages_is_in_page_row_by_size() -> None:
    memory, index = np.arange(12.0).reshape(2, 3, 2), np.array([4.0, 6.0, -1.0])
    assert gathered(CACHE, ("M", "D"), (memory, index), (3, 2)).tolist() == [[8, 9], [0, 0], [0, 0]]
    written = scattered(CACHE, ("M", "D"), (memory, index), np.full((3, 2), 99.0))
    assert written[1, 1].tolist() == [99, 99]
    assert (written != memory).sum() == 2


def test_unknown_rows_read_nan_where_that_is_wanted() -> None:
    memory, index = np.arange(4.0).reshape(2, 2), np.array([1.0, 2.0])
    found = gathered(TABLE, ("M", "D"), (memory, index), (2, 2))
    assert found[0].tolist() == [2, 3]
    assert np.isnan(found[1]).all()


def test_a_draw_has_pages_for_all_rows() -> None:
    memory = dict(draws({"y": CACHE}, {"y": {"M": 7, "D": 2}}))["y"]
    assert memory.ndim == 3
    assert memory.shape[0] * memory.shape[1] >= 7


def test_tile_programs_do_what_the_recipe_says(record: KernelRecord) -> None:
    compared(record, {})
    require_same(record.graph, 32, 1, record.indexed)


def test_pages_in_another_order_are_refused(record: KernelRecord) -> None:
    for name, one in of_results(record.indexed, record.graph.outputs).items():
        if one.page is None:
            continue
        with pytest.raises((PlanError, IndexError)):
            compared(record, {name: replace(one, place=1)})


def test_zeros_in_the_place_of_nan_are_refused(record: KernelRecord) -> None:
    own = of_results(record.indexed, record.graph.outputs)
    mutant = {name: replace(own[name], unknown_is_nan=False) for name in ("cos", "sin")}
    with pytest.raises(PlanError, match="differs from its muGraph"):
        compared(record, mutant)


def test_a_record_keeps_pages(record: KernelRecord, tmp_path) -> None:
    (tmp_path / "record.json").write_text(record.text())
    assert load_record(tmp_path / "record.json").indexed == rope_cache_write.indexed


def test_emitted_kernels_find_rows_in_pages(record: KernelRecord, text: str) -> None:
    of_all_sizes = 4 * len(record.variants)
    assert text.count("in_pages(row, args.page_size,") == of_all_sizes


def test_emitted_kernels_read_nan_of_unknown_rows(record: KernelRecord, text: str) -> None:
    assert text.count("or_nan(read_within<") == 4 * len(record.variants)


def test_emitted_kernels_take_index_tensors_of_either_type(text: str) -> None:
    assert "const void* slots_index;" in text
    assert "args.slots_index_strides[0], args.slots_index_bytes," in text
    assert "slots_index_tensor = given.next_index({int64_t(M)});" in text


def test_a_part_of_a_launch_finds_each_row_once(text: str) -> None:
    """Rows of the table for q and k, of the caches for both parts of k and for v."""
    assert text.count("row_of<false>(args.positions_index,") == 2
    assert text.count("row_of<false>(args.slots_index,") == 3


def test_a_block_divides_before_it_waits(text: str) -> None:
    first = text.index("if (z_index >= ((args.M")
    assert first < text.index("grid_dependency_wait", first) < text.index("z_index * 8", first)


def test_rows_that_are_nan_are_not_staged(record: KernelRecord) -> None:
    short, _ = shortened(record.graph)
    own = of_results(record.indexed, record.graph.outputs)
    program = next(p.with_indices(own) for p in block_programs(short, 32, 1))
    name = next(v for v, tensor in program.tensors.items() if tensor == "cos")
    with pytest.raises(PlanError, match=f"{name} is staged in shared memory, where rows that pos"):
        require_zeros(program, name)


def test_a_kernel_with_index_tensors_of_either_type_is_no_program(record: KernelRecord) -> None:
    with pytest.raises(PlanError, match="a recipe whose `indexed` says int32 or int64 works"):
        object_text(record)


def test_kernels_that_store_results_alone_need_no_headers_of_cute(text: str) -> None:
    assert '#include "general/each.cuh"' in text


def test_launches_take_what_the_library_gives(record: KernelRecord) -> None:
    """In the order of csrc/torch/append.cpp."""
    q, k = ("q_first", "q_second", "q_rest"), ("k_first", "k_second", "k_rest")
    made = launcher(record)
    results = ["q_turned", "q_kept", "k_written", "k_turned", "k_kept", "v_written"]
    names = [value.name for value in made.tensors]
    assert names[:9] == [*q, *k, "v", "cos", "sin"]
    assert names[10:] == results
    assert [x.by for x in made.indices] == ["positions", "slots"]
    dims = ["M", "Hq", "P", "S", "Hkv", "D", "table_rows", "pages", "page_size"]
    assert made.dynamic == dims


def test_cosines_may_be_fp32(record: KernelRecord) -> None:
    (text,) = sources([record_of(rope_cache_write_fp32)]).values()
    assert "const float* cos_tile_in;" in text
    assert "const __nv_bfloat16* q_first_tile_in;" in text


def test_a_kernel_of_any_shape_is_named_by_its_type(record: KernelRecord) -> None:
    assert record.path == "sm_90a/rope_cache_write/bf16.json"
    assert record.command == "mirage-kernels generate rope_cache_write --arch sm_90a --dtype bf16"


def test_kernels_are_planned_for_typical_extents(record: KernelRecord) -> None:
    sizes = sizes_for(record.graph, "", 0)
    assert sizes == {"M": 64, "Hq": 32, "Hkv": 8, "P": 64, "S": 64, "D": 128}


def test_a_typical_extent_has_one_kernel_for_all_sizes(record: KernelRecord) -> None:
    assert roles_of(record.graph).counted == ""
    assert [variant.bucket for variant in record.variants] == [0]


def test_the_first_dim_without_a_typical_extent_is_counted() -> None:
    typical = {name: n for name, n in rope_cache_write.typical.items() if name != "M"}
    made = record_of(replace(rope_cache_write, typical=typical))
    assert roles_of(made.graph).counted == "M"
    assert len(made.variants) > 1


def test_a_type_with_typical_extents_reads_back() -> None:
    assert str(parse_type("bf16[M<=8, P<=512~64]")) == "bf16[M<=8, P<=512~64]"
    assert parse_type("bf16[P<=512~64]").dims == (Dim("P", 512, dynamic=True, typical=64),)


def test_a_typical_extent_of_no_dynamic_dim_is_refused() -> None:
    declared = recipe(inputs={"x": "M K"}, output="M K", dynamic={"M": 4}, reference=lambda x: x)
    with pytest.raises(RecipeError, match="typical of recipe f names K, which is none of its dyn"):

        @replace(declared, typical={"K": 8})
        def f(x):
            """Do nothing."""
            return x * 2
