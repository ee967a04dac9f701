"""Producer and consumer blocks of an intermediate as CUDA, over csrc/tile/producer_blocks."""

from __future__ import annotations

from collections.abc import Mapping

from mirage_kernels.generator.emit.names import declared, kept_at, shared_at
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.batched_lora import writer as batched_lora
from mirage_kernels.generator.schedules.loop import producers_of
from mirage_kernels.generator.schedules.producer_blocks import PAIR
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK

FORM, PAIRS = "producers", "paired_producers"
PAIRED = ("tile/producer_blocks/register_operand.cuh",)
NAMESPACE = "producing"  # of what the makers run


def includes(users: TileProgram) -> tuple[str, ...]:
    """Return the vocabulary that totals computed apart need."""
    if not users.received:
        return ()
    held = PAIRED if users.producers else ()
    return (
        batched_lora.INCLUDES if users.stacked else ("tile/producer_blocks/intermediate.cuh", *held)
    )


def write_plan(writer: Writer, program: TileProgram) -> None:
    """Write who makes what, and the knobs of the makers."""
    (dim,) = program.roles.inner
    (kept,) = program.received
    writer.line(f"// The first blocks of the grid compute {kept.args[0]} for all others.")
    writer.line("template <class Config>")
    with writer.block("struct ProducerPlan : Config {", "};"):
        writer.line("using Element = typename Config::T;")
        writer.line(f"static constexpr int kInner = Config::{dim};")
    writer.line("template <class Config>")
    writer.line("using ProducerBlocks = tile::ProducerBlocks<ProducerPlan<Config>>;")
    writer.line()
    writer.line("template <class Consumers>")
    with writer.block("struct Producers : Consumers {", "};"):
        writer.line(
            "static constexpr int kRows = Consumers::kProducerRows, "
            "kTokens = Consumers::kProducerTokens;"
        )
        writer.line("static constexpr int kWarps = Consumers::kProducerWarps, kChunks = 2;")
        writer.line("static constexpr int kStages = Consumers::kProducerStages;")
    writer.line()


def write_makers_head(writer: Writer, makers: TileProgram) -> str:
    """Write what stands before the function that the makers run; return its head."""
    if makers.stacked:
        return batched_lora.write_makers_head(writer, makers)
    writer.line("template <class Consumers>")
    return f"__device__ void {makers.recipe}(const LaunchArgs& args, char* shared) {{"


def write_start(writer: Writer, program: TileProgram) -> None:
    """Write how a kernel starts; makers inside of one have started."""
    if not program.produces:
        writer.line("extern __shared__ __align__(16) char shared[];")
        writer.line("tile::launch_dependents();")


def user(program: TileProgram, otherwise: str) -> str:
    """Return the number of a block among those that have rows."""
    return "producers.consumer()" if program.received and not program.stacked else otherwise


def makers_before(program: TileProgram) -> str:
    """Return how many blocks of a grid come before those that have rows, as a term of a sum."""
    return (
        "ProducerBlocks<Config>::kProducers + " if program.received and not program.stacked else ""
    )


def dealt_out(program: TileProgram) -> tuple[str, str, str]:
    """Return a warp's number, the number of warps that share the depth, and what may be early."""
    if not program.stacked:
        return "tile::warp_index()", "kWarps", "args.constant_weights"
    if program.produces:
        return "Clusters::warp()", "Config::kBlocks * kWarps", batched_lora.READY
    return "tile::warp_index()", "kWarps", batched_lora.READY


def write_makers_tile(writer: Writer, program: TileProgram) -> None:
    """Write where a maker's tile begins, and its stamp."""
    if program.stacked:
        return batched_lora.write_makers_tile(writer, program)
    for line in (
        "const ProducerBlocks<Consumers> producers(args);",
        "const int first_row = producers.first_row(), first_token = producers.first_token();",
        "if (tile::warp_index() >= kWarps) return;",
        "uint64_t& tag = producers.tag(shared + Shared::kBytes);",
        "if (threadIdx.x == 0) tag = tile::new_tag();",
    ):
        writer.line(line)
    return None


def receivers(users: TileProgram, plan: str) -> str:
    """Return how many warps of a user receive totals."""
    return "tile::kReceivingWarps" if plan and not users.stacked else ""


