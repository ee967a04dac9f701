"""Every error that the library raises from Python: one sentence each, with what to do about it."""

from __future__ import annotations


class TorchTooOldError(ImportError):
    """The installed PyTorch is older than the extension serves."""

    def __init__(self, found: str, oldest: str) -> None:
        super().__init__(
            f"mirage_kernels needs torch >= {oldest}, but torch {found} is installed; "
            f"`pip install 'torch>={oldest}'`"
        )


class ExtensionMissingError(ImportError):
    """The compiled extension is absent or does not load."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the compiled extension mirage_kernels._C does not load ({reason}); install a wheel, "
            "or in a source checkout run `pip install --no-build-isolation -e .` beside torch, nvcc"
        )


class InferenceOnlyError(RuntimeError):
    """An input asks for gradients, which no op computes."""


def requires_grad_sentence(op: str, argument: str) -> str:
    """Write the sentence here: torch.compile does not trace an exception's own constructor."""
    return (
        f"mirage_kernels::{op}: {argument} requires grad, but the op has no backward; call it "
        f"under torch.inference_mode() or torch.no_grad(), or pass {argument}.detach()"
    )


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
        f"mirage_kernels::mla_decode: {argument} has lines of {size} elements, of which latent_dim "
        f"is {latent}; longer ones work, or the pair of its parts"
    )
