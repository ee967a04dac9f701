"""Results lie in memory as the model's own do, so that views and callers find their numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import mirage_kernels  # noqa: E402
from mirage_kernels.matching import rewrite  # noqa: E402
from tests.models.test_optimize import (  # noqa: E402
    K,
    Norm,
    _fresh_graphs,  # noqa: F401
    half,
    replaced,
    tokens,
)

COUNT = 5  # of tokens


class Read(nn.Module):
    """Two projections of one norm, the first of which a function reads."""

    def __init__(self, read: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.norm, self.read = Norm(), read
        self.q, self.k = (nn.Linear(K, K, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[object, Tensor]:
        x = self.norm(x)
        return self.read(self.q(x)), self.k(x)


@torch.library.custom_op("mirage_tests::flat", mutates_args=())
def flat(x: Tensor) -> Tensor:
    """Read memory as it lies, as many kernels do."""
    return x.as_strided((x.numel(),), (1,)).clone()


@flat.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.numel())


READERS: dict[str, Callable[[Tensor], object]] = {
    "output": lambda q: q,
    "output of a view": lambda q: q.view(COUNT, 4, 16).transpose(0, 1),
    "as_strided": lambda q: q.as_strided((2, K), (K, 1), K),
    "view": lambda q: q.view(-1),
    "view of a view": lambda q: q.view(COUNT, 4, 16).view(-1),
    "view(size=)": lambda q: q.view(size=(-1,)),
    "view_as": lambda q: q.view_as(torch.empty(COUNT * K)),
    "view of other numbers": lambda q: q.view(torch.int16).view(-1),
    "squeeze": lambda q: q.squeeze(0).view(-1),
    "detach": lambda q: q.detach().view(-1),
    "unflatten": lambda q: q.unflatten(0, (1, COUNT)).view(-1),
    "chunk": lambda q: q.chunk(2, dim=0)[1].view(-1) * 2,
    "an operator of another library": flat,
    "strides": lambda q: torch.empty_strided(q.size(), q.stride()).zero_(),
}


def both(read: Callable[[Tensor], object]) -> tuple[Tensor, Tensor, nn.Module]:
    """Return what PyTorch and what an optimized module make, with the module."""
    module, x = half(Read(read)), tokens(COUNT)
    with torch.no_grad():
        wanted = module(x)[0]
        made = mirage_kernels.optimize(module, fullgraph=True)(x)[0]
    return wanted, made, module


@pytest.mark.parametrize("name", READERS)
def test_a_part_of_a_packed_product_is_read_as_a_tensor_of_its_own(name: str) -> None:
    wanted, made, module = both(READERS[name])
    assert made.shape == wanted.shape
    assert made.stride() == wanted.stride()
    if wanted.dtype.is_floating_point:
        torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-2)
    assert replaced(module) == {"rms_norm_linear": 1}


COLUMNS: dict[str, Callable[[Tensor], object]] = {
    "heads": lambda q: q.view(COUNT, 4, 16).transpose(0, 1) * 2,
    "a rotation": lambda q: torch.cat([-q[:, K // 2 :], q[:, : K // 2]], dim=-1) + q,
    "a cache": lambda q: torch.zeros(8, K).to(q).index_copy_(0, torch.arange(COUNT), q),
    "attention": lambda q: functional.scaled_dot_product_attention(q[None], q[None], q[None]),
    "a norm": lambda q: functional.rms_norm(q.view(COUNT, 4, 16), (16,), None, 1e-5),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_what_takes_strides_reads_the_columns_without_a_copy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[frozenset[object]] = []
    look = rewrite.kept_apart
    monkeypatch.setattr(rewrite, "kept_apart", lambda *a: found.append(look(*a)) or found[-1])
    wanted, made, _ = both(COLUMNS[name])
    assert made.stride() == wanted.stride()
    torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-2)
    assert len(found[0]) == 1  # the other one is returned


class Transposed(nn.Module):
    """An activation whose result lies column by column, as its operands do."""

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return (functional.silu(gate.t()) * up.t()).t().view(-1)


def test_a_result_that_is_not_contiguous_stays() -> None:
    module, x = Transposed(), tokens(COUNT)
    wanted = module(x, x)
    made = mirage_kernels.optimize(module, fullgraph=True)(x, x)
    torch.testing.assert_close(made, wanted)
    assert not replaced(module)
    assert "its result is not contiguous" in str(mirage_kernels.report(module))


class HeadsFirst(nn.Module):
    """Norms and activations of heads that lie token by token, as Gemma 3 has them."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.norm, self.wanted = Norm(), wanted

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x, y = (t.view(2, COUNT, 4, K).transpose(1, 2) for t in (x, y))
        if self.wanted == "rms_norm residual":
            return self.norm(x + y), x + y
        made = self.norm(x) if self.wanted == "rms_norm" else functional.silu(x) * y
        return made, made.transpose(1, 2).view(2, COUNT, 4 * K)


@pytest.mark.parametrize("op", ["rms_norm", "act_and_mul", "rms_norm residual"])
def test_rows_in_another_order_keep_it(op: str) -> None:
    module = half(HeadsFirst(op))
    x, y = torch.randn(2, 2, COUNT, 4 * K).bfloat16()
    with torch.no_grad():
        wanted = module(x, y)
        made = mirage_kernels.optimize(module, fullgraph=True)(x, y)
    assert [t.stride() for t in made] == [t.stride() for t in wanted]
    torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-2)
    assert replaced(module) == {op: 1}


def test_any_number_of_tokens_keeps_its_strides() -> None:
    module = half(Read(lambda q: q.view(-1)))
    mirage_kernels.optimize(module, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for count in (2, 3, 7):
            x = tokens(count)
            torch.testing.assert_close(module(x)[0], module.forward(x)[0], rtol=2e-2, atol=2e-2)
    assert len(mirage_kernels.report(module).graphs) == 1
