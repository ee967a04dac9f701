"""Producer blocks and consumer blocks of an intermediate that every block of a launch needs.

Rows that the grid does not cut (`Roles.inner`: the rank of an adapter) would be multiplied by every
block with its tokens, and all of them be read from L2. Where the grid leaves multiprocessors free,
its first blocks, the producers, share these rows and the tokens among them
(csrc/tile/producer_blocks).
The program falls into two then: that of the producers, whose rows are the inner ones, and that of
the consumers, which receives their results and is a plain one otherwise. The muGraph stays as it
is.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from mirage_kernels.generator.emit.statements import fetches, kept_at, output_tile, shared_at
from mirage_kernels.generator.plan.program import (
    IN_WORKSPACE,
    Do,
    Operand,
    Roles,
    Statement,
    TileProgram,
    needed,
)
from mirage_kernels.generator.schedules.loop import ROW_TILE, TOKEN_TILE, rows_for
from mirage_kernels.generator.target import Target

WHERE_MEASURED = ("sm_90a",)
# Results have to be there before a consumer needs them: with a loop of 256 elements consumers
# waited (3.6 us against 2.3), with as many rows as a producer has they would, too.
FEWEST_DEPTH, FEWEST_ROWS = 2048, 2 * ROW_TILE
MOST_PRODUCERS = 32  # of a tile of tokens: a lane waits for each
PAIR = 2  # producers that share a tile and split the depth, each of which finishes half of its rows
TAG_BYTES = 16  # of a producer, behind its ring (csrc/tile/producer_blocks/intermediate.cuh)
MOST_PAIRED_ROWS = 112  # the N side of the vocabulary's largest product
RECEIVERS = 4  # warps of a consumer that receive what such producers leave

FORM, PAIRS = "producers", "paired_producers"
PAIRED = "tile/producer_blocks/register_operand.cuh"
NAMESPACE = "producing"  # of what producers run
RECEIVING = "tile::kReceivingWarps"  # of a consumer that receives from pairs
AT_ONCE = "tile::Start::at_once()"  # all that streams was there when the kernel started


def spare_blocks(program: TileProgram, on: Target) -> int:
    """Return how many blocks may be producers; 0: every block computes all itself."""
    if on.arch not in WHERE_MEASURED or program.lines or len(program.kept) != 1:
        return 0
    extents = program.extents
    (inner,) = (extents[dim] for dim in program.roles.inner)
    rows = rows_for(extents[program.roles.rows], on.multiprocessors)
    spare = on.multiprocessors - -(-extents[program.roles.rows] // rows)
    if rows < FEWEST_ROWS or extents[program.roles.depth] < FEWEST_DEPTH or inner % TOKEN_TILE:
        return 0
    return min(spare, MOST_PRODUCERS) if -(-inner // ROW_TILE) <= spare else 0


def with_producer_blocks(program: TileProgram, on: Target) -> TileProgram:
    """Return the program with producer blocks where it may have some; else the same."""
    return divided(program) if spare_blocks(program, on) else program


def producer_tiles(
    program: TileProgram, tokens: int, on: Target, *, paired: bool = False
) -> list[tuple[int, int]]:
    """Return the inner rows and the tokens that a producer may have, the fewest lines first.

    As many tiles as there are cover all: one for each of the blocks that are left, or for each pair
    of them that shares one and has register operands. Of tiles with as many lines the first by
    rows; of pairs the one with most, whose producers end sooner (64 x 32: 6.9 us, 32 x 64: 7.5).
    """
    (dim,) = program.roles.inner
    inner, spare = program.extents[dim], spare_blocks(program, on) // (PAIR if paired else 1)
    least = ROW_TILE if paired else TOKEN_TILE
    rows = [
        r
        for r in range(ROW_TILE, inner + ROW_TILE, ROW_TILE)
        if not paired or (inner % r == 0 and r <= MOST_PAIRED_ROWS)
    ]
    halves = [t for t in (tokens >> i for i in range(tokens.bit_length())) if t % least == 0]
    fitting = [(r, t) for r, t in product(rows, halves) if -(-inner // r) * (tokens // t) <= spare]
    return sorted(fitting, key=lambda tile: (sum(tile), -tile[0] if paired else tile[0]))


def divided(program: TileProgram) -> TileProgram:
    """Return the program with those of its producer blocks and of its consumer blocks."""
    loop, reductions = _summed(program, program.epilogue)
    program = replace(program, producers=_producers(program))
    consumers = replace(
        program,
        inputs=program.read_by(*loop, *program.fetches, *program.epilogue),
        loop=loop,
        reductions=reductions,
        stages=(),
        products=tuple(replace(p, barrier=False) for p in program.products),
        received=program.kept,
    )
    return replace(program, consumers=consumers)


def _producers(program: TileProgram) -> TileProgram:
    """Return the program of the producer blocks: a plain one, of the inner rows."""
    (stage,) = program.stages
    (kept,) = program.kept
    (total,) = kept.args
    roles = Roles(program.roles.tokens, program.roles.depth, stage.dim)

    def placed(s: Statement) -> Statement:
        layout = roles.layout(s.type.names)
        assert layout is not None
        return replace(s, layout=layout)

    store = Statement(Do.STORE, kept.out, (total,), kept.type, kept.layout)
    epilogue = (*(s for s in stage.statements if s.do is not Do.KEEP), store)
    loop, reductions = _summed(program, epilogue)
    return replace(
        program,
        roles=roles,
        inputs=program.read_by(*loop, *epilogue),
        output=Operand(kept.out, IN_WORKSPACE, kept.type),
        loop=tuple(map(placed, loop)),
        reductions=tuple(map(placed, reductions)),
        epilogue=tuple(map(placed, epilogue)),
        fetches=(),
        stages=(),
        products=(),
    )


def _summed(
    program: TileProgram, epilogue: tuple[Statement, ...]
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Return what of the loop an epilogue has totals of, and where these sums meet."""
    wanted = {s.args[0] for s in epilogue if s.do is Do.TOTAL}
    reductions = [m for m in program.reductions if m.out in wanted]
    barrier = any(m.barrier for m in program.reductions)
    met = tuple(replace(m, barrier=barrier and m is reductions[0]) for m in reductions)
    return needed(program.loop, wanted), met


