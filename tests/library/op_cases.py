"""The ops as cases: each way to call one, inputs for it at any size, and its value in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import torch
from exact import (
    exact_act_and_mul,
    exact_gated_mlp,
    exact_layer_norm,
    exact_layer_norm_linear,
    exact_linear,
    exact_lora_linear,
    exact_ntrans,
    exact_rms_norm,
    exact_rms_norm_add,
    exact_rms_norm_gated_mlp,
    exact_rms_norm_linear,
    results,
)
from torch import Tensor

from mirage_kernels import KernelEntry, kernel_table

Arguments = dict[str, object]
Exact = Callable[..., "Tensor | tuple[Tensor, Tensor]"]

SMALL = {"K": 64, "N": 96, "R": 8, "A": 5}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One way to call an op. `tensors` gives each tensor's dims after those of the tokens, "M"."""

    name: str
    op: str
    tensors: Mapping[str, str]
    exact: Exact
    scalars: Mapping[str, object] = field(default_factory=dict)
    integers: Mapping[str, object] | None = None  # scalars with which small integers stay exact
    sizes: Mapping[str, int] = field(default_factory=lambda: SMALL)
    dtype: torch.dtype = torch.float16
    device: str = "cpu"
    kernel: KernelEntry | None = None

    @property
    def call(self) -> Callable[..., object]:
        import mirage_kernels

        function: Callable[..., object] = getattr(mirage_kernels, self.op)
        return function

    def arguments(self, *leading: int, seed: int = 0) -> Arguments:
        """Draw arguments of usual magnitudes, for tokens in any leading dims."""
        draw = torch.Generator(self.device).manual_seed(seed)
        return {n: self._drawn(n, leading, draw) for n in self.tensors} | dict(self.scalars)

    def _drawn(self, name: str, leading: tuple[int, ...], draw: torch.Generator) -> Tensor:
        shape = self.shape(name, leading)
        if name == "adapter_ids":
            high = self.sizes["A"]
            return torch.randint(-1, high, shape, generator=draw, device=self.device)
        data = torch.randn(shape, generator=draw, device=self.device)
        if name.startswith(("norm", "bias")):
            data = (name == "norm_weight") + 0.1 * data
        elif name not in ("x", "residual", "gate", "up"):
            data = data / shape[-1] ** 0.5
        return data.to(self.dtype)

    def integer_arguments(self, tokens: int, seed: int = 0) -> Arguments:
        """Draw small integers with which every product, sum and norm is an integer below 256.

        x is +1 and -1, so that its root mean square is 1; weights are mostly 0.
        """
        draw = torch.Generator(self.device).manual_seed(seed)

        def integers(name: str) -> Tensor:
            shape = self.shape(name, (tokens,))
            drawn = torch.randint(0, 2, shape, generator=draw, device=self.device)
            if name == "adapter_ids":
                return drawn - 1
            if name == "x":  # as many +1 as -1: the mean is 0
                signs = torch.rand(shape, generator=draw, device=self.device).argsort(-1)
                return (2 * (signs % 2) - 1).to(self.dtype)
            if name.startswith(("norm", "bias")):
                return (drawn + (name == "norm_weight")).to(self.dtype)
            if name == "residual":
                return drawn.mul(0).to(self.dtype)
            kept = torch.rand(shape, generator=draw, device=self.device) < 24 / shape[-1]
            return ((2 * drawn - 1) * kept).to(self.dtype)

        scalars = dict(self.integers or {})
        return {name: integers(name) for name in self.tensors} | scalars

    def shape(self, name: str, leading: tuple[int, ...]) -> tuple[int, ...]:
        shape: list[int] = []
        for word in self.tensors[name].split():
            if word == "M":
                shape += leading
            else:
                shape.append(self.sizes[word[-1]] * int(word[:-1] or 1))
        return tuple(shape)

    def oracle(self, arguments: Arguments) -> tuple[Tensor, ...]:
        """Return the results in float64."""
        wide = {
            name: value.double()
            if isinstance(value, Tensor) and value.is_floating_point()
            else value
            for name, value in arguments.items()
        }
        return results(self.exact(**wide))

    def has_kernel(self, tokens: int) -> bool:
        """Say whether a kernel serves that many tokens, and not PyTorch's program."""
        if self.kernel is None or (self.overload == "batched" and not self.kernel_is_own):
            return False
        return self.kernel.max_tokens == 0 or tokens <= self.kernel.max_tokens

    @property
    def first(self) -> str:
        """The tensor that brings the tokens."""
        return next(iter(self.tensors))

    @property
    def takes_any_size(self) -> bool:
        """Say whether the op has kernels of one recipe alone, and else PyTorch's program."""
        return self.op in ANY_SIZE or self.overload == "batched"

    @property
    def overload(self) -> str:
        """The signature that serves the case."""
        if self.tensors.get("gate_weight") == "2N K":
            return "packed_residual" if "residual" in self.tensors else "packed"
        if "adapter_ids" in self.tensors:
            return "batched"
        return "residual" if self.returns_total else "default"

    @property
    def returns_total(self) -> bool:
        """Say whether the op returns the sum that it works on."""
        return "residual" in self.tensors and self.op != "linear"

    @property
    def options(self) -> set[str]:
        """What the case uses, or leaves out, that a kernel need not have."""
        optional = {"bias", "residual", "weight_offset"} & {*self.tensors, *self.scalars}
        return optional | ({"norm_bias"} & {*self.scalars})

    @property
    def kernel_is_own(self) -> bool:
        """Say whether the kernel is of the overload's own recipe, with a place for everything."""
        return self.kernel is not None and self.kernel.recipe.endswith(
            f"_{self.overload.removeprefix('packed_')}"
        )

    @property
    def kernel_takes_options(self) -> bool:
        """Say whether the kernel takes what the case uses or leaves out."""
        assert self.kernel is not None
        return self.kernel_is_own or self.options <= {*self.kernel.options.split()}

    def program(self, kind: str, arguments: Arguments) -> tuple[Tensor, ...]:
        """Return what one of PyTorch's programs computes: `kind` is "library" or "composite".

        By PyTorch's kernels alone, also where this build has some for a part of it.
        """
        outs = self.poisoned(*arguments[self.first].shape[:-1])  # type: ignore[attr-defined]
        given = {"activation": "silu"} if {"gate", "gate_weight"} & {*self.tensors} else {}
        given |= {"eps": 1e-6} if "norm_weight" in self.tensors else {}
        given |= {"bias": None} if self.overload == "residual" and "weight" in self.tensors else {}
        given |= arguments
        if self.overload.startswith("packed"):
            given["gate_up_weight"] = given.pop("gate_weight")
        op = getattr(torch.ops.mirage_kernels, f"_{self.op}_{kind}")
        with patch("mirage_kernels.dispatch.most_tokens", return_value=None):
            getattr(op, self.overload)(**given, **dict(zip(("out", "total"), outs, strict=False)))
        return outs

    def poisoned(self, *leading: int) -> tuple[Tensor, ...]:
        """Return tensors for the results, full of NaN."""
        letters = {letter for dims in self.tensors.values() for letter in dims}
        last = ["N" if "N" in letters else "K"] + ["K"] * self.returns_total
        shapes = [(*leading, self.sizes[name]) for name in last]
        return tuple(torch.full(s, torch.nan, dtype=self.dtype, device=self.device) for s in shapes)

    def into(self, outs: tuple[Tensor, ...], arguments: Arguments) -> tuple[Tensor, ...]:
        """Call the op with `out` and return what it returns."""
        return results(self.call(**arguments, out=outs if len(outs) > 1 else outs[0]))


