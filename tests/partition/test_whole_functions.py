"""What functions take and give beside tensors: dicts, constants, types, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting import (
    by_references,
    cut,
    cut_given,
    drawn,
    made,
    numbers,
    really_made,
    require_same,
    ways,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.program import partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.recipe import load_function
from mirage_kernels.program_steps import SteppedProgram


def program_of(run: Callable[..., Any], dtype: DType = DType.BF16, **given: Tensor) -> Any:
    return partitioned(Function(run, given, {}, "f"), dtype, "sm_90a", made)


def pytorch_s(run: Callable[..., Any], **given: Tensor) -> Any:
    """Run a function's program of which PyTorch computes all."""
    document = program_of(run, **{n: x.to("meta") for n, x in given.items()}).document
    return SteppedProgram([document], lambda key, tensors, into, assume: [])(**given)


def test_results_lie_in_dicts_and_lists_as_the_function_s_do() -> None:
    def run(x: Tensor) -> dict[str, Any]:
        return {"rows": [x.view(4, 24), (x.t(),)], "whole": x}

    x = drawn(8, 12)
    found = pytorch_s(run, x=x)
    assert [*found] == ["rows", "whole"]
    assert found["rows"][0].shape == (4, 24)
    assert isinstance(found["rows"], list)
    assert isinstance(found["rows"][1], tuple)
    assert found["whole"] is x


def test_a_tuple_of_one_stays_a_tuple() -> None:
    (found,) = pytorch_s(lambda x: (x,), x=drawn(8))
    assert found.shape == (8,)


def test_numbers_that_become_tensors_are_numbers_of_kernels() -> None:
    def run(x: Tensor) -> Tensor:
        return x * torch.tensor(2.0) + torch.tensor([0.5], dtype=x.dtype)

    program = cut(run, ["x"], x=(8, 96))
    assert ways(program) == [["mul, add"]]
    require_same(program, run, x=drawn(5, 96))


def test_small_tensors_from_outside_are_data_of_the_program() -> None:
    table = drawn(2, 96)

    def run(x: Tensor) -> Tensor:
        return torch.relu(x * torch.tensor([1.0, float("inf")] * 48, dtype=x.dtype) + table[1])

    program = cut(run, ["x"], x=(8, 96))
    assert [one["name"] for one in program.document["inputs"]] == ["x"]
    require_same(program, run, x=drawn(5, 96))


def test_a_large_tensor_from_outside_is_refused() -> None:
    table = torch.zeros(300, 300)
    with pytest.raises(RecipeError, match=r"takes a tensor \[300, 300\] that is neither an input"):
        program_of(lambda x: x + table, x=torch.empty(300))


def indexed_by_values(x: Tensor) -> Tensor:
    return x[x > 0] * 2


def test_extents_that_values_say_are_refused_with_their_line() -> None:
    with pytest.raises(
        RecipeError, match=r"test_whole_functions.py:\d+: return x\[x > 0\] \* 2: ext"
    ):
        program_of(indexed_by_values, x=torch.empty(8, 96))


def branching(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def test_what_torch_export_refuses_is_one_line_with_its_place() -> None:
    with pytest.raises(RecipeError, match=r"branching at .*py:\d+: return x \* 2 if") as refused:
        program_of(branching, x=torch.empty(8, 96))
    assert "\n" not in refused.value.sentence


def test_products_of_several_types_are_refused() -> None:
    layer = nn.Linear(96, 80)
    with pytest.raises(
        RecipeError, match=r"multiplies tensors of torch.bfloat16 and torch.float32"
    ):
        program_of(layer, input=torch.empty(8, 96, dtype=torch.bfloat16))


def test_a_module_of_16_bits_is_generated_in_either_type() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(96, 80)
            self.register_buffer("scale", torch.ones(80, dtype=torch.float32))

        def forward(self, x: Tensor) -> Tensor:
            return F.silu(self.linear(x)) * self.scale

    layer = Layer().bfloat16()
    layer.scale = layer.scale.float()
    x = torch.empty(8, 96, dtype=torch.bfloat16)
    types = {i["name"]: i["dtype"] for i in program_of(layer, DType.FP16, x=x).document["inputs"]}
    assert types["linear_weight"] == types["x"] == "float16"
    assert types["scale"] == "float32"
    assert layer.linear.weight.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("given", "dynamic", "said"),
    [
        ({"x": torch.empty(8), "n": [2.0]}, {}, "the example of f's n is of list, no tensor"),
        ({"x": torch.empty(8)}, {"y": {0: "M"}}, "names y, which the examples of f do not have"),
        ({"x": torch.empty(8)}, {"x": {1: "M"}}, "names dim 1 of x, which the examples of f do"),
        ({"x": torch.empty(8)}, {"x": {0: "my rows"}}, "names a dim of f's x 'my rows', which"),
        ({"x": torch.empty(8)}, {"x": {0: "float"}}, "names a dim of f's x 'float', which"),
        ({"x": torch.empty(8).double()}, {}, "all tensors of the function are of torch.float64"),
        ({"x": torch.empty(8)}, {"x": [0]}, r"`dynamic` has \[0\] for f's x"),
        ({"x": torch.empty(8)}, {"x": {"0": "M"}}, "`dynamic` has {'0': 'M'} for f's x"),
        ({"x": torch.empty(8)}, 3, "`dynamic` of f has the type int"),
        ({"x": torch.empty(8)}, [{}, {}, {}], "f takes 2 inputs, not the 3 of `dynamic`"),
        (torch.empty(8), None, "`example_inputs` of f has the type Tensor"),
    ],
)
def test_examples_that_are_no_tensors_and_dims_of_none_are_named(
    given: Any, dynamic: Any, said: str
) -> None:
    def f(x: Tensor, n: float = 1.0) -> Tensor:
        return torch.relu(x) * n

    with pytest.raises(RecipeError, match=said):
        partitioned(Function(f, given, dynamic, "f"), DType.BF16, "sm_90a", made)


