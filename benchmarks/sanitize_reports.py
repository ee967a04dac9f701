"""What compute-sanitizer printed beside the program that it watched, by kernel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

BEGIN, END = "begin", "end"
_TOOL = "========= "
# What the tool says that is no report.
_FRAME = re.compile(r"COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application|\s|$")
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) errors?$|SUMMARY: (\d+) hazards? displayed")
_FUNCTION = re.compile(r"<unnamed>::(?:\w+::)*(\w+)<")


@dataclass
class Watched:
    """One kernel: how many results it had in the end, reports by kind."""

    name: str
    begun: bool = False
    calls: int = 0
    reports: Counter[str] = field(default_factory=Counter)

    @property
    def outcome(self) -> str:
        """Say how it ended."""
        if self.reports:
            return "reports"
        if self.calls:
            return "clean"
        return "not ended" if self.begun else "not run"


def read(text: str, names: Sequence[str]) -> list[Watched]:
    """Return what a process printed of the kernels that it called, no two of the same recipe."""
    found = {name: Watched(name) for name in names}
    current = found[names[0]]
    printed = total = 0
    summed = False
    for lines in _blocks(text):
        first = lines[0]
        word, _, rest = first.partition(" ")
        name, _, ending = rest.partition(" ")
        if word in (BEGIN, END) and name in found:
            current = found[name]
            current.begun = True
            if word == END:
                calls, bad = re.findall(r"\d+", ending)
                current.calls = int(calls)
                current.reports += Counter({"wrong": int(bad)})
        elif (summary := _SUMMARY.search(first)) is not None:
            total += int(summary[1] or summary[2])
            summed = True
        elif first.startswith(_TOOL) and not _FRAME.match(first[len(_TOOL) :]):
            printed += 1
            of = found.get(_owner(lines, names), current)
            of.reports[_kind(first[len(_TOOL) :])] += 1
    current.reports += Counter({"not printed": total - printed})
    if not summed:  # some tools tell at the end what they have seen
        for each in found.values():
            each.calls = 0
    return list(found.values())


def _blocks(text: str) -> Iterator[list[str]]:
    """Yield lines; a line of the tool together with those below it that are indented."""
    block: list[str] = []
    for line in text.splitlines():
        if line.startswith(f"{_TOOL}  ") and block:
            block.append(line)
            continue
        if block:
            yield block
        block = [line]
    if block:
        yield block


def _kind(first: str) -> str:
    """Return the first words of a report without numbers and functions."""
    return re.sub(r" (between|at) .*|\bof size \d+ bytes", "", first).strip(" .")


def _owner(lines: Sequence[str], names: Sequence[str]) -> str:
    """Return the kernel whose recipe a function of the report has in its name."""
    functions = [name for line in lines for name in _FUNCTION.findall(line)]
    fitting = [
        name
        for name in names
        for function in functions
        if f"{function}_".startswith(f"{name.partition('/')[0]}_")
    ]
    return max(fitting, key=lambda name: len(name.partition("/")[0]), default="")