X = {"x": "M K"}
PLAIN = {**X, "weight": "N K"}
ADDEND = {"residual": "M N"}
NORMED = {**X, "norm_weight": "K", "weight": "N K"}
LAYERED = {**X, "norm_weight": "K", "norm_bias": "K", "weight": "N K"}
LORA = {**X, "weight": "N K", "lora_a": "R K", "lora_b": "N R"}
STACKED = {**X, "weight": "N K", "lora_a": "A R K", "lora_b": "A N R", "adapter_ids": "M"}
GATED = {**X, "gate_weight": "N K", "up_weight": "N K"}
PACKED = {**X, "gate_weight": "2N K"}
NORMED_GATED = {**X, "norm_weight": "K", "gate_weight": "N K", "up_weight": "N K"}
NORMED_PACKED = {**X, "norm_weight": "K", "gate_weight": "2N K"}
NORM = {**X, "norm_weight": "K"}
HALVES = {"gate": "M N", "up": "M N"}
BIAS = {"bias": "N"}
# Where no kernel serves, PyTorch does.
ANY_SIZE = ("linear", "rms_norm", "rms_norm_add", "layer_norm", "act_and_mul")


def _made(name: str, tensors: Mapping[str, str], exact: Exact, **scalars: object) -> Case:
    op = exact.__name__.removeprefix("exact_")
    gated = {"gate", "gate_weight"} & {*tensors}
    activation = scalars.get("activation", "silu" if gated else "relu")
    integers = {**scalars}
    if "norm_weight" in tensors:
        integers["eps"] = 0.0
    exactly = integers if activation == "relu" else None
    return Case(f"{op} {name}".strip(), op, tensors, exact, scalars, exactly)


