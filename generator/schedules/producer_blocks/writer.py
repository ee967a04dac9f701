"""What blocks write to produce an intermediate for others, or to receive it.

The vocabulary is csrc/tile/producer_blocks; with stacked weights, where producers have a launch of
their own, it is csrc/tile/batched_lora.
"""

from __future__ import annotations

from mirage_kernels.generator.emit.statements import fetches, kept_at, output_tile, shared_at
from mirage_kernels.generator.plan.program import TileProgram

FORM, PAIRS = "producers", "paired_producers"
PAIRED = "tile/producer_blocks/register_operand.cuh"
NAMESPACE = "producing"  # of what producers run
RECEIVING = "tile::kReceivingWarps"  # of a consumer that receives from pairs
AT_ONCE = "tile::Start::at_once()"  # all that streams was there when the kernel started


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
    for s in program.meetings:
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
