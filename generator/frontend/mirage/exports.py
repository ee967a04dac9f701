"""Positional programs as checkpoints in Mirage's schema; `imports` reads them back unchanged.

Two keys are ours, where the schema drops what an operator needs: `numbers` of clamp and
mul_scalar, `normalized_shape` of a norm over several dims.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.frontend.mirage.program import (
    AXES,
    NOWHERE,
    Block,
    Program,
    Step,
    Tensor,
    row_major,
)
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.ir.text import Json, dumps

_NUMBERS = {DType.FP16: 940, DType.BF16: 920, DType.FP32: 950}
_FIRST_GUID = {"Dmem": 10_000_000, "Smem": 20_000_000}
_PADDED = 4  # entries of `dim`
_NO_MAP: dict[str, Json] = dict.fromkeys(AXES, NOWHERE)
_ACCUMULATIONS = {
    ("accum", ""): "forloop_accum_nored",
    ("accum", "sum"): "forloop_accum_red_ld_sum",
    ("accum", "mean"): "forloop_accum_red_ld_mean",
    ("accum", "rms"): "forloop_accum_red_ld_rms",
    ("accum", "sum_todimx"): "forloop_accum_redtox_ld_sum",
    ("accum_rescale", ""): "forloop_accum_nored_rescale",
    ("accum_rescale", "sum"): "forloop_accum_red_ld_sum_rescale",
    ("accum_max", ""): "forloop_accum_max",
}


def checkpoint_text(programs: Sequence[Program]) -> str:
    """Return a checkpoint file that holds the given programs."""
    return dumps([_graph(program) for program in programs])


def _graph(program: Program) -> Json:
    tensors = {t.number: t for t in program.tensors()}
    items: list[Json] = [_operator(step, tensors) for step in program.steps]
    for number in program.outputs:
        tensor = tensors[number]
        items.append(
            {
                "op_type": "kn_output_op",
                "input_tensors": [_tensor(tensor, "Dmem")],
                "output_tensors": [],
                "output_map": _NO_MAP,
                "output_strides": list(tensor.strides or row_major(tensor.extents)),
            }
        )
    return items


def _tensor(tensor: Tensor, memory: str) -> dict[str, Json]:
    padding = [0] * max(0, _PADDED - len(tensor.extents))
    return {
        "data_type": _NUMBERS[tensor.dtype],
        "dim": [*tensor.extents, *padding],
        "guid": _FIRST_GUID[memory] + tensor.number,
        "layout": f"{memory}RowMajor",
        "num_dims": len(tensor.extents),
    }


def _operator(step: Step, tensors: dict[int, Tensor]) -> Json:
    data = _plain("kn", step, tensors)
    if step.op == "input":
        (tensor,) = step.outs
        data["input_map"] = _NO_MAP
        data["input_strides"] = list(tensor.strides or row_major(tensor.extents))
    if step.block is not None:
        data["bgraph"] = _block(step, step.block, tensors)
    return data


def _plain(level: str, step: Step, tensors: dict[int, Tensor]) -> dict[str, Json]:
    memory = "Dmem" if level == "kn" else "Smem"
    data: dict[str, Json] = {
        "op_type": f"{level}_{_name(step)}_op",
        "input_tensors": [_tensor(tensors[a], memory) for a in step.args],
        "output_tensors": [_tensor(t, memory) for t in step.outs],
    }
    if step.numbers:
        data["numbers"] = list(step.numbers)
    if step.op == "rms_norm":
        data["normalized_shape"] = list(step.outs[0].extents[step.dim :])
    return data


def _name(step: Step) -> str:
    if step.op in ("accum", "accum_rescale", "accum_max"):
        return _ACCUMULATIONS[step.op, step.kind]
    if step.op == "reduction":
        return f"reduction_{step.dim}" + ("_to_dimx" if step.size != 1 else "")
    if step.op == "reduction_max":
        return f"reduction_{step.dim}_max"
    return f"concat_{step.dim}" if step.op == "concat" else step.op


def _block(kernel: Step, block: Block, tensors: dict[int, Tensor]) -> Json:
    tiles = {t.number: t for s in block.steps for t in s.outs}
    sources, targets = iter(kernel.args), iter(kernel.outs)
    items: list[Json] = []
    for step in block.steps:
        data = _plain("tb", step, tiles)
        if step.op == "input":
            data["dtensor"] = _tensor(tensors[next(sources)], "Dmem")
            data["input_map"] = _three(step.maps)
            data["forloop_dim"] = step.dim
        elif step.op == "output":
            data["dtensor"] = _tensor(next(targets), "Dmem")
            data["output_map"] = _three(step.maps)
        items.append(data)
    return {
        "graph_level": "thread_block_graph",
        "grid_dim": _three(block.grid),
        "block_dim": _three(block.threads),
        "forloop_range": block.loop_range,
        "reduction_dimx": block.dimx,
        "smem_offset": 0,
        "operators": items,
    }


def _three(values: Sequence[int]) -> Json:
    return dict(zip(AXES, values, strict=True))
