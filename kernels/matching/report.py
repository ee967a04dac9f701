"""What was replaced in a model's graphs, what was not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import fx

from mirage_kernels.matching.choose import Choice, Kept
from mirage_kernels.matching.match import Match, Refused
from mirage_kernels.matching.trace import Traced

_NO_GRAPH = (
    "torch.compile made no graph of the calls, so PyTorch ran them; TORCH_LOGS=dynamo says why"
)
_ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Row:
    """One kind of place in a graph; `command` generates the kernel that is missing."""

    what: str
    note: str = ""
    command: str = ""


@dataclass(frozen=True)
class GraphReport:
    """What became of one graph, with how many places there are of each kind."""

    replaced: Mapping[Row, int]
    kept: Mapping[Row, int]

    def __str__(self) -> str:
        lines = [*_section("replaced", self.replaced), *_section("kept", self.kept)]
        return "\n".join(lines or ["  nothing that a recipe computes"])


@dataclass
class Report:
    """What became of a model, graph by graph, as torch.compile makes them."""

    graphs: list[GraphReport] = field(default_factory=list)
    was_called: bool = False  # by a model that `optimize` was given

    @property
    def replaced(self) -> dict[Row, int]:
        """What was replaced, in all graphs."""
        return dict(sum((Counter(g.replaced) for g in self.graphs), Counter[Row]()))

    @property
    def kept(self) -> dict[Row, int]:
        """What was not, in all graphs."""
        return dict(sum((Counter(g.kept) for g in self.graphs), Counter[Row]()))

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that generate missing kernels."""
        rows = (row.command for graph in self.graphs for row in graph.kept)
        return tuple(dict.fromkeys(filter(None, rows)))

    def __str__(self) -> str:
        if not self.graphs and self.was_called:
            return f"mirage_kernels: {_NO_GRAPH}"
        if not self.graphs:
            return "mirage_kernels: nothing was called yet; graphs are made by the first call"
        counted = Counter(str(graph) for graph in self.graphs)
        parts = [f"graph {i} ({n} alike)\n{g}" for i, (g, n) in enumerate(counted.items(), 1)]
        return "mirage_kernels\n" + "\n".join(parts)


def graph_report(choice: Choice, graph: fx.Graph, traced: Traced) -> GraphReport:
    """Return what becomes of a graph."""
    rows = [Row(_words(m, traced)) for m in choice.single]
    for group in choice.packs:
        total = sum(m.sizes["N"] for m in group)
        parts = " + ".join(str(m.sizes["N"]) for m in group)
        note = f"{len(group)} weights as one: {parts}"
        rows.append(Row(_words(group[0], traced, N=total), note))
    kept = [_kept_row(one, traced) for one in choice.kept]
    attention = (n for n in graph.nodes if _ATTENTION in str(getattr(n.target, "__name__", "")))
    note = "mirage_kernels.integrations.transformers serves attention"
    kept += [Row(_ATTENTION, note) for _ in attention]
    return GraphReport(_counted(rows), _counted(kept))


def refused_graph(reason: str) -> GraphReport:
    """Return the report of a graph in which nothing is replaced, for one reason."""
    return GraphReport({}, {Row("the whole graph", reason): 1})


def _counted(rows: Iterable[Row]) -> dict[Row, int]:
    return dict(sorted(Counter(rows).items(), key=lambda item: item[0].what))


def _words(found: Match | Refused, traced: Traced, **sizes: int) -> str:
    """Say an op with its sizes, options and type."""
    pattern = found.pattern
    words = [] if pattern.op is None or not pattern.activation else [pattern.activation]
    if isinstance(found, Match):
        words = [f"{d}={n}" for d, n in {**found.sizes, **sizes}.items()] + words
        words += ["residual"] if found.total is not None else []
    dtype = str(traced.values[found.root].dtype).removeprefix("torch.")
    return f"{pattern.op_name} {', '.join((*words, dtype))}"


def _kept_row(kept: Kept, traced: Traced) -> Row:
    if kept.candidate is not None:
        return Row(_words(kept.candidate, traced), kept.reason, kept.command)
    value = traced.values[kept.node]
    dtype = str(value.dtype).removeprefix("torch.")
    return Row(f"linear N={value.shape[-1]}, {dtype}", kept.reason)


def _section(name: str, rows: Mapping[Row, int]) -> list[str]:
    lines = [f"  {name}"] if rows else []
    for row, count in rows.items():
        lines.append(f"    {count:>3} x {row.what}" + (f": {row.note}" if row.note else ""))
        if row.command:
            lines.append(f"          {row.command}")
    return lines
