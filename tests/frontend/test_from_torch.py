"""Recipes from PyTorch functions: what is traced, what is refused, and with which words."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.recipe import Recipe, load_recipe, trace

X = torch.empty(4, 32, dtype=torch.bfloat16)


def spec_of(recipe: Recipe) -> Graph:
    """Return the spec of a recipe, compared with the function that it was traced from."""
    spec = trace(recipe, recipe.shapes[0], DType.BF16)
    require_reference(recipe, spec, DType.BF16)
    return spec


def test_extents_that_a_product_makes_equal_are_one_dim() -> None:
    def layer(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w)

    inputs = {"x": X, "w": torch.empty(16, 32, dtype=torch.bfloat16)}
    recipe = from_torch(layer, inputs, dynamic={"x": {0: "M"}})
    assert (recipe.inputs, recipe.output) == ({"x": "M K", "w": "N K"}, "M N")
    assert recipe.static_dims == ("K", "N")
    assert [n.op for n in spec_of(recipe).nodes] == ["input", "input", "contract"]


def test_parameters_of_a_module_are_inputs_with_their_names() -> None:
    recipe = from_torch(nn.Sequential(OrderedDict(up=nn.Linear(32, 8), act=nn.ReLU())), [X.float()])
    assert set(recipe.inputs.values()) == {"M K", "N K", "N"}
    assert {"up_weight", "up_bias"} < {*recipe.inputs}
    spec_of(recipe)


class Tied(nn.Module):
    """Two layers and two buffers that are one each, as an embedding and a head are."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 8, bias=False), nn.Linear(32, 8, bias=False)
        self.down.weight = self.up.weight
        self.register_buffer("scale", torch.ones(8), persistent=False)
        self.register_buffer("shift", self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.up(x)) * self.scale + self.down(x) + self.shift


def test_tied_weights_are_one_input_under_their_first_name() -> None:
    recipe = from_torch(Tied(), {"x": X.float()})
    assert {*recipe.inputs} == {"x", "up_weight", "scale"}
    spec_of(recipe)


def test_none_beside_a_result_is_no_result() -> None:
    def attended(x: Tensor) -> tuple[Tensor, None]:
        return F.silu(x), None

    recipe = from_torch(attended, {"x": X})
    assert recipe.also == {}
    spec_of(recipe)

    def nothing(x: Tensor) -> tuple[None, None]:
        return None, None

    with pytest.raises(RecipeError, match="nothing returns something else than tensors"):
        from_torch(nothing, {"x": X})


def test_neighbouring_dims_that_nothing_tells_apart_are_one() -> None:
    images = torch.empty(2, 6, 5, 3, dtype=torch.bfloat16)

    def normed(x: Tensor) -> Tensor:
        return F.instance_norm(x)

    def by_channel(x: Tensor) -> Tensor:
        return x - x.mean((1, 2), keepdim=True)

    whole = from_torch(normed, {"x": images})
    assert [*whole.shapes[0].dims.values()] == [12, 15]
    split = from_torch(by_channel, {"x": images})
    assert [*split.shapes[0].dims.values()] == [2, 30, 3]
    for recipe in (whole, split):
        spec = spec_of(recipe)
        assert len(spec.of("sum")) == {"normed": 2, "by_channel": 1}[recipe.name]


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.5),
    "mse": F.mse_loss,
    "l1": lambda x, y: F.l1_loss(x, y, reduction="sum"),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, -y),
    "kl_div": lambda x, y: F.kl_div(x, torch.relu(y), reduction="none"),
    "maxima": lambda x, y: x.amax(1) + torch.max(y, dim=1)[0] * torch.max(x) - y.amax((0, 1)),
    "minima": lambda x, y: torch.min(x, dim=0)[0] + torch.min(torch.max(x, y), y).amin(0),
    "largest of one": lambda x, y: x - y.sum(1, keepdim=True).max(1, keepdim=True)[0],
}


def test_dims_that_a_result_turns_round_stay_apart() -> None:
    recipe = from_torch(lambda x: x.t() * 2, {"x": X}, name="turned")
    assert len(recipe.static_dims) == 2
    spec_of(recipe)


TURNED = {
    "mT": lambda x: x.mT,
    "mH": lambda x: x.mH,
    "adjoint": lambda x: x.adjoint(),
    "swapaxes": lambda x: x.swapaxes(0, -1),
    "swapdims": lambda x: x.swapdims(-1, 0),
}


@pytest.mark.parametrize("name", TURNED)
def test_a_matrix_is_turned_by_any_name(name: str) -> None:
    spec_of(from_torch(lambda x, y: TURNED[name](x) * 2 + y.t(), {"x": X, "y": X}, name="turned"))


@pytest.mark.parametrize("name", LOSSES)
def test_a_composition_computes_what_pytorch_computes(name: str) -> None:
    spec_of(from_torch(lambda x, y: LOSSES[name](x, y), {"x": X, "y": X}, name="loss"))


