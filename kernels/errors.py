"""Every error that the library raises from Python: one sentence each, with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class TorchTooOldError(ImportError):
    """The installed PyTorch is older than the extension serves."""


class ExtensionMissingError(ImportError):
    """The compiled extension is absent or does not load."""


class InferenceOnlyError(RuntimeError):
    """An input asks for gradients, which no op computes."""


# Sentences are functions, not constructors of exceptions: torch.compile does not trace those, and
# an exception with one cannot be pickled.


def old_torch_sentence(found: str, oldest: str) -> str:
    """Say which PyTorch is needed."""
    return (
        f"mirage_kernels needs torch >= {oldest}, but torch {found} is installed; "
        f"`pip install 'torch>={oldest}'`"
    )


def missing_extension_sentence(reason: str) -> str:
    """Say where the compiled extension comes from."""
    return (
        f"the compiled extension mirage_kernels._C does not load ({reason}); install a wheel, "
        "or in a source checkout run `pip install --no-build-isolation -e .` beside torch, nvcc"
    )


def no_kernel_file_sentence(file: object, reason: str) -> str:
    """Say that a shared object is none of ours."""
    return (
        f"{file} is no compiled kernel ({reason}); load a folder that "
        "`mirage-kernels compile` wrote"
    )


def other_document_sentence(file: object, lacks: str) -> str:
    """Say that a program is of another version of the generator."""
    return (
        f"{file} is of another version of mirage-kernels (it lacks {lacks}); "
        "`mirage-kernels generate` and `compile` make the program anew"
    )


def damaged_document_sentence(file: object, reason: str) -> str:
    """Say that a program's file cannot be read."""
    return (
        f"{file} is damaged ({reason}); `mirage-kernels generate` and `compile` make the program "
        "anew"
    )


def unreadable_document_sentence(file: object, reason: str) -> str:
    """Say that there is no reading what has the name of a program's file."""
    return (
        f"{file} cannot be read ({reason}); remove it, or let `mirage-kernels generate` and "
        "`compile` make the program anew"
    )


def uncompiled_sentence(file: object, folder: object, kernels: str) -> str:
    """Say which kernels of a program there are no shared objects of."""
    return (
        f"{file} runs kernels that are not compiled: {kernels}; "
        f"`mirage-kernels compile {folder}` compiles them"
    )


def other_kernels_sentence(file: object, folder: object, kernels: str) -> str:
    """Say that shared objects hold other kernels than those that a program was generated with."""
    return (
        f"{file} was generated with other kernels than are compiled as {kernels}; "
        f"`mirage-kernels compile {folder}` compiles them, or says what to generate again; a "
        "process that has loaded the earlier ones keeps them until it ends"
    )


def replaced_kernels_sentence(file: object, folder: object, kernels: str) -> str:
    """Say that a folder has other kernels by the names of those of a program that is loaded."""
    return (
        f"{folder} has other kernels by the names of {kernels}, which {file} runs and is loaded; "
        "one process loads one of the two folders"
    )


def empty_path_sentence() -> str:
    """Say that no folder was named."""
    return "mirage_kernels.load: folder is ''; the path of a folder works, '.' for this one"


def no_kernels_sentence(folder: object) -> str:
    """Say that a folder has nothing to load, and what would write it."""
    return f"{folder} holds no compiled kernels; `mirage-kernels compile {folder}` makes them"


def requires_grad_sentence(op: str, argument: str) -> str:
    """Say that ops are for inference."""
    return (
        f"mirage_kernels::{op}: {argument} requires grad, but the op has no backward; call it "
        f"under torch.inference_mode() or torch.no_grad(), or pass {argument}.detach()"
    )


def tangent_sentence(op: str, argument: str) -> str:
    """Say that ops have no forward-mode derivative either."""
    return (
        f"mirage_kernels::{op}: {argument} carries a tangent, but the op has no forward-mode "
        f"derivative; pass torch.autograd.forward_ad.unpack_dual({argument}).primal"
    )


def type_sentence(op: str, argument: str, given: object, works: str) -> str:
    """Say of what type an argument is, and what works."""
    what = "None" if given is None else f"of type {type(given).__name__}"
    return f"mirage_kernels::{op}: {argument} is {what}; {works} works"


