"""Every form of the catalog as general tile programs of small tiles and extents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mirage_kernels.generator.ir import Graph, retile
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.tiles.check import shortened
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.program import BlockProgram

KERNELS = Path(__file__).parents[1] / "kernels" / "sm_90a"
FORMS = sorted({path.parent.name for path in KERNELS.glob("*/*_fp16.json")})
TILES = {"M": 8, "N": 24, "K": 32, "R": 8, "L": 16, "L_parts": 32, "D": 16, "G": 2, "T": 2}
TILES |= {"B": 1, "Hkv": 1, "Hq": 2, "C": 32, "P": 16}
UNCUT = {"K": 104, "N": 40, "D": 16, "C": 24, "P": 16, "R": 8}


def muGraph(form: str) -> Graph:  # noqa: N802
    """A form's muGraph, short."""
    return short(load_record(min((KERNELS / form).glob("*_fp16.json"))).graph)


def short(graph: Graph) -> Graph:
    """A muGraph with small tiles and short static extents."""
    dims = {d.name for n in graph.inputs for d in n.out.type.dims if not d.dynamic}
    sizes = {d: UNCUT[d] for d in dims}

    def cut(of: Graph) -> Graph:
        nodes = []
        for node in of.nodes:
            types = [
                replace(
                    v.type,
                    dims=tuple(
                        d if d.dynamic else replace(d, size=sizes.get(d.name, d.size))
                        for d in v.type.dims
                    ),
                )
                for v in node.outs
            ]
            outs = tuple(replace(v, type=t) for v, t in zip(node.outs, types, strict=True))
            nodes.append(replace(node, outs=outs))
        return replace(of, nodes=tuple(nodes))

    return retile(cut(graph), TILES)


def programs(form: str) -> tuple[Graph, tuple[BlockProgram, ...], dict[str, int]]:
    """A form's muGraph, its tile programs, and the extents to run them at."""
    graph, sizes = shortened(muGraph(form))
    return graph, block_programs(graph, 64, 3), sizes
