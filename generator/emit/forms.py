"""The files of a recipe: a text per form, and a short file per shape that instantiates forms.

    forms/rms_norm_linear/sliced_k_fp16.cuh       what the kernel does: templates over `Config`
    forms/rms_norm_linear/cluster_split_k.cuh     the same muGraph by another schedule
    forms/rms_norm_linear/triton.py               the same in Triton, for any shape
    sm_90a/rms_norm_linear/K4096_N6144_fp16.cu    a shape: what was proved, its `Shape`, the knobs
                                                  of each bucket, the host function
    sm_90a/rms_norm_linear/K4096_N6144_fp16.json  its record, of which all this is made

A form serves all shapes, element types and architectures, and is named after its schedule. Where
the kernels of a recipe have different texts of one schedule, a suffix tells them apart: the element
type (`_fp16`) if that does, else the architecture, else the first static extent that does
(`_K256`), else the name of the first kernel that has the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from mirage_kernels.generator.emit.cuda import instantiation
from mirage_kernels.generator.emit.part import KernelSource
from mirage_kernels.generator.emit.triton import emit_triton

FORMS = "forms"  # the folder beside those of the architectures


@dataclass(frozen=True)
class Emitted:
    """A kernel of a recipe, and the architecture that it is for."""

    arch: str
    kernel: KernelSource[Any]

    @property
    def name(self) -> str:
        """Return its name among those of its recipe, which also gives their order."""
        return f"{self.kernel.header.stem}_{self.arch}"


def recipe_files(emitted: Sequence[Emitted]) -> dict[str, str]:
    """Return the CUDA files of all kernels of a recipe by path below the kernels folder.

    A file comes after those that it includes. Raises PlanError for an op that the device
    vocabulary lacks.
    """
    emitted = sorted(emitted, key=lambda one: one.name)
    kernels = [one.kernel for one in emitted]
    parts = [{part.name: part for part in k.parts()} for k in kernels]
    names: list[dict[str, str]] = [{} for _ in kernels]  # of form files, by form
    files: dict[str, str] = {}
    beside: dict[str, list[str]] = {}
    for part in (part for own in parts for part in own.values()):
        beside.setdefault(part.name, []).extend(part.beside)
    for form in TopologicalSorter(beside).static_order():
        texts = {
            i: part[form].text(kernels[i].header, names[i])
            for i, part in enumerate(parts)
            if form in part
        }
        for i, suffix in suffixes(emitted, texts).items():
            names[i][form] = f"{form}{suffix}.cuh"
            files[f"{_folder(kernels[i])}/{names[i][form]}"] = texts[i]
    for one, forms in zip(emitted, names, strict=True):
        kernel, path = one.kernel, f"{one.arch}/{one.kernel.program.recipe}"
        includes = [f"../../{_folder(kernel)}/{name}" for name in forms.values()]
        files[f"{path}/{kernel.header.stem}.cu"] = instantiation(kernel, includes)
    return files


def triton_files(emitted: Sequence[Emitted]) -> dict[str, str]:
    """Return the Triton programs of all kernels of a recipe by path below the kernels folder."""
    emitted = sorted(emitted, key=lambda one: one.name)
    texts = {i: emit_triton(one.kernel) for i, one in enumerate(emitted)}
    named = suffixes(emitted, texts).items()
    return {f"{_folder(emitted[i].kernel)}/triton{s}.py": texts[i] for i, s in named}


def _folder(kernel: KernelSource[Any]) -> str:
    return f"{FORMS}/{kernel.program.recipe}"


def suffixes(emitted: Sequence[Emitted], texts: Mapping[int, str]) -> dict[int, str]:
    """Return what is put behind the name of each kernel's text, where there are several texts."""
    groups: dict[str, list[int]] = {}
    for i, text in texts.items():
        groups.setdefault(text, []).append(i)
    if len(groups) < 2:
        return dict.fromkeys(texts, "")
    for attribute in _attributes(emitted[0].kernel):
        found = [{attribute(emitted[i]) for i in group} for group in groups.values()]
        if all(len(values) == 1 for values in found) and len(set().union(*found)) == len(found):
            return {i: f"_{attribute(emitted[i])}" for i in texts}
    return {i: f"_{emitted[group[0]].name}" for group in groups.values() for i in group}


def _attributes(first: KernelSource[Any]) -> list[Callable[[Emitted], str]]:
    """Return what may tell kernels of a recipe apart, the first choice first."""

    def extent(name: str) -> Callable[[Emitted], str]:
        return lambda one: f"{name}{one.kernel.extents[name]}"

    extents = map(extent, first.extents)
    return [lambda one: one.kernel.storage.value, lambda one: one.arch, *extents]
