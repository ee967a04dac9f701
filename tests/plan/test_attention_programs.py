"""Attention programs are run: each form computes what its muGraph does, others are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache

import pytest
from attention_graphs import GOLDEN, RECIPES, mugraph

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir import OPS, Phase
from mirage_kernels.generator.records.record import About, load_record
from mirage_kernels.generator.schedules.attention import plan
from mirage_kernels.generator.schedules.attention.check import require_same, split_of
from mirage_kernels.generator.schedules.attention.interpret import Split
from mirage_kernels.generator.schedules.attention.lower import attention_of, attention_program
from mirage_kernels.generator.schedules.attention.plan import planned
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, Do, Step
from mirage_kernels.generator.schedules.attention.variants import attention_variants
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import (
    Combine,
    Contract,
    Load,
    Reduce,
    Scale,
    Statement,
)

SMALL = Split(heads=2, keys=4, warps=2, blocks=13)
FORMS = (*RECIPES, "gqa-blocks_split_L_loop_over_L_combine")
PHASES = ("before", "loop", "after")
Mutants = Iterator[tuple[str, AttentionProgram]]


@cache
def fused(form: str) -> AttentionProgram:
    return attention_program(form, mugraph(form))


@cache
def undone(form: str) -> AttentionProgram:
    """Return the program without its online-softmax step: node by node."""
    *others, step = fused(form).loop
    return replace(fused(form), loop=(*others, *step.covers))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("split", [SMALL, Split(4, 16, 4, 3), Split(1, 2, 1, 11)])
def test_computes_what_its_mugraph_does(form: str, split: Split) -> None:
    require_same(mugraph(form), fused(form), split)


@pytest.mark.parametrize("form", FORMS)
def test_computes_it_with_the_tiles_of_all_variants(form: str) -> None:
    for variant in attention_variants(fused(form), target("sm_90a")):
        require_same(mugraph(form), fused(form), split_of(variant.knobs, fused(form)))


@pytest.mark.parametrize("form", FORMS)
def test_an_online_softmax_step_is_the_statements_that_it_covers(form: str) -> None:
    require_same(mugraph(form), undone(form), SMALL)


def with_steps(program: AttentionProgram, phase: str, steps: list[Step]) -> AttentionProgram:
    return replace(program, **{phase: tuple(steps)})


# A bias of all keys adds the same to all scores of a row, which softmax takes back.
NO_MATTER = "scaled_normed_k_minus_mean_k instead of scaled_normed_k_minus_mean_k_plus"


def reading(s: Step, old: str, new: str) -> Step:
    return replace(s, args=tuple(new if a == old else a for a in s.args))


def dropped(program: AttentionProgram) -> Mutants:
    """Every program that lacks a statement; what read it reads what it was made of."""
    for phase in PHASES:
        steps = list(getattr(program, phase))
        for s in steps:
            left = [t for t in steps if t is not s]
            yield f"without {s.out}", with_steps(program, phase, left)
            for arg in dict.fromkeys(s.args) if s.do is Do.MAP else ():
                short = with_steps(program, phase, [reading(t, s.out, arg) for t in left])
                resident = arg if program.resident == s.out else program.resident
                yield f"{arg} instead of {s.out}", replace(short, resident=resident)


def turned(program: AttentionProgram) -> Mutants:
    """Every program in which two operands have changed places that must not."""
    for phase in PHASES:
        steps = list(getattr(program, phase))
        for i, s in enumerate(steps):
            if s.do not in (Do.MAP, Do.SOFTMAX) or (s.op and OPS[s.op].commutative):
                continue
            for j in range(len(s.args) - 1):
                args = (*s.args[:j], s.args[j + 1], s.args[j], *s.args[j + 2 :])
                other = [*steps[:i], replace(s, args=args), *steps[i + 1 :]]
                yield f"{s.out} of {', '.join(args)}", with_steps(program, phase, other)


def moved(program: AttentionProgram) -> Mutants:
    """Every program with a statement in a phase in which it cannot run."""
    for here in PHASES:
        for s in getattr(program, here):
            for there in PHASES:
                early = here == "before" and there == "loop" and s.do in (Do.MAP, Do.LINE_SUM)
                if there == here or early:
                    continue
                left = [t for t in getattr(program, here) if t is not s]
                *first, last = getattr(program, there)
                other = with_steps(program, there, [*first, s, last])
                yield f"{s.out} {there}", with_steps(other, here, left)


def carried(program: AttentionProgram) -> Mutants:
    """Programs that carry, combine or multiply something else."""
    sums, product = program.sum, program.product
    yield "sum and product change places", replace(program, sum=product, product=sums)
    yield (
        "whole sums change places",
        replace(
            program,
            sum=replace(sums, whole=product.whole),
            product=replace(product, whole=sums.whole),
        ),
    )
    yield "the sum of one block", replace(program, sum=replace(sums, whole=sums.name))
    yield "the product of one block", replace(program, product=replace(product, whole=product.name))
    if program.loop[-1].do is not Do.SOFTMAX:
        yield "a sum that is not rescaled", replace(program, sum=replace(sums, name="other"))
        other = replace(product, name="other")
        yield "a product that is not rescaled", replace(program, product=other)
        yield "another maximum", replace(program, peak="other")
    tensors = program.tensors
    if tensors["keys"] != tensors["values"]:
        swapped = {"keys": tensors["values"], "values": tensors["keys"]}
        yield "keys and values", replace(program, tensors={**tensors, **swapped})


def unmasked(program: AttentionProgram) -> Mutants:
    """Programs whose online-softmax step has part of its mask only, or one that hides nothing."""
    *others, step = program.loop
    scores, mask = step.args
    made = {s.out: s for s in others}
    for part in made[mask].args if made[mask].op == "both" else ():
        partly = [*others, replace(step, args=(scores, part))]
        yield f"{part} only", with_steps(program, "loop", partly)
    every = replace(made[mask], out="every", op="less", args=("first", "last"))
    literals = {**program.literals, "first": 0, "last": 1}
    shown = [*others, every, replace(step, args=(scores, "every"))]
    yield "no mask", replace(with_steps(program, "loop", shown), literals=literals)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("changed", [dropped, turned, moved, carried, unmasked])
def test_a_changed_program_is_refused(
    form: str, changed: Callable[[AttentionProgram], Mutants]
) -> None:
    programs = [fused(form)] if changed is unmasked else [fused(form), undone(form)]
    accepted, mutants = [], [m for program in programs for m in changed(program)]
    assert mutants
    for what, mutant in mutants:
        with suppress(MirageError):
            require_same(mugraph(form), mutant, SMALL)
            accepted += [what] if what != NO_MATTER else []
    assert not accepted


def test_a_result_that_nobody_stores_is_seen() -> None:
    program = replace(fused("gqa"), after=())
    with pytest.raises(MirageError, match="the result is not known"):
        require_same(mugraph("gqa"), program, SMALL)


def test_a_kernel_is_planned_of_a_program_that_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    record = load_record(GOLDEN / "attention_gqa.json")
    about = About(**{f.name: getattr(record, f.name) for f in fields(About)})
    assert planned(about, record.graph).roles == record.roles
    (_, wrong), *_ = turned(fused("gqa"))
    monkeypatch.setattr(plan, "attention_program", lambda recipe, graph: wrong)
    with pytest.raises(MirageError):
        planned(about, record.graph)


Tiles = Iterator[tuple[Statement, BlockProgram]]
READ = (Load, Reduce, Contract, Scale, Combine)


def changed_tiles(block: BlockProgram) -> Tiles:
    """Every tile program without one of the statements that are read, or with it changed."""
    for phase, said in block.statements.items():
        for i, s in enumerate(said):
            if not isinstance(s, READ) or (isinstance(s, Load) and phase is Phase.BEFORE):
                continue
            for other in ((), *((t,) for t in changed_statements(s))):
                left = (*said[:i], *other, *said[i + 1 :])
                yield s, replace(block, statements={**block.statements, phase: left})


def changed_statements(s: Statement) -> Iterator[Statement]:
    if isinstance(s, Reduce):
        yield replace(s, op="sum" if s.op == "max" else "max", other="")
    if isinstance(s, Reduce) and s.carried:
        yield from (replace(s, carried=False), replace(s, factor="", rescale=""))
    if isinstance(s, Combine):
        yield from (replace(s, peak=""), replace(s, op="max"), replace(s, value="peak"))
    if isinstance(s, Scale):
        yield replace(s, factor="other")


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_tile_program_is_refused(form: str) -> None:
    graph = mugraph(form)
    (block,) = block_programs(graph, threads=128, stages=1)
    assert attention_of(form, graph, block) == fused(form)
    accepted = []
    for s, mutant in changed_tiles(block):
        with suppress(MirageError):
            require_same(graph, attention_of(form, graph, mutant), SMALL)
            accepted.append(s)
    assert not accepted
