"""Which matches are replaced: the largest that a kernel covers, no product computed twice.

Nodes are decided from the last to the first. One that nothing reads any more, since a replaced one
computes it inside, needs no op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from mirage_kernels.assumptions import checked
from mirage_kernels.matching.coverage import Place, command
from mirage_kernels.matching.match import Match, Refused, match
from mirage_kernels.matching.packing import conflict, packable, unpackable, weight_nodes
from mirage_kernels.matching.patterns import patterns
from mirage_kernels.matching.terms import bare
from mirage_kernels.matching.trace import Traced

Sites = Mapping[fx.Node, Sequence[Match | Refused]]
_PACKED = ("rms_norm_linear", "layer_norm_linear")  # ops that serve several weights as one
_ELSEWHERE = "a product in it is used elsewhere, too"


@dataclass(frozen=True)
class Kept:
    """A node that stays, or an op that would have served better."""

    node: fx.Node
    candidate: Match | Refused | None
    reason: str
    command: str = ""


@dataclass(frozen=True)
class Choice:
    """What is replaced: matches by themselves, and groups of them whose weights become one."""

    single: tuple[Match, ...]
    packs: tuple[tuple[Match, ...], ...]
    kept: tuple[Kept, ...]


@dataclass(frozen=True)
class Options:
    """How to choose: whether weights may be moved into one, and whether CPUs count as GPUs."""

    pack: bool = True
    compiled_only: bool = False

    def __post_init__(self) -> None:
        """Refuse what is neither True nor False."""
        checked("optimize", "pack", self.pack)
        checked("optimize", "compiled_only", self.compiled_only)


DEFAULT = Options()


def choose(
    graph: fx.Graph, traced: Traced, tensors: Mapping[fx.Node, Tensor], options: Options
) -> Choice:
    """Choose for a graph; `tensors` are the weights by node, as far as they are known."""
    return _Chooser(graph, traced, tensors, options).choice()


class _Chooser:
    def __init__(
        self,
        graph: fx.Graph,
        traced: Traced,
        tensors: Mapping[fx.Node, Tensor],
        options: Options,
    ) -> None:
        self.nodes: list[fx.Node] = list(graph.nodes)
        self.order = {node: place for place, node in enumerate(self.nodes)}
        self.traced, self.tensors, self.options = traced, tensors, options
        self.sites = {node: self._candidates(node) for node in self.nodes}

    def _candidates(self, node: fx.Node) -> list[Match | Refused]:
        if node not in self.traced.terms or node in self.traced.views:
            return []
        found = (match(pattern, node, self.traced) for pattern in patterns())
        return [one for one in found if one is not None]

    def choice(self) -> Choice:
        # First as if whatever may be packed were covered, to see which linears stand together.
        hoped = self._alive(self._is_hoped)
        groups = _groups(m for m in hoped if m.pattern.op_name in _PACKED)
        reasons = self._reasons(groups)
        packs = [group for group, reason in zip(groups, reasons, strict=True) if not reason]
        packed = {m.root: m for group in packs for m in group}
        together = {m.root for group in groups for m in group}

        def allowed(found: Match) -> bool:
            if found.root in packed:
                return found is packed[found.root]
            # A sum that several linears read is made once, apart from them.
            if found.root in together and found.total is not None:
                return False
            return not self._missing(found)

        chosen = self._alive(allowed)
        members = {m.root: m for m in chosen}
        whole = [g for g in packs if all(members.get(m.root) is m for m in g)]
        grouped = {m.root for group in whole for m in group}
        single = [m for m in chosen if m.root not in grouped]
        apart = [(g, why) for g, why in zip(groups, reasons, strict=True) if why]
        return Choice(tuple(single), tuple(whole), tuple(self._kept(members, apart)))

    def _reasons(self, groups: Sequence[Sequence[Match]]) -> list[str]:
        """Say of each group why its linears stay apart; empty where one weight can serve them."""
        wholes: dict[fx.Node, tuple[fx.Node, ...]] = {}
        reasons = []
        for group in groups:
            reasons.append(self._unpackable(group) or conflict(group, wholes))
            if not reasons[-1]:
                parts = weight_nodes(group).values()
                wholes.update((node, nodes) for nodes in parts for node in nodes)
        return reasons

    def _is_hoped(self, found: Match) -> bool:
        if found.pattern.op_name in _PACKED:
            return found.total is None
        return not self._missing(found)

    def _place(self, found: Match | Refused) -> Place:
        value = self.traced.values[found.root]
        return Place(value.dtype, value.device, self.options.compiled_only)

    def _missing(self, found: Match) -> str:
        return self._place(found).missing(found.pattern, found.sizes)

    def _unpackable(self, group: Sequence[Match]) -> str:
        """Say why linears of one norm stay apart, whatever other groups there are."""
        if not self.options.pack:
            return "packing is off"
        rows = sum(m.sizes["N"] for m in group)
        missing = self._place(group[0]).missing(group[0].pattern, {**group[0].sizes, "N": rows})
        return missing or unpackable(group, self.tensors)

    def _alive(self, allowed: Callable[[Match], bool]) -> list[Match]:
        """Return the matches that are replaced, the last first."""
        read: set[fx.Node] = set()
        inside: set[fx.Node] = set()
        totals: set[fx.Node] = set()
        chosen: list[Match] = []
        for node in reversed(self.nodes):
            if node in totals or (node in inside and node not in read):
                continue
            found = next((m for m in self._fitting(node, totals) if allowed(m)), None)
            if found is None:
                read.update(node.all_input_nodes)
                continue
            chosen.append(found)
            read |= found.inputs
            inside |= found.inner
            totals |= {found.total} if found.total else set()
        return chosen

    def _fitting(self, node: fx.Node, totals: set[fx.Node]) -> Iterable[Match]:
        for found in self.sites[node]:
            if isinstance(found, Match) and found.total not in totals and not self._misfit(found):
                yield found

    def _misfit(self, found: Match) -> str:
        """Say why a match would compute something twice, or too late."""
        inside = {*found.inner, found.root}
        for node in found.inner:
            if self._is_product(node) and not inside >= node.users.keys():
                return _ELSEWHERE
        if found.total is not None:
            first = min(self.order[found.total], self.order[found.root])
            if any(self.order[node] > first for node in found.inputs):
                return "its sum is made before all of its inputs"
        return ""

    def _is_product(self, node: fx.Node) -> bool:
        """Say whether a node computes a product, or one with its bias."""
        if node not in self.traced.terms:
            return False
        term, owners = bare(self.traced.terms[node]), self.traced.owners
        parts = term.args if term.op == "add" else ()
        with_bias = any(bare(a).op == "linear" and not owners.get(a) for a in parts)
        return term.op == "linear" or with_bias

    # -- what stays ----------------------------------------------------------------------------

    def _kept(
        self, members: Mapping[fx.Node, Match], apart: Sequence[tuple[Sequence[Match], str]]
    ) -> Iterable[Kept]:
        inside = {n for m in members.values() for n in m.inner} - members.keys()
        inside |= {m.total for m in members.values() if m.total is not None}
        for node in self.nodes:
            if node in inside:
                continue
            made = members.get(node)
            better = self._better(node, made)
            if better is not None:
                yield better
            elif made is None and self._is_product(node) and node not in self.traced.views:
                yield Kept(node, None, "no recipe that has an op computes it")
        for group, reason in apart:
            if self.options.pack:
                rows = sum(m.sizes["N"] for m in group)
                sizes = {**group[0].sizes, "N": rows}
                hint = command(group[0].pattern, sizes) if "kernel" in reason else ""
                yield Kept(group[0].root, group[0], f"{len(group)} of one norm: {reason}", hint)

    def _better(self, node: fx.Node, made: Match | None) -> Kept | None:
        """Return the largest match that has no kernel, unless a smaller one than the chosen."""
        for found in self.sites[node]:
            if found is made:
                return None
            if isinstance(found, Refused):
                return None if made else Kept(node, found, found.reason)
            if found.total is not None:
                continue
            reason = self._misfit(found)
            if reason and made is None:
                return Kept(node, found, reason)
            reason = reason or self._missing(found)
            if reason and found.pattern.op is not None and found.pattern.op_name not in _PACKED:
                return Kept(node, found, reason, command(found.pattern, found.sizes))
            if reason and made is None:
                return Kept(node, found, reason, command(found.pattern, found.sizes))
        return None


def _groups(found: Iterable[Match]) -> list[tuple[Match, ...]]:
    """Return the linears that read the same norm, in the order of the graph."""
    groups: dict[object, list[Match]] = {}
    for one in found:
        if packable(one):
            shared = {n: r for n, r in one.tensors.items() if n not in ("weight", "bias")}
            numbers = tuple(sorted(one.numbers.items()))
            key = (one.pattern, *sorted((n, id(r.node)) for n, r in shared.items()), numbers)
            groups.setdefault(key, []).append(one)
    return [tuple(reversed(group)) for group in groups.values() if len(group) > 1]
