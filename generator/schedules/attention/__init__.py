"""What flash decode and attention by wgmma share: their program, knobs, variants, writer."""

from __future__ import annotations

from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import AttentionProgram
from mirage_kernels.generator.schedules.schedule import Knobs, Subject


def lowered(subject: Subject) -> AttentionProgram:
    """Return the attention program of a muGraph; raises PlanError for one of another form."""
    return attention_program(subject.recipe, subject.graph)


def shared_bytes(program: AttentionProgram, knobs: Knobs) -> int:
    """Return the shared memory of one block."""
    assert isinstance(knobs, AttentionKnobs)
    return knobs.shared_bytes(*program.sizes)