def test_a_function_that_is_written_in_c_is_to_be_wrapped() -> None:
    with pytest.raises(RecipeError, match="whose inputs have no names") as error:
        partitioned(Function(torch.relu, [torch.empty(8)], {}, "f"), DType.BF16, "sm_90a", made)
    assert "return relu(x)" in str(error.value.hint)


def test_a_file_finds_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_whole_functions.py").write_text("def twice(x): return x * 2\n")
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom beside_whole_functions import twice\nexample_inputs = torch.empty(8)\n"
    )
    function = load_function(f"{tmp_path}/mine.py:twice")
    assert function is not None
    assert ways(partitioned(function, DType.BF16, "sm_90a", made)) == [["mul"]]


def test_a_class_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Layer(torch.nn.Module):\n    def __init__(self, n): pass\n"
        "example_inputs = torch.empty(8)\n"
    )
    with pytest.raises(RecipeError, match=r"mine.py, Layer: TypeError: .* missing 1 required"):
        load_function(f"{tmp_path}/mine.py:Layer")


def test_what_no_grad_and_a_disabled_autocast_enclose_is_the_function_s() -> None:
    @torch.no_grad()
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", enabled=False):
            y = x.detach() * 2
            with torch.enable_grad():
                return y.exp(), y + 1

    program = cut(run, ["x"], x=(8, 96))
    assert ways(program) == [["mul, exp, add"]]
    require_same(program, run, x=drawn(5, 96))


def test_autocast_that_casts_is_refused() -> None:
    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.t()

    with pytest.raises(RecipeError, match=r"under autocast to torch.bfloat16"):
        cut(run, [], x=(8, 96))


def test_inputs_may_have_names_that_emitted_files_need() -> None:
    def run(out: Tensor, result: Tensor) -> Tensor:
        return out * result

    program = cut(run, ["out"], out=(8, 96), result=(96,))
    assert ways(program) == [["mul"]]
    require_same(program, run, out=drawn(5, 96), result=drawn(96))