def test_a_mean_over_a_dynamic_dim_counts_its_elements() -> None:
    def error(x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(x, y)

    inputs = {"x": X, "y": X.clone()}
    spec = spec_of(from_torch(error, inputs, dynamic={"x": {0: "M"}, "y": {0: "M"}}))
    (count,) = spec.of("mul")
    assert [n.op for n in map(spec.producers.__getitem__, count.args)] == ["size", "const"]


@pytest.mark.parametrize(
    ("shape", "over", "centred"),
    [
        ((1, 2**18), 1, True),  # by a cluster
        ((1, 2**19), 1, False),
        ((2**16, 4), 0, True),
        ((2**17, 4), 0, False),  # the first dim may be of any length
    ],
)
def test_rows_that_no_cluster_holds_are_summed_with_their_squares(
    shape: tuple[int, int], over: int, *, centred: bool
) -> None:
    def spread(x: Tensor) -> Tensor:
        return x / x.var(over, keepdim=True)

    spec = spec_of(from_torch(spread, {"x": torch.empty(shape, dtype=torch.bfloat16)}))
    (square, *_) = spec.of("square")
    assert (spec.producers[square.args[0]].op == "sub") is centred


def test_the_length_of_a_dynamic_dim_is_no_constant() -> None:
    def batch_mean(x: Tensor) -> Tensor:
        return x.sum(0) / x.shape[0]

    spec = spec_of(from_torch(batch_mean, [X], dynamic={"x": {0: "M"}}))
    assert [n.over for n in spec.of("size")] == ["M"]


REFUSED: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "an unknown operator": (lambda x: torch.cumsum(x, 0), "cumsum"),
    "dropout while training": (lambda x: F.dropout(x, 0.5), "dropout of 0.5 while training"),
    "a power of 0": (lambda x: x.pow(0), "pow with the exponent 0"),
    "a power of a tensor": (lambda x: x**x, "pow with the exponent a tensor"),
    "a cast to whole numbers": (lambda x: x.to(torch.int32).float(), "its result is of torch.int"),
    "positions of the largest": (
        lambda x: x.sum(1, keepdim=True).max(1)[1] * 1.0,
        "positions of largest",
    ),
}


def test_a_single_element_that_no_dim_has_is_refused() -> None:
    with pytest.raises(RecipeError, match="input x of f has one element, and no dim"):
        from_torch(lambda x: x.var(-1, unbiased=False), {"x": X[:1, :1]}, name="f")


def test_tensors_from_outside_are_refused_and_single_numbers_are_constants() -> None:
    known = torch.arange(32, dtype=torch.bfloat16)

    def shifted(x: Tensor) -> Tensor:
        return x * torch.tensor(2.0) + known

    with pytest.raises(RecipeError, match=r"shifted takes a tensor \[32\] that is neither an in"):
        from_torch(shifted, {"x": X})
    known = torch.tensor(3.0)
    assert [n.value for n in spec_of(from_torch(shifted, {"x": X})).of("const")] == [2.0, 3.0]


def test_a_cast_to_another_real_type_changes_nothing() -> None:
    recipe = from_torch(lambda x: torch.relu(x.to(torch.float32)).to(x.dtype), [X], name="cast")
    assert [n.op for n in spec_of(recipe).nodes] == ["input", "relu"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_is_refused_with_the_line(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(RecipeError, match=words) as raised:
        from_torch(function, {"x": X}, name="refused")
    assert "test_from_torch.py:" in str(raised.value)


def test_a_module_of_a_file_is_traced_as_kernelbench_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self, scale):\n"
        "        super().__init__()\n"
        "        self.scale = scale\n"
        "    def forward(self, x):\n"
        "        return torch.relu(x) * self.scale\n"
        "def get_inputs():\n"
        "    return [torch.empty(4, 32)]\n"
        "def get_init_inputs():\n"
        "    return [3.0]\n"
    )
    recipe = load_recipe(f"{file}:Model")
    assert recipe.name == "model"
    assert [n.op for n in spec_of(recipe).nodes] == ["input", "relu", "const", "mul"]


def test_a_class_of_a_file_does_not_train(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "class MLPBlock(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.drop = torch.nn.Dropout(0.5)\n"
        "    def forward(self, x):\n"
        "        return torch.relu(self.drop(x))\n"
        "example_inputs = [torch.empty(4, 32)]\n"
    )
    recipe = load_recipe(f"{file}:MLPBlock")
    assert recipe.name == "mlp_block"
    assert [n.op for n in spec_of(recipe).nodes] == ["input", "relu"]


def test_a_function_of_a_file_without_inputs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text("def double(x):\n    return x + x\n")
    with pytest.raises(RecipeError, match="no inputs to trace it with"):
        load_recipe(f"{file}:double")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_module_may_lie_on_any_device(device: str) -> None:
    with torch.device(device):
        module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU()).bfloat16()
    made = from_torch(module, {"input": torch.empty(8, 64, dtype=torch.bfloat16)}, name="layer")
    assert {*made.inputs} == {"input", "_0_weight", "_0_bias"}