def more_threads(users: TileProgram, plan: str) -> str:
    """Return the threads of a user that do not stream, as a term of a sum."""
    many = receivers(users, plan)
    count = f"{many} * " if many else ""
    return f" + {count}tile::kWarpLanes" if users.received else ""


def received(users: TileProgram, warps: str, plan: str = "") -> str:
    """Return a barrier of all of a user: what is received has been multiplied."""
    return f"tile::sync_intermediate<{', '.join(filter(None, (warps, receivers(users, plan))))}>();"


def write_received(writer: Writer, users: TileProgram, warps: str, plan: str = "") -> None:
    """Write what a user's last warps do: they receive totals and multiply them.

    The tile that they multiply with is a weight, fetched as early as weights are.
    """
    if users.stacked:
        return batched_lora.write_received(writer, users, warps)
    many = receivers(users, plan)
    count, mine = (f"<{many}>", ", receiver") if many else ("", "")
    if many:
        writer.line(f"const int receiver = tile::warp_index() - {warps} - 1;")
    writer.line("if (!args.constant_weights) tile::grid_dependency_wait();")
    for s in users.fetches:
        kept_at(writer, s)
        where = f"{s.out}, {s.args[0]}, first_row, {users.roles.rows}"
        writer.line(f"tile::fetch<{f'{many} * ' if many else ''}tile::kWarpLanes>({where});")
    writer.line("tile::commit_copies();")
    writer.line("tile::grid_dependency_wait();")
    for s in users.received:
        kept_at(writer, s)
        receive = f"template receive{count}" if many else "receive"
        writer.line(f"producers.{receive}({s.out}{mine});")
    writer.line("tile::wait_copies<0>();")
    writer.line(f"tile::sync_consumers{count}();" if many else "__syncwarp();")
    for s in users.products:
        arguments = f"{shared_at(s)}, {', '.join(s.args)}{mine}"
        writer.assignment(f"tile::contract_in_one_warp{count}({arguments});")
    writer.line(received(users, warps, plan))
    writer.line("return;")
    return None


def write_workspace(writer: Writer, users: TileProgram) -> None:
    """Write the size of a variant's workspace."""
    if users.stacked:
        return batched_lora.write_workspace(writer, users)
    roles = users.roles
    writer.line("template <class Config>")
    with writer.block("int64_t workspace(const LaunchArgs& args) {"), declared(writer, users):
        writer.line("// Two blocks may share rows, and each is told.")
        blocks = f"{PAIR} * tile::ceil_div({roles.rows}, Config::kRows)"
        writer.line(f"return ProducerBlocks<Config>::bytes(args.dims[0], {blocks});")
    writer.line()
    return None


def write_fork(writer: Writer, users: TileProgram, args: str) -> None:
    """Write that makers go their own way, if they are blocks of the same grid."""
    if users.stacked:
        return
    writer.line(f"const ProducerBlocks<Config> producers({args});")
    call = f"{NAMESPACE}::{users.recipe}<Config>({args}, shared)"
    if users.producers is None or args == "args":
        writer.line(f"if (producers.is_producer()) return {call};")
        return
    paired = f"{users.producers.recipe}_produce<Config>(given, shared)"
    writer.line(f"if (producers.is_producer()) return {paired};")


def knobs_text(knobs: Knobs) -> list[str]:
    """Return the constants of a variant's producer blocks."""
    producers = producers_of(knobs)
    assert producers is not None
    own = {"Warps": knobs.warps} if isinstance(knobs, SlicedK) else {"Groups": producers.groups}
    tile = {"Rows": producers.rows, "Tokens": producers.tokens}
    return [_constants(tile), _constants(own | {"Stages": producers.stages})]


def _constants(values: Mapping[str, int]) -> str:
    text = ", ".join(f"kProducer{name} = {value}" for name, value in values.items())
    return f"static constexpr int {text};"


def shared_bytes(program: TileProgram, users: str) -> str:
    """Return the shared memory of a block: as much as users take, or makers."""
    if not program.received:
        return users
    if program.stacked:
        return batched_lora.shared_bytes(users)
    paired = program.producers and users.startswith("Block")
    makers = "kPairBytes<Config>" if paired else "kProducerBytes<Config>"
    return f"tile::larger({users}, {makers})"
