"""The predicted time of a planned muGraph, with any of the three planners switched off.

The layouts' cycles, plus what the schedule and the memory plan decide: barriers, and how many
stages of a ring fit, hence whether enough bytes are in flight to keep device memory busy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from mirage_kernels.generator.ir import Graph, Phase
from mirage_kernels.generator.plan.barriers import Schedule, barrier_everywhere, schedule
from mirage_kernels.generator.plan.blocks import Block
from mirage_kernels.generator.plan.forms import Copy, Lanes, Swizzle
from mirage_kernels.generator.plan.implementations import Offered
from mirage_kernels.generator.plan.integer_program import OVERLAPPED, RESOURCES
from mirage_kernels.generator.plan.layouts import Layouts, Setup, layouts
from mirage_kernels.generator.plan.memory import Arrangement, arrange, side_by_side
from mirage_kernels.generator.plan.steps import PHASES, Steps, steps_of

MOST_STAGES = 8

# Tiles as the tensors have them, one for the block, read by ldmatrix; tokens on the M side, as a
# product x w^T is written.
UNPLANNED = Offered(
    copies=(Copy.CP_ASYNC, Copy.PLAIN),
    swizzles=(Swizzle.NONE,),
    slices=(False,),
    lanes=(Lanes.PAIRS,),
    m_side="dynamic",
)


@dataclass(frozen=True)
class Planners:
    """Which planners work. Without layouts' there is only what `unplanned` offers, without a
    schedule a barrier after every task, without a memory plan nothing shares bytes.
    """

    layouts: bool = True
    schedule: bool = True
    memory: bool = True
    unplanned: Offered = UNPLANNED


ALL = Planners()


@dataclass(frozen=True)
class KernelPlan:
    """One kernel's plan and its predicted time."""

    block: Block
    schedule: Schedule
    arrangement: Arrangement
    stages: int
    barriers: int  # of one block's life
    microseconds: float


@dataclass(frozen=True)
class Predicted:
    """A muGraph's plan and its predicted time, launches included."""

    layouts: Layouts
    kernels: tuple[KernelPlan, ...]

    @property
    def microseconds(self) -> float:
        """Predicted time of all kernels."""
        return sum(k.microseconds for k in self.kernels)


def predict(graph: Graph, setup: Setup, planners: Planners = ALL) -> Predicted:
    """Return the plan of a muGraph with these planners, and its predicted time."""
    offered = setup.offered if planners.layouts else planners.unplanned
    return carried_out(layouts(graph, replace(setup, offered=offered)), planners)


def carried_out(chosen: Layouts, planners: Planners = ALL) -> Predicted:
    """Return the plan under given layouts, and its predicted time."""
    return Predicted(chosen, tuple(_kernel(chosen, b, planners) for b in chosen.blocks))


def _kernel(chosen: Layouts, block: Block, planners: Planners) -> KernelPlan:
    """Return the better plan of two: sharing bytes across the end of the loop or not."""
    steps = steps_of(chosen, block)
    edges = [steps.edges, steps.edges + steps.reusing()] if planners.memory else [steps.edges]
    plans = []
    for wanted in edges:
        if planners.schedule:
            made = schedule(steps.sections, wanted)
        else:
            made = barrier_everywhere(steps.sections)
        stages, arrangement = _stages(steps, made, planners)
        plans.append(_priced(chosen, steps, (made, arrangement, stages)))
    return min(plans, key=lambda p: p.microseconds)


def _stages(steps: Steps, made: Schedule, planners: Planners) -> tuple[int, Arrangement]:
    """Return as many stages as fit and pay, and where everything lies then."""
    facts, room = steps.block.facts, steps.block.on.shared_bytes
    place = arrange if planners.memory else side_by_side
    best = (0, place(steps.buffers(made, 1)))
    for stages in range(1, MOST_STAGES + 1):
        arrangement = place(steps.buffers(made, stages))
        enough = stages > 2 and _in_flight(steps, stages) > facts.most_bytes_in_flight
        if arrangement.peak > room or enough:
            break
        best = (stages, arrangement)
        if not steps.streamed_bytes:
            break
    return best


def _priced(chosen: Layouts, steps: Steps, plan: tuple[Schedule, Arrangement, int]) -> KernelPlan:
    block, (made, arrangement, stages) = steps.block, plan
    passes = [block.steps if p is Phase.LOOP else 1 for p in PHASES]
    barriers = sum(made.barriers(i) * n + made.entry[i] for i, n in enumerate(passes))
    f, ways = block.facts, [w for w in chosen.solution.all if w.kernel == block.index]
    work = sum((w.work for w in ways), chosen.problem.base[block.index])
    busy = {r: work.cycles.get(r, 0.0) for r in RESOURCES}
    busy["memory"] /= _share(steps, stages)
    cycles = (1 - OVERLAPPED) * max(busy.values()) + OVERLAPPED * sum(busy.values())
    cycles += barriers * f.barrier_cycles * block.rounds + _latencies(chosen, block)
    spilled = max(0, work.registers - f.registers_per_thread)
    cycles += spilled * chosen.problem.limits.spilled_cycles
    fits = stages > 0
    time = block.on.launch_us + cycles / f.cycles_per_us if fits else inf
    return KernelPlan(block, made, arrangement, stages, barriers, time)


def _share(steps: Steps, stages: int) -> float:
    """Return the share of device memory's rate that the bytes in flight can use."""
    if not steps.streamed_bytes:
        return 1.0
    return min(1.0, _in_flight(steps, stages) / steps.block.facts.bytes_in_flight)


def _in_flight(steps: Steps, stages: int) -> float:
    """Return the bytes in flight per multiprocessor of the whole GPU, busy or idle.

    A ring of one stage has its bytes in flight half of the time, as a lead.
    """
    block = steps.block
    busy = min(block.blocks, block.on.multiprocessors) / block.on.multiprocessors
    return max(stages - 1, 0.5) * steps.streamed_bytes * busy


def _latencies(chosen: Layouts, block: Block) -> float:
    """Return the latencies that are no barriers of a block: of clusters, of device memory."""
    names = {x for w in chosen.solution.all if w.kernel == block.index for x in w.latencies}
    return sum(chosen.problem.latency_cycles[x] for x in names if not _is_barrier(x))


def _is_barrier(name: str) -> bool:
    _, kind, which = name.split(" ", 2)
    return kind in Phase.__members__ and which != "exposed"
