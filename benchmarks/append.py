"""Measures the op that norms, rotates and appends beside kernels of its recipes.

    python benchmarks/append.py DIR --json FILE

Kernels of `rope_cache_write` and its other forms are generated and compiled below DIR, unless
they are there. Op and recipe take the same tensors and write the same caches, of pages of 16, under
CUDA graphs that rotate over inputs, the tables in the tensors' own type and in fp32. Errors are
those of queries and of written lines against PyTorch's program in fp32. The op may go where no
kernel of the recipe is slower.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from mirage_kernels import append_library, load, program, qk_norm_rope_append, rope_append
from mirage_kernels.generator.bench.measure import Clock, gpu_clock
from mirage_kernels.generator.bench.workload import TORCH_DTYPES, Inputs, relative_error
from mirage_kernels.generator.cli import main as command
from mirage_kernels.generator.commands.bench import document_of, measured_here
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.records.files import write_whole

TOKENS, PAGE, SLOTS, POSITIONS, EPS = (1, 8, 64, 512), 16, 65536, 8192, 1e-6
MOST_SETS = 256
HEAD = f"{'model':<14}{'recipe':<27}{'tables':<9}{'tokens':>6}"
HEAD += f"{'op us':>9}{'recipe us':>11}{'ratio':>7}{'error':>9}"
Recipe = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Model:
    """What one layer of a model does between its projection and attention."""

    name: str
    recipe: str
    heads: tuple[int, int]  # of q, and of k and v
    depth: int
    weight_offset: float = 0.0

    @property
    def norms(self) -> bool:
        """Say whether heads are normed."""
        return self.recipe.startswith("rms_norm")

    @property
    def rests(self) -> bool:
        """Say whether the recipe takes what does not rotate."""
        return self.recipe == "rope_cache_write"


MODELS = (
    Model("Llama-3.1-8B", "rope_cache_write", (32, 8), 128),
    Model("Llama-3.1-8B", "static_rope_cache_write", (32, 8), 128),
    Model("Llama-3.2-1B", "static_rope_cache_write", (32, 8), 64),
    Model("Qwen3-8B", "rms_norm_rope_cache_write", (32, 8), 128),
    Model("Gemma-3-12B", "rms_norm_rope_cache_write", (16, 8), 256, weight_offset=1.0),
)


# -- calls -----------------------------------------------------------------------------------------


def caches(model: Model, dtype: torch.dtype, device: str, slots: int = SLOTS) -> list[Tensor]:
    """Return caches of keys and of values, `[pages, page size, Hkv, D]`, of zeros."""
    shape = (slots // PAGE, PAGE, model.heads[1], model.depth)
    return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)]


def draw(
    model: Model, tokens: int, both: Sequence[Tensor], table: torch.dtype, seed: int
) -> Inputs:
    """Return the tensors of a call of the op over caches, by the names that it has for them."""
    (k, v), (hq, hkv) = both, model.heads
    generator = torch.Generator(k.device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=k.device).to(k.dtype)

    angles = torch.rand(POSITIONS, model.depth // 2, generator=generator, device=k.device) * 6.3
    slots = torch.randperm(k.shape[0] * PAGE, generator=generator, device=k.device)[:tokens]
    at = torch.randint(POSITIONS, (tokens,), generator=generator, device=k.device)
    found = {
        "qkv": normal(tokens, (hq + 2 * hkv) * model.depth),
        "q_weight": normal(model.depth),
        "k_weight": normal(model.depth),
        "cos_sin_cache": torch.cat([angles.cos(), angles.sin()], -1).to(table),
    }
    return found | {"positions": at, "k_cache": k, "v_cache": v, "slot_mapping": slots}


def by_op(model: Model, given: Inputs) -> Tensor:
    """Call the library's op; return the queries."""
    heads = {"num_heads": model.heads[0], "num_kv_heads": model.heads[1]}
    if model.norms:
        norm = {"eps": EPS, "weight_offset": model.weight_offset}
        return qk_norm_rope_append(**given, **heads, **norm)
    weights = ("q_weight", "k_weight")
    return rope_append(**{n: x for n, x in given.items() if n not in weights}, **heads)


def by_recipe(model: Model, given: Inputs, run: Recipe) -> Tensor:
    """Call a kernel of the recipe with views of the op's tensors; return the queries."""
    k_cache, v_cache, qkv = given["k_cache"], given["v_cache"], given["qkv"]
    hq, hkv = model.heads
    q, k, v = qkv.view(len(qkv), -1, model.depth).split([hq, hkv, hkv], 1)
    made = torch.empty_like(q, memory_format=torch.contiguous_format)
    cos, sin = given["cos_sin_cache"].chunk(2, -1)
    named: dict[str, Tensor | float] = {"v": v, "cos": cos, "sin": sin}
    for name, x in (("q", q), ("k", k)):
        named |= zip((f"{name}_first", f"{name}_second"), x.chunk(2, -1), strict=True)
    into = [*made.chunk(2, -1), *k_cache.chunk(2, -1), v_cache]
    if model.norms:
        for name in ("q", "k"):
            halves = given[f"{name}_weight"].chunk(2)
            named |= zip((f"{name}_first_weight", f"{name}_second_weight"), halves, strict=True)
        named |= {"eps": EPS, "weight_offset": model.weight_offset}
    if model.rests:  # nothing of a head is left
        rest = slice(model.depth, None)
        named |= {"q_rest": q[..., rest], "k_rest": k[..., rest]}
        into[2:2], into[5:5] = [made[..., rest]], [k_cache[..., rest]]
    run(**named, positions=given["positions"], slots=given["slot_mapping"], into=into)
    return made


