"""Rows that lie in pages, unknown rows that are NaN, index tensors of either type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from mirage_kernels.generator.errors import PlanError, RecipeError
from mirage_kernels.generator.ir import Dim, DType, Indexed, of_results
from mirage_kernels.generator.ir.text import parse_type
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.recipe import Recipe, catalog, recipe
from mirage_kernels.generator.records.programs import object_text
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general import roles_of, sizes_for
from mirage_kernels.generator.schedules.general.plan import launcher, sources
from mirage_kernels.generator.tiles.check import compare, require_same, shortened
from mirage_kernels.generator.tiles.indices import draws, gathered, scattered
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.rows import require_zeros

PAGE = Dim("page_size", 2**31 - 1, dynamic=True)
CACHE = Indexed("result_0", ("M",), 0, Dim("pages", 9, dynamic=True), "slots", "int", page=PAGE)
TABLE = Indexed("cos", ("M",), 0, Dim("table_rows", 9), "positions", "int", unknown_is_nan=True)


PLAIN, STATIC, NORMED = (f"{x}rope_cache_write" for x in ("", "static_", "rms_norm_"))


def record_of(source: Recipe) -> KernelRecord:
    request = Request(source, source.shapes[0], DType.BF16, "sm_90a")
    return generate(request, jobs=1, progress=lambda event: None).record


@pytest.fixture(scope="module", params=[PLAIN, STATIC, NORMED])
def record(request: pytest.FixtureRequest) -> KernelRecord:
    return record_of(catalog()[request.param])


@pytest.fixture(scope="module")
def plain() -> KernelRecord:
    """Of heads of any size."""
    return record_of(catalog()[PLAIN])


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
    assert load_record(tmp_path / "record.json").indexed == catalog()[record.recipe].indexed


def test_emitted_kernels_find_rows_in_pages(record: KernelRecord, text: str) -> None:
    caches = 4 if record.recipe == PLAIN else 3
    assert text.count("in_pages(row, args.page_size,") == caches * len(record.variants)


def test_emitted_kernels_read_nan_of_unknown_rows(record: KernelRecord, text: str) -> None:
    assert text.count("or_nan(read_within<") == 4 * len(record.variants)


def test_emitted_kernels_take_index_tensors_of_either_type(text: str) -> None:
    assert "const void* slots_index;" in text
    assert "args.slots_index_strides[0], args.slots_index_bytes," in text
    assert "slots_index_tensor = given.next_index({int64_t(M)});" in text


def test_a_part_of_a_launch_finds_each_row_once(record: KernelRecord, text: str) -> None:
    """Rows of the table for q and k, of the caches for the parts of k and for v."""
    assert text.count("row_of<false>(args.positions_index,") == 2
    assert text.count("row_of<false>(args.slots_index,") == (3 if record.recipe == PLAIN else 2)


def test_a_block_divides_before_it_waits(text: str) -> None:
    found = re.search(r"if \((\w)_index >= \(\(args.M", text)
    assert found is not None
    first, row = found.start(), f"{found[1]}_index * "
    assert first < text.index("grid_dependency_wait", first) < text.index(row, first)


def test_heads_of_q_and_k_and_v_are_one_launch(text: str) -> None:
    assert text.count("__global__") == 1
    assert text.count("__device__ __forceinline__ void") in (3, 5)


def test_rows_that_are_nan_are_not_staged(record: KernelRecord) -> None:
    short, _ = shortened(record.graph)
    own = of_results(record.indexed, record.graph.outputs)
    program = next(p.with_indices(own) for p in block_programs(short, 32, 1))
    name = next(v for v, tensor in program.tensors.items() if tensor == "cos")
    with pytest.raises(PlanError, match=f"{name} is staged in shared memory, where rows that pos"):
        require_zeros(program, name)


def test_kernels_with_index_tensors_of_either_type_are_called_by_name(record: KernelRecord) -> None:
    assert object_text(record).text == f'#include "{record.stem}.cu"\n'


def test_kernels_without_tiles_need_no_headers_of_cute(text: str) -> None:
    assert '#include "general/each.cuh"' in text


def test_launches_take_inputs_then_index_tensors_then_results(plain: KernelRecord) -> None:
    made = launcher(plain)
    names = [value.name for value in made.tensors]
    assert names[:9] == [n.name for n in plain.graph.inputs] == [*catalog()[PLAIN].inputs]
    assert names[10:] == ["q_turned", "q_kept", "k_written", "k_turned", "k_kept", "v_written"]
    assert [x.by for x in made.indices] == ["positions", "slots"]
    assert {*made.dynamic[:6]} == {"M", "Hq", "P", "S", "Hkv", "D"}
    assert made.dynamic[6:] == ["table_rows", "pages", "page_size"]


@pytest.mark.parametrize("name", [PLAIN, STATIC, NORMED])
def test_cosines_may_be_fp32(name: str) -> None:
    (text,) = sources([record_of(catalog()[f"{name}_fp32"])]).values()
    assert "const float* cos_tile_in;" in text
    assert "const __nv_bfloat16* q_first_tile_in;" in text


def test_a_kernel_of_any_shape_is_named_by_its_type(plain: KernelRecord) -> None:
    assert plain.path == "sm_90a/rope_cache_write/bf16.json"
    assert plain.command == "mirage-kernels generate rope_cache_write --arch sm_90a --dtype bf16"


def test_kernels_are_planned_for_typical_extents(plain: KernelRecord) -> None:
    sizes = sizes_for(plain.graph, "", 0)
    assert sizes == {"M": 64, "Hq": 32, "Hkv": 8, "P": 64, "S": 64, "D": 128}


def test_a_typical_extent_has_one_kernel_for_all_sizes(plain: KernelRecord) -> None:
    assert roles_of(plain.graph).counted == ""
    assert [variant.bucket for variant in plain.variants] == [0]


def test_the_first_dim_without_a_typical_extent_is_counted() -> None:
    source = catalog()[PLAIN]
    typical = {name: n for name, n in source.typical.items() if name != "M"}
    made = record_of(replace(source, typical=typical))
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