@pytest.mark.parametrize("dim", ["x", "w", "matmul"])
def test_dims_may_have_the_names_of_tensors(dim: str) -> None:
    def run(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(torch.relu(x) @ w.T, -1).sum(0)

    examples = {"x": torch.empty(8, 96), "w": torch.empty(80, 96)}
    function = Function(run, examples, {"x": {0: dim}}, "f")
    program = partitioned(function, DType.BF16, "sm_90a", made)
    assert not program.reasons
    require_same(program, run, x=drawn(5, 96), w=drawn(80, 96))


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.D = nn.Parameter(drawn(4))

    def forward(self, x: Tensor) -> Tensor:
        return (self.D[:, None] * x).tanh()


def test_parameters_may_have_the_names_of_dims() -> None:
    module = Skip()
    x = drawn(2, 4, 32)
    function = Function(module, {"x": x}, {}, "f")
    program = partitioned(function, DType.BF16, "sm_90a", really_made)
    assert ways(program) == [["mul, tanh"]]
    assert [i["name"] for i in program.document["inputs"]] == ["x", "D_"]  # parameters come last
    found = by_references(program, {"x": x, "D": module.D.data})
    torch.testing.assert_close(found, module(x), atol=0.02, rtol=0.02)


class Tied(nn.Module):
    """Two layers with one weight, one layer under two names, and two buffers that are one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(96, 96, bias=False), nn.Linear(96, 96, bias=False)
        self.b.weight = self.a.weight
        self.c = self.a
        self.register_buffer("scale", torch.ones(96))
        self.register_buffer("shift", self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(x)) * self.scale) + self.a(x) + self.shift


def test_tied_weights_are_one_input_under_their_first_name() -> None:
    module = Tied().bfloat16()  # which makes two of one buffer
    module.shift = module.scale
    program = program_of(module, x=torch.empty(8, 96, dtype=torch.bfloat16))
    assert {i["name"] for i in program.document["inputs"]} == {"a_weight", "scale", "x"}
    own = {n: x.data for n, x in (*module.named_parameters(), *module.named_buffers())}
    given = {"x": drawn(8, 96), "a_weight": own["a.weight"], "scale": own["scale"]}
    torch.testing.assert_close(
        by_references(program, given), module(given["x"]).data, atol=0.02, rtol=0.02
    )


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_recurrent_layers_have_no_form() -> None:
    layer = nn.GRU(96, 96).bfloat16()
    program = program_of(layer, input=torch.empty(4, 8, 96, dtype=torch.bfloat16))
    assert "  PyTorch: gru: kernels cannot be made of it" in [*program.lines()]


def test_float64_beside_other_types_stays() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(96, 80)
            self.register_buffer("scale", torch.ones(80, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return F.silu(self.linear(x)) * self.scale

    inputs = program_of(Layer(), x=torch.empty(8, 96)).document["inputs"]
    types = {i["name"]: i["dtype"] for i in inputs}
    assert (types["linear_weight"], types["scale"]) == ("bfloat16", "float64")


def test_powers_have_forms() -> None:
    def run(x: Tensor) -> Tensor:
        return x**1.5 + x**4 + x**-2 + 0.5**x

    program = cut(run, ["x"], x=(8, 96))
    assert ways(program) == [["pow, pow, add, pow, add, pow, add"]]
    require_same(program, run, x=drawn(5, 96).abs() + 1)


class Masked(nn.Module):
    """A layer of transformers' kind: what is no tensor has no default."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 48, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None, scale: float, *, is_twice: bool) -> Tensor:
        y = self.up(x) * scale
        y = y if mask is None else y + mask
        return y * 2.0 if is_twice else y


def test_examples_that_are_plain_values_are_constants() -> None:
    module = Masked().to(torch.bfloat16)
    constants = {"mask": None, "scale": 0.5, "is_twice": True}
    given = {"x": drawn(3, 32), "up_weight": module.up.weight.data}
    examples = {"x": torch.empty(2, 32, dtype=torch.bfloat16), **constants}
    program = partitioned(Function(module, examples, {"x": {0: "M"}}), DType.BF16, "sm_90a", made)
    assert {i["name"] for i in program.document["inputs"]} == {*given}
    (found, wanted) = by_references(program, given), module(given["x"], **constants)
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)
    assert "forward" not in vars(module)


def test_a_recipe_takes_plain_values_as_constants() -> None:
    def shifted(x: Tensor, by: float | None, times: int) -> Tensor:
        return (x if by is None else x + by) * times

    recipe = from_torch(shifted, [torch.empty(4, 32), None, 3], dynamic={"x": {0: "M"}})
    assert (recipe.name, [*recipe.inputs]) == ("shifted", ["x"])


def test_functions_of_numbers_are_numbers() -> None:
    def halved(x: Tensor, y: Tensor) -> Tensor:
        return (x + y) / torch.sqrt(torch.tensor(2.0) * 3)

    program = cut(halved, ["x", "y"], x=(5, 96), y=(5, 96))
    assert ways(program)[0] == ["add, div"]
    require_same(program, halved, x=drawn(5, 96), y=drawn(5, 96))


def test_a_mask_of_whole_numbers_is_expanded_and_cast_in_the_kernel() -> None:
    def pooled(x: Tensor, mask: Tensor) -> Tensor:
        weights = mask.unsqueeze(-1).expand(x.size()).float()
        return torch.sum(x * weights, 1) / torch.clamp(weights.sum(1), min=1e-9)

    given = {"x": drawn(3, 8, 32), "mask": numbers(3, 8, below=24) % 2}
    program = cut_given(pooled, given, ["x", "mask"])
    assert ways(program)[0] == ["mul, sum, sum, clamp, div"]
    require_same(program, pooled, **given)


def test_what_is_expanded_is_cast_before() -> None:
    def scaled(x: Tensor, scale: Tensor) -> Tensor:
        return torch.sum(x * scale.unsqueeze(-1).expand(x.size()).float(), 1)

    given = {"x": drawn(3, 8, 32), "scale": numbers(3, 8, below=24).to(torch.int16)}
    program = cut_given(scaled, given, ["x", "scale"])
    assert ways(program)[0] == ["[to]", "mul, sum"]
    (cast,) = (s for s in program.ways[0].steps if s.get("call", "").startswith("aten.to"))
    assert cast["args"][0]["value"] == "unsqueeze"
    require_same(program, scaled, **given)


def test_a_linear_of_one_row_of_weights_is_a_product() -> None:
    def scored(x: Tensor, w: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(x, w))

    program = cut(scored, ["x"], really_made, x=(5, 96), w=(96,))
    assert not program.trace.refused
    require_same(program, scored, x=drawn(5, 96), w=drawn(96))
