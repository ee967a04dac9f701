"""The recipes of rope_cache_write by Triton, in its interpreter, against the library's op.

Triton reads TRITON_INTERPRET when it is imported: they run in a process of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from mirage_kernels.append_library import qk_norm_rope_append
from mirage_kernels.generator.bench.demonstrate import interpreted, loaded
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.request import Request

TOKENS, HQ, HKV, D, PAGES, PAGE, POSITIONS = 5, 4, 2, 32, 3, 4, 7
SLOTS, EPS, OFFSET = PAGES * PAGE, 0.1, 1.0
PLAIN, NORMED = "rope_cache_write", "rms_norm_rope_cache_write"
ROTATED = {PLAIN: 16, NORMED: D}  # elements of a head


def split(lines: Tensor, rotated: int, rope: str) -> list[Tensor]:
    """Return views of what rotates with each other, and of the rest if there is any."""
    turned, rest = lines.tensor_split([rotated], -1)
    pairs = turned.chunk(2, -1) if rope == "neox" else (turned[..., ::2], turned[..., 1::2])
    return [*pairs, rest] if rest.shape[-1] else [*pairs]


def main(path: Path, name: str, rope: str, layout: str) -> None:
    """Run the program on tensors of which some tokens have no slot and one no position."""
    drawn, rotated = torch.Generator().manual_seed(0), ROTATED[name]
    qkv = torch.randn(TOKENS, (HQ + 2 * HKV) * D, generator=drawn).half()
    table = torch.randn(POSITIONS, rotated, generator=drawn).half()
    positions = torch.tensor([3, 0, POSITIONS, 6, 1])
    slots = torch.tensor([9, -1, 2, SLOTS, 11], dtype=torch.int32)
    shape = [PAGES, PAGE, HKV, D] if layout == "NHD" else [PAGES, HKV, PAGE, D]
    caches = [torch.randn(shape, generator=drawn).half() for _ in range(2)]
    nhd = [x if layout == "NHD" else x.transpose(1, 2) for x in caches]
    weights = [torch.randn(D, generator=drawn).half() for _ in range(2 * (name == NORMED))]
    wanted, right = torch.empty(TOKENS, HQ, D).half(), [x.clone() for x in nhd]
    given = (qkv, *(weights or [None] * 2), None, None, table, positions, *right, slots)
    qk_norm_rope_append(*given, HQ, HKV, EPS, OFFSET, "rms" if weights else "none", rope, q=wanted)

    q, k, v = qkv.view(TOKENS, -1, D).tensor_split([HQ, HQ + HKV], 1)
    (qa, qb, *q_rest), (ka, kb, *k_rest) = (split(x, rotated, rope) for x in (q, k))
    more = [x for w in weights for x in split(w, rotated, rope)] + [EPS, OFFSET][: len(weights)]
    rows = [positions, slots, *split(nhd[0], rotated, rope), nhd[1]]
    run = getattr(loaded(path), name)
    made = run(qa, qb, ka, kb, v, *table.chunk(2, -1), *q_rest, *k_rest, *more, *rows)
    close = {"atol": 4e-3, "rtol": 4e-3, "equal_nan": True}
    for found, part in zip(made, split(wanted, rotated, rope), strict=False):
        torch.testing.assert_close(found, part, **close)
    for cache, one in zip(nhd, right, strict=True):
        torch.testing.assert_close(cache, one, **close)


@pytest.fixture(scope="module", params=[PLAIN, NORMED])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("triton")
    recipe = catalog()[request.param]
    wanted = Request(recipe, recipe.shapes[0], DType.FP16, "sm_90a")
    files = generate(wanted, jobs=1, progress=lambda event: None).files
    (text,) = (text for name, text in files.items() if name.endswith("triton.py"))
    path = tmp_path_factory.mktemp("program") / f"{request.param}.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("rope", ["neox", "interleaved"])
def test_it_computes_what_the_op_does(program: Path, rope: str, layout: str) -> None:
    interpreted(main, program, program.stem, rope, layout)