def exact(model: Model, given: Inputs) -> list[Tensor]:
    """Return queries, and lines of keys and values that are written, by PyTorch in fp32."""
    t = {n: x.float() if x.is_floating_point() else x for n, x in given.items()}
    tokens = len(t["qkv"])
    both = [torch.zeros(tokens, 1, *t[n].shape[2:]).to(t["qkv"]) for n in ("k_cache", "v_cache")]
    slots = torch.arange(tokens, device=both[0].device)
    weights = (t["q_weight"], t["k_weight"]) if model.norms else (None, None)
    q = torch.empty(tokens, model.heads[0], model.depth).to(t["qkv"])
    append_library.qk_norm_rope_append(
        *(t["qkv"], *weights, None, None, t["cos_sin_cache"], t["positions"], *both, slots),
        *(*model.heads, EPS, model.weight_offset, "rms" if model.norms else "none", "neox"),
        q=q,
    )
    return [q, *(x[:, 0] for x in both)]


def error(model: Model, given: Inputs, run: Callable[[Inputs], Tensor]) -> float:
    """Return the largest relative error of what a call makes and writes."""
    wanted = exact(model, given)
    found = [run(given)]
    found += [given[n].flatten(0, 1)[given["slot_mapping"]] for n in ("k_cache", "v_cache")]
    return max(map(relative_error, found, wanted))


# -- times -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Times of one call by the op and by the recipe's kernel, and their errors."""

    model: str
    recipe: str
    tables: str
    tokens: int
    op_us: float
    recipe_us: float
    ratio: float  # of the recipe's time to the op's
    op_error: float
    recipe_error: float

    def line(self) -> str:
        """Return the row of the table."""
        times = f"{self.op_us:>9.2f}{self.recipe_us:>11.2f}{self.ratio:>7.2f}"
        what = f"{self.model:<14}{self.recipe:<27}{self.tables:<9}{self.tokens:>6}"
        return f"{what}{times}{self.recipe_error:>9.1e}"


def measured(
    model: Model, tokens: int, types: tuple[torch.dtype, torch.dtype], run: Recipe, clock: Clock
) -> Row:
    """Measure a call by the op and by the recipe, of tensors and tables of some types."""
    both = caches(model, types[0], clock.device)
    first = draw(model, tokens, both, types[1], 0)
    count = min(MOST_SETS, clock.sets(3 * first["qkv"].nbytes))
    sets = [draw(model, tokens, both, types[1], n) for n in range(count)]
    for other in sets[1:]:
        other["cos_sin_cache"] = sets[0]["cos_sin_cache"]
    ways = (partial(by_op, model), partial(by_recipe, model, run=run))
    errors = [error(model, first, way) for way in ways]
    times = [clock.per_call([partial(way, given) for given in sets]) for way in ways]
    tables = str(types[1]).removeprefix("torch.")
    return Row(model.name, model.recipe, tables, tokens, *times, times[1] / times[0], *errors)


def make(folder: Path, dtype: str) -> None:
    """Generate and compile the kernels of a type below a folder, unless they are there."""
    names = [f"{m.recipe}{more}" for m in MODELS for more in ("", "_fp32")]
    for name in dict.fromkeys(names):
        if not [*folder.glob(f"sm_*/{name}/*{dtype}.so")]:
            said = ["generate", name, "--dtype", dtype, "--jobs", "1", "--out", str(folder)]
            if command(said) or command(["compile", str(folder)]):
                raise SystemExit(f"{name} {dtype} was not made")


def main() -> None:
    """Make kernels and measure them, a row for each call."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dtype", default="bf16", choices=[t.value for t in TORCH_DTYPES])
    options = parser.parse_args()
    make(options.folder.resolve(), options.dtype)
    load(options.folder)
    own, clock, rows = TORCH_DTYPES[DType(options.dtype)], gpu_clock(), list[Row]()
    names: Mapping[torch.dtype, str] = {own: "", torch.float32: "_fp32"}
    print(HEAD)
    for model, table, tokens in product(MODELS, names, TOKENS):
        run = program(f"{model.recipe}{names[table]}")
        rows.append(measured(model, tokens, (own, table), run, clock))
        print(rows[-1].line(), flush=True)
    if options.json is not None:
        here = measured_here("python benchmarks/append.py")
        write_whole(options.json, document_of(here, [asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