# -- as CUDA: what blocks write to produce an intermediate for others, or to receive it ------------
#
# The vocabulary is csrc/tile/producer_blocks; with stacked weights, where producers have a launch
# of their own, it is csrc/tile/batched_lora.


def includes(consumers: TileProgram) -> tuple[str, ...]:
    """Return the vocabulary of blocks that receive an intermediate."""
    if not consumers.received:
        return ()
    if consumers.stacked:
        return ("tile/batched_lora/lora.cuh",)
    return ("tile/producer_blocks/intermediate.cuh", *([PAIRED] if consumers.producers else []))


def in_launch(program: TileProgram) -> bool:
    """Say whether blocks receive from producers of their own launch."""
    return bool(program.received) and not program.stacked


def fork(consumers: TileProgram, *, paired: bool = False) -> list[str]:
    """Return that producers go their own way, if they are blocks of the same grid."""
    if not in_launch(consumers):
        return []
    call = f"{NAMESPACE}::{consumers.recipe}<Config>(args, shared)"
    if paired:
        call = f"{consumers.recipe}_produce<Config>(given, shared)"
    return [
        f"const ProducerBlocks<Config> producers({'given.call' if paired else 'args'});",
        f"if (producers.is_producer()) return {call};",
    ]


def block_index(program: TileProgram) -> str:
    """Return the number of a block among those that have rows."""
    return "producers.consumer()" if in_launch(program) else "blockIdx.x"


def row_tiles(program: TileProgram, tiles: str) -> str:
    """Return how many blocks a grid has along rows: first its producers."""
    before = "ProducerBlocks<Config>::kProducers + " if in_launch(program) else ""
    return f"const int64_t row_tiles = {before}{tiles};"


