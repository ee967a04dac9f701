"""The torch.compile backend by its name, the patterns that it looks for, and the laws of terms."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import mirage_kernels  # noqa: E402
import mirage_kernels.matching.backend  # noqa: E402  (as the entry point does)
from mirage_kernels.matching.patterns import patterns  # noqa: E402
from mirage_kernels.matching.terms import Terms  # noqa: E402
from mirage_kernels.matching.trace import function_terms  # noqa: E402


class Gated(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(gate) * up


def tokens() -> Tensor:
    return torch.randn(3, 64, dtype=torch.bfloat16)


def test_torch_compile_knows_the_backend_by_name() -> None:
    module, gate, up = Gated(), tokens(), tokens()
    compiled = torch.compile(module, backend="mirage_kernels", options={"rest": "eager"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(gate, up), module(gate, up), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("options", [{"speed": 11}, {"rest": "nothing"}, {"pack": "no"}])
def test_an_unknown_option_of_the_backend_is_told(options: dict[str, object]) -> None:
    compiled = torch.compile(Gated(), backend="mirage_kernels", options=options)
    with pytest.raises(Exception, match="work"), torch.no_grad():
        compiled(tokens(), tokens())


def test_a_model_that_was_not_optimized_has_no_report() -> None:
    with pytest.raises(RuntimeError, match=r"optimize\(model\)"):
        mirage_kernels.report(nn.Identity())


def test_what_is_no_module_is_refused_in_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"torch\.nn\.Module works$"):
        mirage_kernels.optimize(torch.relu)  # type: ignore[type-var]


@pytest.mark.parametrize("given", [3, "x", torch.ones(1, 64)])
def test_example_inputs_that_are_no_arguments_are_refused_at_once(given: object) -> None:
    module = Gated()
    said = rf"example_inputs is {type(given).__name__}; a list of arguments and a dict"
    with pytest.raises(RuntimeError, match=said):
        mirage_kernels.optimize(module, given)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"optimize\(model\)"):
        mirage_kernels.report(module)


@pytest.mark.parametrize(
    "options",
    [{"mode": "nope"}, {"mode": 3}, {"mode": ["default"]}, {"pack": "no"}, {"compiled_only": 1}],
)
def test_an_option_that_does_not_work_is_told_at_once(options: dict[str, object]) -> None:
    module = Gated()
    with pytest.raises(RuntimeError, match=rf"{next(iter(options))} is .* works?$"):
        mirage_kernels.optimize(module, **options)
    with pytest.raises(RuntimeError, match=r"optimize\(model\)"):
        mirage_kernels.report(module)


def container() -> nn.Module:
    """Return modules of torch's own in a container of torch's own."""
    return nn.Sequential(nn.RMSNorm(64, eps=1e-5), nn.Linear(64, 96)).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (container, "rms_norm_linear"),
        (lambda: nn.RMSNorm(64, eps=1e-5).to(torch.bfloat16), "rms_norm"),
        (lambda: nn.Linear(64, 96).to(torch.bfloat16), "linear"),
    ],
)
def test_a_module_of_torchs_own_is_one_graph(make: Callable[[], nn.Module], op: str) -> None:
    module, x = make(), tokens()
    with torch.no_grad():
        wanted = module(x)
        made = mirage_kernels.optimize(module, fullgraph=True)(x)
    torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-2)
    assert [row.what.split()[0] for row in mirage_kernels.report(module).replaced] == [op]


def test_a_module_that_torch_compile_was_given_is_optimized() -> None:
    module = mirage_kernels.optimize(torch.compile(container(), backend="eager"))
    with torch.no_grad():
        module(tokens())
    assert mirage_kernels.report(module).replaced


def test_many_containers_are_a_graph_each() -> None:
    modules = [container() for _ in range(9)]  # torch.compile makes eight of one function's code
    with torch.no_grad():
        for module in modules:
            mirage_kernels.optimize(module)(tokens())
    assert all(mirage_kernels.report(module).replaced for module in modules)


@pytest.mark.parametrize("is_called", [False, True])
def test_an_optimized_container_is_copied_pickled_and_saved(is_called: bool) -> None:
    module, x = mirage_kernels.optimize(container()), tokens()
    with torch.no_grad():
        wanted = module(x) if is_called else module.forward(x)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), container()):
            other.load_state_dict(module.state_dict())
            torch.testing.assert_close(other(x), wanted, rtol=2e-2, atol=2e-2)


def test_a_report_tells_a_call_without_a_graph_from_none() -> None:
    module = mirage_kernels.optimize(Gated())
    assert "nothing was called yet" in str(mirage_kernels.report(module))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        module(tokens(), tokens())
    assert "made no graph" in str(mirage_kernels.report(module))


def test_every_recipe_of_an_op_over_rows_gives_a_pattern() -> None:
    ops = {p.op_name for p in patterns() if p.op is not None}
    assert ops >= {
        *("rms_norm_linear", "layer_norm_linear", "lora_linear", "gated_mlp", "ntrans"),
        *("rms_norm_gated_mlp", "rms_norm", "layer_norm", "act_and_mul"),
    }


def test_patterns_that_cover_most_are_tried_first() -> None:
    weights = [p.weight for p in patterns()]
    assert weights == sorted(weights, reverse=True)


LAWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "silu": (lambda x: x * torch.sigmoid(x), functional.silu),
    "its quotient": (lambda x: x / (1 + torch.exp(-x)), functional.silu),
    "gelu": (lambda x: x * (1 + torch.erf(x * 0.5**0.5)) / 2, functional.gelu),
    "a square": (lambda x: x.pow(2), lambda x: x * x),
    "a mean": (lambda x: x.sum(-1, keepdim=True) / 64, lambda x: x.mean(-1, keepdim=True)),
    "a root": (lambda x: x ** (-0.5), torch.rsqrt),
    "a difference": (lambda x: 2 * x - 1, lambda x: x * 2 + -1),
    "a cast": (lambda x: x.float().to(torch.bfloat16), lambda x: x),
    "views": (lambda x: x.view(3, 1, 64).reshape(1, 3, 64), lambda x: x),
    "PyTorch's norm on a GPU": (
        lambda x: torch.ops.aten._fused_rms_norm(x, [64], x[0], 1e-5)[0],
        lambda x: functional.rms_norm(x, (64,), x[0], 1e-5),
    ),
    "a length": (
        lambda x: (x * x).sum(-1, keepdim=True).sqrt(),
        lambda x: x.norm(dim=-1, keepdim=True),
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_programs_that_are_equal_have_one_term(law: str) -> None:
    terms, x = Terms(), tokens()
    both = []
    for program in LAWS[law]:
        given, results = function_terms(lambda x, f=program: f(x), {"x": x}, terms)
        both.append((given["x"], results[0]))
    (first, one), (second, other) = both
    assert _text(one, first) == _text(other, second)


def _text(term: object, x: object) -> str:
    """Write a term out; both programs have an x of their own."""
    if term is x:
        return "x"
    op, args, value = term.op, term.args, term.value  # type: ignore[attr-defined]
    if op == "round":
        return _text(args[0], x)
    inside = sorted(_text(a, x) for a in args)
    return f"{op}({', '.join(inside)}){value:.9g}"