CASES = (
    _made("", NORMED, exact_rms_norm_linear, eps=1e-6),
    _made("bias", NORMED | BIAS, exact_rms_norm_linear),
    _made("offset", NORMED, exact_rms_norm_linear, weight_offset=1.0),
    _made("residual", NORMED | {"residual": "M K"}, exact_rms_norm_linear),
    _made(
        "all options",
        NORMED | BIAS | {"residual": "M K"},
        exact_rms_norm_linear,
        weight_offset=1.0,
    ),
    _made("", PLAIN, exact_linear),
    _made("bias", PLAIN | BIAS, exact_linear),
    _made("onto residual", PLAIN | ADDEND, exact_linear),
    _made("bias onto residual", PLAIN | BIAS | ADDEND, exact_linear),
    _made("", LAYERED, exact_layer_norm_linear, eps=1e-5),
    _made("without norm_bias", NORMED, exact_layer_norm_linear, norm_bias=None),
    _made("bias", LAYERED | BIAS, exact_layer_norm_linear),
    _made("", LORA, exact_lora_linear, scale=2.0),
    _made("bias", LORA | BIAS, exact_lora_linear, scale=-0.5),
    _made("batched", STACKED, exact_lora_linear, scale=2.0),
    _made("batched bias", STACKED | BIAS, exact_lora_linear, scale=0.5),
    _made("", GATED, exact_gated_mlp),
    _made("gelu", GATED, exact_gated_mlp, activation="gelu"),
    _made("gelu_tanh", GATED, exact_gated_mlp, activation="gelu_tanh"),
    _made("relu", GATED, exact_gated_mlp, activation="relu"),
    _made("packed", PACKED, exact_gated_mlp),
    _made("packed relu", PACKED, exact_gated_mlp, activation="relu"),
    _made("", NORMED_GATED, exact_rms_norm_gated_mlp, eps=1e-6),
    _made("relu", NORMED_GATED, exact_rms_norm_gated_mlp, activation="relu"),
    _made("packed", NORMED_PACKED, exact_rms_norm_gated_mlp),
    _made(
        "packed offset",
        NORMED_PACKED,
        exact_rms_norm_gated_mlp,
        activation="gelu_tanh",
        weight_offset=1.0,
    ),
    _made("residual", NORMED_GATED | {"residual": "M K"}, exact_rms_norm_gated_mlp),
    _made(
        "packed residual",
        NORMED_PACKED | {"residual": "M K"},
        exact_rms_norm_gated_mlp,
        activation="relu",
        weight_offset=1.0,
    ),
    _made("", NORM, exact_rms_norm, eps=1e-6),
    _made("offset", NORM, exact_rms_norm, weight_offset=1.0),
    _made("residual", NORM | {"residual": "M K"}, exact_rms_norm),
    _made("residual offset", NORM | {"residual": "M K"}, exact_rms_norm, weight_offset=1.0),
    _made("", NORM | {"addend": "M K"}, exact_rms_norm_add, eps=1e-6),
    _made("offset", NORM | {"addend": "M K"}, exact_rms_norm_add, weight_offset=1.0),
    _made("", NORM | {"norm_bias": "K"}, exact_layer_norm, eps=1e-5),
    _made("without norm_bias", NORM, exact_layer_norm, norm_bias=None),
    _made("residual", NORM | {"norm_bias": "K", "residual": "M K"}, exact_layer_norm),
    _made("", HALVES, exact_act_and_mul),
    _made("gelu", HALVES, exact_act_and_mul, activation="gelu"),
    _made("gelu_tanh", HALVES, exact_act_and_mul, activation="gelu_tanh"),
    _made("relu", HALVES, exact_act_and_mul, activation="relu"),
    Case("ntrans", "ntrans", {"h": "M K", **X, "alpha": "K"}, exact_ntrans),
)


def kernel_cases() -> list[Case]:
    """Return the cases at the sizes of the compiled kernels, each with its kernel."""
    return [with_kernel(c, k) for c in CASES for k in kernel_table() if k.recipe in _recipes(c)]


def gpu_cases() -> list[Case]:
    """Return for each case and dtype the one with its own kernel, else with the first."""
    firsts: dict[tuple[str, torch.dtype], Case] = {}
    for case in sorted(kernel_cases(), key=lambda case: not case.kernel_is_own):
        firsts.setdefault((case.name.rpartition(" ")[0], case.dtype), case)
    return list(firsts.values())


def _recipes(case: Case) -> tuple[str, ...]:
    if case.overload == "batched":  # where no kernel serves it PyTorch's program does, at any size
        own = "lora_linear_batched"
        return (own if any(k.recipe == own for k in kernel_table()) else "rms_norm_linear",)
    activation = str(case.scalars.get("activation", "silu"))
    recipe = str(torch.ops.mirage_kernels._recipe_of(case.op, activation))
    if case.op in ANY_SIZE:
        return (recipe if case.overload == "default" else f"{recipe}_{case.overload}",)
    own = (f"{recipe}_residual",) if case.overload.endswith("residual") else ()
    return recipe, f"{recipe}_full", *own


def with_kernel(case: Case, kernel: KernelEntry) -> Case:
    name = f"{case.name} {kernel.name.partition('/')[2]}"
    sizes = {"R": 16, "A": 5, **kernel.dims}
    there = replace(case, device="cuda", kernel=kernel)
    return replace(there, name=name, sizes=sizes, dtype=DTYPES[kernel.dtype])