def plain_tensor_sentence(op: str, argument: str, what: str) -> str:
    """Say that a tensor is of a kind that no program reads."""
    return f"mirage_kernels::{op}: {argument} {what}; a dense tensor on cpu or cuda works"


def pair_sentence(op: str, residual: object) -> str:
    """Say that results are a pair where there is a residual, and only there."""
    if residual is None:
        return (
            f"mirage_kernels::{op}: out is a pair, but residual is not given; one tensor works, or "
            "residual beside the pair"
        )
    return f"mirage_kernels::{op}: with residual, out is a pair (y, total); two tensors work"


def packed_sentence(op: str, shape: Sequence[int]) -> str:
    """Say that a tensor without halves holds no gate and up."""
    return (
        f"mirage_kernels::{op}: gate has shape {list(shape)}, but without up it holds both, "
        "[..., 2 N]; an even last dim works"
    )


def dims_sentence(op: str, argument: str, dims: int, works: str) -> str:
    """Say how many dims there are, and which work."""
    return f"mirage_kernels::{op}: {argument} has {dims} dims; {works} works"


def page_list_sentence(argument: str, given: Tensor, works: str) -> str:
    """Say what a tensor of FlashInfer's page lists must be."""
    dtype = str(given.dtype).removeprefix("torch.")
    return (
        f"mirage_kernels::block_table_from_csr: {argument} has shape {list(given.shape)} and dtype "
        f"{dtype}; {works} works, int32 or int64"
    )


def page_table_sentence(argument: str) -> str:
    """Say that page lists stand in place of a table."""
    return (
        f"mirage_kernels::gqa_csr: {argument} is given, but the page lists say what it would; "
        f"gqa takes {argument}"
    )


def page_device_sentence(argument: str, given: Tensor, last_page_len: Tensor) -> str:
    """Say that page lists lie on one device."""
    return (
        f"mirage_kernels::block_table_from_csr: {argument} is on {given.device}, but last_page_len "
        f"on {last_page_len.device}; one device works"
    )


def number_sentence(op: str, argument: str, given: object, works: str) -> str:
    """Say which numbers work."""
    return f"mirage_kernels::{op}: {argument} is {given}; {works} works"


def question_sentence(op: str, what: str, works: str) -> str:
    """Say what a question about an op is wrong about."""
    place = f"mirage_kernels.supports({op!r})" if op else "mirage_kernels.supports"
    return f"{place}: {what}; {works}"


def value_sentence(op: str, argument: str, element: tuple[Sequence[int], int], works: str) -> str:
    """Say which element of a tensor breaks which bound: its place and what it is."""
    place, found = element
    at = ", ".join(map(str, place))
    return f"mirage_kernels::{op}: {argument}[{at}] is {found}; {works}"


def cache_layout_sentence(op: str, kv_layout: str) -> str:
    """Say which layouts of a cache there are."""
    return f"mirage_kernels::{op}: kv_layout is {kv_layout!r}; 'NHD' and 'HND' work"


def result_layout_sentence(op: str, argument: str) -> str:
    """Say that a result's first two dims must be one."""
    return (
        f"mirage_kernels::{op}: {argument} is no tensor [B, T, ...] whose sequences follow each "
        "other without gaps; one from torch.empty is"
    )


def latent_sizes_sentence(argument: str, size: int, latent: int) -> str:
    """Say that a line must be longer than the latent in it."""
    return (
        f"mirage_kernels::mla_decode: {argument} has lines of {size} elements and latent_dim is "
        f"{latent}; a positive one that is shorter works, or the pair of its parts"
    )


def option_sentence(name: str, given: object, works: Sequence[str]) -> str:
    """Say which options of `optimize` and its backend there are."""
    verb = "works" if len(works) == 1 else "work"
    return f"mirage_kernels.optimize: {name} is {given}; {' and '.join(works)} {verb}"


def other_attention_sentence(model: str, what: str) -> str:
    """Say why a model's attention cannot be replaced."""
    return (
        f"mirage_kernels.integrations.transformers: {model} {what}; models whose layers attend to "
        "all keys or the last ones work, and mirage_kernels.optimize(model) leaves attention alone"
    )


def old_package_sentence(package: str, oldest: str, why: str) -> str:
    """Say which version of a package an integration is written for."""
    return f"mirage_kernels.integrations.{package} needs {package} >= {oldest}; here: {why}"
