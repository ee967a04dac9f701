"""Recipes from PyTorch functions: what they compute, how dims are named, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.recipe import Recipe, load_recipe, trace
from torch import Tensor, nn
from torch.nn import functional

M, K, N = 5, 16, 24
X, W, B = (torch.empty(*shape, device="meta") for shape in ((M, K), (N, K), (N,)))
ROWS = {"x": {0: "M"}}


def checked(recipe: Recipe) -> None:
    """Trace a recipe and compare that with its function in float64."""
    require_reference(recipe, trace(recipe, recipe.shapes[0], DType.BF16), DType.BF16)


def activated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return activation(functional.linear(x, w, b))

    return layer


@pytest.mark.parametrize(
    "activation",
    [
        *(torch.relu, torch.sigmoid, torch.tanh, torch.abs, torch.exp, torch.square),
        *(functional.silu, functional.gelu, functional.mish, functional.softplus, functional.elu),
        *(functional.selu, functional.leaky_relu, functional.hardtanh, functional.hardswish),
        *(functional.softsign, functional.logsigmoid, functional.relu6, functional.hardsigmoid),
        lambda x: torch.clamp(x, -0.5, 0.25),
        lambda x: torch.logsumexp(x, dim=1, keepdim=True),
        lambda x: torch.softmax(x, dim=-1),
        lambda x: torch.log_softmax(x, dim=1),
        lambda x: functional.group_norm(x, 4),
        lambda x: functional.layer_norm(x, (N,)),
        lambda x: 2 - x.mean(dim=1) ** 2,
        lambda x: x / torch.linalg.vector_norm(x, dim=1, keepdim=True),
        lambda x: x.view(-1, 3, 8).transpose(1, 2).sum(-1),
    ],
)
def test_operators_mean_what_pytorch_means(activation: Callable[[Tensor], Tensor]) -> None:
    checked(from_torch(activated(activation), {"x": X, "w": W, "b": B}, dynamic=ROWS))


def test_dims_are_shared_where_products_meet_and_dynamic_where_named() -> None:
    recipe = from_torch(activated(torch.relu), {"x": X, "w": W, "b": B}, dynamic=ROWS, name="mine")
    assert recipe.name == "mine"
    assert dict(recipe.inputs) == {"x": "M K", "w": "N K", "b": "N"}
    assert recipe.output == "M N"
    assert (*recipe.dynamic,) == ("M",)
    assert dict(recipe.shapes[0].dims) == {"K": K, "N": N}


def test_attention_of_einsums_is_a_recipe() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhd,blhd->bhl", q, k) * 0.25
        return torch.einsum("bhl,blhd->bhd", scores.softmax(-1), v)

    shapes = {"q": (3, 2, 8), "k": (3, 7, 2, 8), "v": (3, 7, 2, 8)}
    checked(from_torch(attention, {n: torch.empty(s) for n, s in shapes.items()}))


class Layer(nn.Module):
    """A norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(K), nn.Linear(K, N)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.norm(x))


def test_parameters_of_a_module_are_inputs() -> None:
    recipe = from_torch(Layer(), {"x": X}, dynamic=ROWS)
    assert recipe.name == "layer"
    assert [*recipe.inputs] == ["x", "norm_weight", "norm_bias", "up_weight", "up_bias"]
    checked(recipe)


def test_an_operator_without_a_form_is_named_with_its_line() -> None:
    def scan(x: Tensor) -> Tensor:
        return torch.cumsum(x, 1)

    with pytest.raises(RecipeError, match=r"aten.cumsum.* at test_from_torch.py:\d+: return torch"):
        from_torch(scan, {"x": X})


def test_an_extent_in_a_constant_cannot_be_dynamic() -> None:
    def mean_of_rows(x: Tensor) -> Tensor:
        return x.sum(0) / x.shape[0]

    with pytest.raises(RecipeError, match="something else when a dynamic dim has another extent"):
        from_torch(mean_of_rows, {"x": X}, dynamic=ROWS)


def test_a_file_names_a_function_and_its_inputs(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def doubled(x): return torch.relu(x) * 2\n"
        "example_inputs = {'x': torch.empty(4, 8)}\n"
        "dynamic = {'x': {0: 'M'}}\n"
    )
    recipe = load_recipe(f"{tmp_path}/mine.py:doubled")
    assert recipe.output == "M D"
    checked(recipe)