def shared_bytes(program: TileProgram, own: str, producers: str) -> str:
    """Return the shared memory of a block: as much as consumers take, or producers.

    Beside a first launch so much that no multiprocessor has two: where producers still run when
    consumers start, two would be put on one, and others would have none.
    """
    more = producers if in_launch(program) else "tile::kExclusiveBytes"
    return f"constexpr int kSharedBytes = tile::larger({own}, {more});"


def steps(program: TileProgram) -> list[str]:
    """Return which steps of the depth a warp has, and which of them may be copied early."""
    warp, warps = "tile::warp_index()", "kWarps"
    if program.stacked and program.produces:
        warp, warps = "Clusters::warp()", "Config::kBlocks * kWarps"
    early = AT_ONCE if program.stacked else "args.constant_weights"
    return [
        f"const int first_k = {warp} * kDepth;",
        f"const tile::Steps steps{{first_k, {program.roles.depth}, {warps} * kDepth, {early}}};",
    ]


def producer_tile(program: TileProgram) -> list[str]:
    """Return where a producer's tile begins: of a block and its tag, of a cluster and its slice."""
    if not program.stacked:
        return [
            "const ProducerBlocks<Consumers> producers(args);",
            "const int first_row = producers.first_row(), first_token = producers.first_token();",
            "if (tile::warp_index() >= kWarps) return;",
            "uint64_t& tag = producers.tag(shared + Shared::kBytes);",
            "if (threadIdx.x == 0) tag = tile::new_tag();",
        ]
    size = f"{program.roles.rows} * {program.roles.depth}"
    stacks = [s.args[0] for s in program.loads if s.args[0] in program.stacked]
    return [
        "const int first_row = own.first_row, first_token = own.first_token;",
        "const tile::AdapterGroup group = own.group;",
        *(f"{stack} += int64_t{{group.adapter}} * {size};" for stack in stacks),
        "tile::begin_reduction<Clusters>(shared + Shared::kBlocksAt, own.turn);",
    ]


def publish(program: TileProgram) -> tuple[list[str], str]:
    """Return how blocks of a cluster reduce their sums, and the call that leaves totals."""
    if not program.stacked:
        return [], "producers.template make<kThreads>(out_tile, tag"
    lines = []
    for s in program.reductions:
        where = f"shared + Shared::kBlocksAt, {s.out}_own, own.turn"
        lines.append(f"const auto {s.out}_parts = tile::reduce_blocks<Clusters>({where});")
    lines.append("if (tile::cluster_rank() > 0) return;")
    return lines, "tile::publish_inner<Clusters>(args.workspace, out_tile, group"


def receive(consumers: TileProgram, warps: str, receivers: str = "") -> list[str]:
    """Return what a consumer's last warps do: they receive totals and multiply them.

    One warp does, or several `receivers`. The tile that they multiply with is a weight, fetched as
    early as weights are.
    """
    count, mine = (f"<{receivers}>", ", receiver") if receivers else ("", "")
    if consumers.stacked:
        stack = consumers.fetches[0].args[0]
        lines = [*map(kept_at, (*consumers.fetches, *consumers.received)), output_tile(consumers)]
        product, mine = "contract_adapters", f", args, {stack}, out_tile"
    else:
        receive = f"template receive{count}" if receivers else "receive"
        lines = [f"const int receiver = tile::warp_index() - {warps} - 1;"] if receivers else []
        lines += fetches(consumers, f"{receivers} * tile::kWarpLanes".removeprefix(" * "))
        lines += ["tile::commit_copies();", "tile::grid_dependency_wait();"]
        for s in consumers.received:
            lines += [kept_at(s), f"producers.{receive}({s.out}{mine});"]
        lines.append("tile::wait_copies<0>();")
        lines.append(f"tile::sync_consumers{count}();" if receivers else "__syncwarp();")
        product = f"contract_in_one_warp{count}"
    for s in consumers.products:
        lines.append(f"tile::{product}({shared_at(s)}, {', '.join(s.args)}{mine});")
    return [*lines, received(warps, receivers), "return;"]


def received(warps: str, receivers: str = "") -> str:
    """Return a barrier of all of a consumer: what is received has been multiplied."""
    return f"tile::sync_intermediate<{', '.join(filter(None, (warps, receivers)))}>();"
