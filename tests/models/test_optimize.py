"""`optimize` on small modules: what it replaces, what it leaves, and that results stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import mirage_kernels  # noqa: E402

K, N = 64, 96


@pytest.fixture(autouse=True)
def _fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Norm(nn.Module):
    """RMSNorm as models write it; offset 1 as Gemma's."""

    def __init__(self, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(K))
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        if self.offset:
            return (normed * (self.offset + self.weight.float())).type_as(x)
        return self.weight * normed.to(x.dtype)


class Attention(nn.Module):
    """The projections in front of attention."""

    def __init__(self, norm: nn.Module, bias: bool = False) -> None:
        super().__init__()
        self.norm = norm
        self.q, self.k, self.v = (nn.Linear(K, n, bias=bias) for n in (64, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        heads = [f(x).view(*x.shape[:-1], -1, 16) for f in (self.q, self.k, self.v)]
        return torch.cat(heads, dim=-2)


class Gated(nn.Module):
    """A gated MLP behind a norm or none."""

    def __init__(self, act: Callable[[Tensor], Tensor], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.act = norm or nn.Identity(), act
        self.gate, self.up = (nn.Linear(K, N, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.act(self.gate(x)) * self.up(x)


class Wrapped(nn.Module):
    """torch.compile traces no module of PyTorch's that stands alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def half(module: nn.Module) -> nn.Module:
    return module.to(torch.bfloat16).eval()


def tokens(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 5)), K, dtype=torch.bfloat16)


def optimized(module: nn.Module, *inputs: Tensor, **options: bool) -> dict[str, int]:
    """Optimize a module, check that results stay, and return what was replaced, by op."""
    module = half(module)
    with torch.no_grad():
        wanted = module(*inputs)
        mirage_kernels.optimize(module, **options, fullgraph=True)
        made = module(*inputs)
    for a, b in zip(_listed(made), _listed(wanted), strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    return replaced(module)


def _listed(made: object) -> list[Tensor]:
    return list(made) if isinstance(made, tuple) else [made]


def replaced(module: nn.Module) -> dict[str, int]:
    found: dict[str, int] = {}
    for row, count in mirage_kernels.report(module).replaced.items():
        name = row.what.split()[0] + (" residual" if "residual" in row.what else "")
        found[name] = found.get(name, 0) + count
    return found


def test_a_norm_as_llama_writes_it_is_replaced() -> None:
    assert optimized(Norm(), tokens()) == {"rms_norm": 1}


def test_a_norm_as_gemma_writes_it_takes_its_offset() -> None:
    assert optimized(Norm(1.0), tokens()) == {"rms_norm": 1}


def test_pytorchs_own_norm_is_replaced() -> None:
    assert optimized(Wrapped(nn.RMSNorm(K, eps=1e-5)), tokens()) == {"rms_norm": 1}


@pytest.mark.parametrize("bias", [False, True])
def test_linears_of_one_norm_become_one_product(bias: bool) -> None:
    module = Attention(Norm(), bias)
    assert optimized(module, tokens()) == {"rms_norm_linear": 1}
    row = next(iter(mirage_kernels.report(module).replaced))
    assert row.what.startswith("rms_norm_linear K=64, N=128")
    assert row.note == "3 weights as one: 64 + 32 + 32"


def test_packed_weights_are_views_with_the_values_they_had() -> None:
    module = half(Attention(Norm()))
    before = {name: p.detach().clone() for name, p in module.state_dict().items()}
    optimized(module, tokens())
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    own = [linear.weight.untyped_storage().data_ptr() for linear in (module.q, module.k, module.v)]
    assert len(set(own)) == 1


def test_a_weight_that_is_written_later_is_read_by_the_packed_product() -> None:
    module = half(Attention(Norm()))
    optimized(module, x := tokens())
    with torch.no_grad():
        module.k.weight.mul_(2)
        made = module(x)
        heads = made.split([4, 2, 2], dim=-2)[1]
        wanted = functional.linear(module.norm(x), module.k.weight).view(heads.shape)
    torch.testing.assert_close(heads, wanted, rtol=2e-2, atol=2e-2)


def test_a_second_shape_uses_the_packed_weights_again() -> None:
    module = half(Attention(Norm()))
    optimized(module, tokens())
    whole = module.q.weight.untyped_storage().data_ptr()
    with torch.no_grad():
        module(tokens(3, 1))
    assert module.q.weight.untyped_storage().data_ptr() == whole
    assert replaced(module) == {"rms_norm_linear": 2}


def test_without_packing_each_linear_is_a_call() -> None:
    assert optimized(Attention(Norm()), tokens(), pack=False) == {"rms_norm_linear": 3}


def gelu_of_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "silu": functional.silu,
    "x * sigmoid(x)": lambda x: x * torch.sigmoid(x),
    "x / (1 + exp(-x))": lambda x: x / (1 + torch.exp(-x)),
    "gelu": functional.gelu,
    "gelu by erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu by tanh": gelu_of_tanh,
    "relu": functional.relu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gated_mlp_is_one_call(name: str) -> None:
    module = Gated(ACTIVATIONS[name])
    assert optimized(module, tokens()) == {"gated_mlp": 1}
    word = {"x": "silu"}.get(name[0], name.split()[0])
    word = "gelu_tanh" if "tanh" in name else word
    assert f"{word}," in next(iter(mirage_kernels.report(module).replaced)).what


def test_a_gated_mlp_behind_a_norm_is_one_call() -> None:
    assert optimized(Gated(functional.silu, Norm()), tokens()) == {"rms_norm_gated_mlp": 1}


class PackedGated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(K, 2 * N, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, dim=-1)
        return up * functional.silu(gate)


def test_a_packed_gated_mlp_is_one_call() -> None:
    assert optimized(PackedGated(), tokens()) == {"gated_mlp": 1}


class Activation(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(gate) * up


def test_an_activation_alone_is_replaced() -> None:
    assert optimized(Activation(), tokens(), tokens()) == {"act_and_mul": 1}


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.a = nn.Linear(K, N), nn.Linear(K, 8, bias=False)
        self.b = nn.Linear(8, N, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x)) * 2.0


def test_a_linear_with_an_adapter_is_one_call() -> None:
    assert optimized(Lora(), tokens()) == {"lora_linear": 1}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = Norm(), nn.Linear(K, N, bias=False)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.linear(self.norm(total)), total


def test_a_residual_is_added_inside() -> None:
    assert optimized(Residual(), tokens(), tokens()) == {"rms_norm_linear residual": 1}


class Ngpt(nn.Module):
    def forward(self, h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
        moved = torch.lerp(h, functional.normalize(x, dim=-1), alpha)
        return functional.normalize(moved, dim=-1)


def test_ngpts_residual_step_is_one_call() -> None:
    alpha = torch.rand(K, dtype=torch.bfloat16)
    assert optimized(Ngpt(), tokens(), tokens(), alpha) == {"ntrans": 1}


# -- what stays ------------------------------------------------------------------------------------


def kept(module: nn.Module) -> str:
    return str(mirage_kernels.report(module))


def test_single_precision_stays_and_the_report_says_why() -> None:
    module = Wrapped(nn.RMSNorm(K, eps=1e-5))
    mirage_kernels.optimize(module, [torch.randn(2, K)])
    assert not replaced(module)
    assert "float32; float16 and bfloat16 work" in kept(module)


def test_sizes_without_a_kernel_stay_and_the_report_names_the_command() -> None:
    module = Gated(functional.silu)
    assert optimized(module, tokens(), compiled_only=True) == {}
    command = "mirage-kernels generate gated_mlp --shape K=64,N=96"
    assert command in mirage_kernels.report(module).commands


def test_linears_that_would_need_one_kernel_name_its_size() -> None:
    module = Attention(Norm())
    assert optimized(module, tokens(), compiled_only=True) == {}
    command = "mirage-kernels generate rms_norm_linear --shape K=64,N=128"
    assert command in mirage_kernels.report(module).commands


def test_nothing_is_replaced_where_gradients_are_recorded() -> None:
    module = half(Gated(functional.silu))
    mirage_kernels.optimize(module)
    module(tokens()).sum().backward()
    assert not replaced(module)
    assert "torch.inference_mode()" in kept(module)
    assert module.gate.weight.grad is not None


class Written(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        active = functional.silu(gate)
        active.add_(1)
        return active * up


def test_a_value_that_is_written_in_place_stays() -> None:
    assert optimized(Written(), tokens(), tokens()) == {}


class OtherScale(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        other = x.flip(-1).float()
        return (x.float() * torch.rsqrt(other.pow(2).mean(-1, keepdim=True))).to(x.dtype) * weight


def test_a_norm_by_another_tensors_length_stays() -> None:
    weight = torch.rand(K, dtype=torch.bfloat16)
    assert optimized(OtherScale(), tokens(), weight) == {}


class SharedProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(K, N, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = self.gate(x)
        return functional.silu(gate) * self.up(x), gate


def test_a_product_that_is_returned_too_is_not_computed_twice() -> None:
    assert optimized(SharedProduct(), tokens()) == {"act_and_mul": 1, "linear": 2}


class Outer(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(gate)[:, None] * up[None]


def test_a_product_of_all_pairs_of_rows_stays() -> None:
    assert optimized(Outer(), tokens(3), tokens(3)) == {}


def test_inference_mode_works_like_no_grad() -> None:
    module = half(Gated(functional.silu, Norm()))
    mirage_kernels.optimize(module)
    with torch.inference_mode():
        module(tokens())
    assert replaced(module) == {"rms_norm_gated_mlp": 1}


def test_any_number_of_tokens_runs_one_graph_where_shapes_are_dynamic() -> None:
    module = half(Gated(functional.silu, Norm()))
    mirage_kernels.optimize(module, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for count in (2, 3, 7):
            assert module(tokens(count)).shape == (count, N)
    assert replaced(module) == {"rms_norm_gated_mlp": 1}


def test_what_is_left_is_compiled_by_inductor_where_a_mode_is_given() -> None:
    module, x = half(Attention(Norm())), tokens()
    with torch.no_grad():
        wanted = module(x)
        mirage_kernels.optimize(module, mode="default", fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(module(x), wanted, rtol=2e-2, atol=2e-2)
        longer = tokens(3, 7)
        assert module(longer).shape[:2] == (3, 7)
    assert replaced(module) == {"rms_norm_linear": len(mirage_kernels.report(module).graphs)}


def test_modules_that_do_not_change_are_not_looked_at_again() -> None:
    module = half(Gated(functional.silu, Norm()))
    mirage_kernels.optimize(module, constant_modules=True)
    with torch.no_grad():
        module(tokens())
        module.act = functional.relu
        module(tokens())
    assert len(mirage_kernels.report(module).graphs) == 1
