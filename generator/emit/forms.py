"""The files of a recipe: a text per form, and a short file per shape that instantiates forms.

    sliced_k_fp16.cuh       what the kernel does: templates over `Config`
    cluster_split_k.cuh     the same muGraph by another schedule
    triton.py               the same muGraph in Triton, for any shape
    K4096_N6144_fp16.cu     a shape: what was proved, `Shape`, knobs by bucket, the host function
    K4096_N6144_fp16.json   its record, of which all this is made

A form is named after its schedule. Where the kernels of a recipe have different texts of one
schedule, a suffix tells them apart: the element type (`_fp16`) if that does, else the first static
extent that does (`_K256`), else the name of the first kernel that has the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mirage_kernels.generator.emit.cuda import Kernel, instantiation
from mirage_kernels.generator.emit.parts import NAMES, Part, parts_of
from mirage_kernels.generator.emit.triton import emit_triton
from mirage_kernels.generator.emit.words import statics

TRITON = "triton"


def recipe_files(kernels: Sequence[Kernel]) -> dict[str, str]:
    """Return the files of all kernels of a recipe and architecture, by name.

    A file comes after those that it includes. Raises PlanError for an op that the device
    vocabulary lacks.
    """
    kernels = sorted(kernels, key=lambda kernel: kernel.header.stem)
    parts = [_by_name(kernel) for kernel in kernels]
    names: list[dict[str, str]] = [{} for _ in kernels]  # of form files, by form
    files: dict[str, str] = {}
    for form in NAMES:
        texts = {
            i: part[form].text(kernels[i].header, names[i])
            for i, part in enumerate(parts)
            if form in part
        }
        for i, suffix in suffixes(kernels, texts).items():
            names[i][form] = f"{form}{suffix}.cuh"
            files[names[i][form]] = texts[i]
    for kernel, forms in zip(kernels, names, strict=True):
        files[f"{kernel.header.stem}.cu"] = instantiation(kernel, list(forms.values()))
    return files


def triton_files(kernels: Sequence[Kernel]) -> dict[str, str]:
    """Return the Triton programs of all kernels of a recipe and architecture, by name."""
    kernels = sorted(kernels, key=lambda kernel: kernel.header.stem)
    texts = {i: emit_triton(kernel) for i, kernel in enumerate(kernels)}
    return {f"{TRITON}{s}.py": texts[i] for i, s in suffixes(kernels, texts).items()}


def _by_name(kernel: Kernel) -> dict[str, Part]:
    return {part.name: part for part in parts_of(kernel.program, kernel.variants)}


def suffixes(kernels: Sequence[Kernel], texts: Mapping[int, str]) -> dict[int, str]:
    """Return what is put behind the name of each kernel's text, where there are several texts."""
    groups: dict[str, list[int]] = {}
    for i, text in texts.items():
        groups.setdefault(text, []).append(i)
    if len(groups) < 2:
        return dict.fromkeys(texts, "")
    for attribute in _attributes(kernels):
        found = [{attribute(kernels[i]) for i in group} for group in groups.values()]
        if all(len(values) == 1 for values in found) and len(set().union(*found)) == len(found):
            return {i: f"_{attribute(kernels[i])}" for i in texts}
    return {i: f"_{kernels[group[0]].header.stem}" for group in groups.values() for i in group}


def _attributes(kernels: Sequence[Kernel]) -> list[Callable[[Kernel], str]]:
    """Return what may tell kernels of a recipe apart, the first choice first."""

    def extent(name: str) -> Callable[[Kernel], str]:
        return lambda kernel: f"{name}{statics(kernel.program)[name]}"

    return [lambda kernel: kernel.storage.value, *map(extent, statics(kernels[0].program))]
