"""Stacked adapters on a GPU: which tokens have which, and that nobody else is touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from op_cases import CASES, Case, with_kernel
from torch import Tensor

from mirage_kernels import KernelEntry, kernel_table, lora_linear

pytestmark = pytest.mark.gpu

KERNELS = [k for k in kernel_table() if k.recipe == "lora_linear_batched"]
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name.partition("/")[2])


def stacked(kernel: KernelEntry, adapters: int) -> Case:
    """Return the case of a kernel with a bias, and so many adapters."""
    (plain,) = (case for case in CASES if case.name == "lora_linear batched bias")
    case = with_kernel(plain, kernel)
    return replace(case, sizes={**case.sizes, "A": adapters})


def given(case: Case, ids: Tensor) -> dict[str, object]:
    return case.arguments(ids.numel()) | {"adapter_ids": ids.cuda()}


def assert_close(case: Case, arguments: dict[str, object]) -> Tensor:
    """The op errs no more than PyTorch's program, into a result full of NaN."""
    tokens = arguments["x"].shape[0]  # type: ignore[attr-defined]
    (y,) = case.into(case.poisoned(tokens), arguments)
    (exact,), (other,) = case.oracle(arguments), case.program("library", arguments)
    error = (y.double() - exact).norm() / exact.norm()
    assert error <= 1.1 * (other.double() - exact).norm() / exact.norm()
    return y


PATTERNS = {
    "one": lambda m, a: torch.full((m,), a - 1),
    "sorted": lambda m, a: torch.arange(m) * a // m,
    "mixed": lambda m, a: torch.arange(m) * 7 % a,
    "with none": lambda m, a: torch.where(torch.arange(m) % 3 == 1, -1, torch.arange(m) * 5 % a),
    "none": lambda m, a: torch.full((m,), -1),
    "of no adapter": lambda m, a: torch.where(torch.arange(m) % 2 == 1, a + 5, -9),
}


@each_kernel
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("tokens", [1, 5, 8, 16, 31, 64, 65, 130])
def test_each_token_has_its_own_adapter(kernel: KernelEntry, tokens: int, pattern: str) -> None:
    for adapters in (1, 3, 64):
        case = stacked(kernel, adapters)
        assert_close(case, given(case, PATTERNS[pattern](tokens, adapters)))


@each_kernel
@pytest.mark.parametrize("tokens", [3, 16, 40, 64])
def test_the_type_and_the_order_of_numbers_change_no_bit(kernel: KernelEntry, tokens: int) -> None:
    case = stacked(kernel, 9)
    ids = torch.arange(tokens) * 5 % 9
    arguments = given(case, ids)
    y = case.call(**arguments)
    assert torch.equal(case.call(**arguments | {"adapter_ids": ids.int().cuda()}), y)
    apart = torch.stack([ids, ids]).t()[:, 0]
    assert torch.equal(case.call(**arguments | {"adapter_ids": apart.cuda()}), y)
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(1)).cuda()
    shuffled = arguments | {"x": arguments["x"][order], "adapter_ids": ids.cuda()[order]}
    assert torch.equal(case.call(**shuffled), y[order])


@each_kernel
def test_tokens_without_an_adapter_have_the_linear_layer(kernel: KernelEntry) -> None:
    case = stacked(kernel, 4)
    arguments = given(case, torch.tensor([-1, 2, -1, 0, 3]))
    y = case.call(**arguments)
    none = case.call(**arguments | {"adapter_ids": torch.full((5,), -1, device="cuda")})
    assert torch.equal(y[[0, 2]], none[[0, 2]])
    assert not torch.equal(y, none)


@each_kernel
@pytest.mark.parametrize("name", ["lora_a", "lora_b"])
def test_what_is_not_finite_stays_with_its_adapter(kernel: KernelEntry, name: str) -> None:
    case = stacked(kernel, 4)
    ids = torch.arange(33) % 4
    arguments = given(case, ids)
    before = case.call(**arguments)
    arguments[name][2] = torch.nan  # type: ignore[index]
    after = case.call(**arguments)
    assert torch.equal(after[ids != 2], before[ids != 2])
    assert torch.isnan(after[ids == 2]).all()


@each_kernel
def test_a_stack_of_none_is_a_linear_layer(kernel: KernelEntry) -> None:
    case = stacked(kernel, 0)
    arguments = case.arguments(0) | {"x": stacked(kernel, 1).arguments(6)["x"]}
    arguments["adapter_ids"] = torch.zeros(6, dtype=torch.int64, device="cuda")
    y = case.call(**arguments)
    expected = torch.nn.functional.linear(arguments["x"], arguments["weight"], arguments["bias"])
    assert torch.allclose(y, expected, rtol=0.02, atol=0.02)


@each_kernel
@pytest.mark.parametrize("tokens", [4, 64])
def test_other_adapters_may_come_at_each_replay(captured, kernel: KernelEntry, tokens: int) -> None:
    case = stacked(kernel, 16)
    arguments = given(case, torch.arange(tokens) % 16)
    (out,) = case.poisoned(tokens)

    def run() -> None:  # numbers and x are written right before: kernels may not read them early
        fresh = {"adapter_ids": arguments["adapter_ids"] + 1, "x": arguments["x"] * 1}
        lora_linear(**arguments | fresh, out=out)
        lora_linear(**arguments | fresh, out=out)

    graph = captured(run)
    for shift in (0, 3, 9):
        fresh = (torch.arange(tokens, device="cuda") * 3 + shift) % 17 - 1
        arguments["adapter_ids"].copy_(fresh - 1)
        graph.replay()
        assert torch.equal(out, case.call(**arguments | {"adapter_ids": fresh}))
