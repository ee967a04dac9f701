"""Which kernels of a program read their weights early: what is decided, how each is launched."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import mirage_kernels
from mirage_kernels.assumptions import NOTHING, WEIGHTS
from mirage_kernels.early_weights import Early, first_kernels
from mirage_kernels.program_library import ProgramKernel
from mirage_kernels.program_steps import SteppedProgram

N = 4
WAITING = {"lets_next_start": "after_wait"}
ROWS = [{"extent": "M", "times": 1}, N]
Step = dict[str, Any]


def kernel(name: str, result: str, x: str, *weights: str, into: str = "") -> Step:
    """A step of a kernel of rows and of weights; it may write its result over an input."""
    given = [{"value": x, "shape": ROWS, "one": False}]
    given += [{"value": w, "shape": [N, N], "one": False} for w in weights]
    made: Step = {"value": result, "shape": ROWS, "dtype": "float32"}
    place = {"into": {"value": into, "shape": ROWS, "as": ROWS}} if into else {}
    return {"kernel": name, "inputs": given, "results": [made | place], "last": []}


def called(op: str, result: str, *args: str) -> Step:
    """A step that PyTorch runs."""
    values = [{"value": name} for name in args]
    return {"call": op, "args": values, "named": {}, "result": result, "last": []}


def document(*steps: Step, inputs: Mapping[str, Sequence[Any]] | None = None) -> dict[str, Any]:
    """A program that takes x, and weights w and v, and returns y."""
    shapes: Mapping[str, Sequence[Any]] = inputs or {"x": ROWS, "w": [N, N], "v": [N, N]}
    given = [{"name": n, "shape": shape, "dtype": "float32"} for n, shape in shapes.items()]
    ways = [{"most": {}, "steps": list(steps)}]
    about = {"name": "f", "arch": "sm_90a", "inputs": given, "constants": []}
    return json.loads(json.dumps(about | {"ways": ways, "returns": {"value": "y"}}))


def assumed(
    program: Mapping[str, Any], *waiting: str, m: int = 3, **given: Tensor
) -> dict[str, int]:
    """Run a program of pretended kernels, and return what each assumes.

    Those that are `waiting` let the next kernel start after their wait.
    """
    found: dict[str, int] = {}

    def run(
        key: str, tensors: Sequence[Tensor], into: Sequence[Tensor | None], assume: int
    ) -> Sequence[Tensor]:
        found[key.partition("/")[2]] = assume
        return [torch.ones(m, N) if into[0] is None else into[0].fill_(1)]

    stepped = SteppedProgram([program], run, lambda key: key.partition("/")[2] in waiting)
    drawn = {i["name"]: torch.ones(m if i["name"] in "xs" else N, N) for i in program["inputs"]}
    stepped(**{**drawn, **given})
    return found


CHAIN = document(
    kernel("a", "h", "x", "w"), kernel("b", "g", "h", "v"), kernel("c", "y", "g", "w", "v")
)


@pytest.mark.parametrize(
    ("waiting", "early"), [("", ""), ("a", "bc"), ("b", "c"), ("c", ""), ("ab", "bc")]
)
def test_weights_are_read_early_behind_a_kernel_that_waits_first(waiting: str, early: str) -> None:
    found = assumed(CHAIN, *waiting)
    assert {name for name, assume in found.items() if assume == WEIGHTS} == {*early}
    assert {name for name, assume in found.items() if assume == NOTHING} == {*"abc"} - {*early}


def test_a_promise_is_kept_from_the_first_kernel_on() -> None:
    with mirage_kernels.constant_weights():
        assert {*assumed(CHAIN).values()} == {WEIGHTS}


def test_each_call_begins_without_an_assumption() -> None:
    found: list[int] = []

    def run(
        key: str, tensors: Sequence[Tensor], into: Sequence[Tensor | None], assume: int
    ) -> Sequence[Tensor]:
        found.append(assume)
        return [torch.ones(3, N)]

    stepped = SteppedProgram([CHAIN], run, lambda key: True)
    for _ in range(2):
        stepped(torch.ones(3, N), torch.ones(N, N), torch.ones(N, N))
    assert found == [NOTHING, WEIGHTS, WEIGHTS] * 2


@pytest.mark.parametrize("op", ["aten.mm.default", "aten.clone.default", "aten.t.default"])
def test_what_pytorch_runs_does_not_count(op: str) -> None:
    args = ("x", "w") if "mm" in op else ("w",)
    program = document(
        called(op, "t", *args), kernel("a", "h", "x", "w"), kernel("b", "y", "h", "v")
    )
    assert assumed(program) == {"a": NOTHING, "b": NOTHING}
    assert assumed(program, "a") == {"a": NOTHING, "b": WEIGHTS}


def test_a_weight_that_an_earlier_step_made_is_not_read_early() -> None:
    program = document(
        kernel("a", "h", "x", "w"),
        called("aten.relu.default", "r", "v"),
        kernel("b", "y", "h", "r"),
    )
    assert assumed(program, "a") == {"a": NOTHING, "b": NOTHING}


def test_a_product_of_two_computed_tensors_is_not_read_early() -> None:
    square: Step = kernel("b", "r", "v", "w")
    square["inputs"][0]["shape"] = square["results"][0]["shape"] = [N, N]
    program = document(kernel("a", "h", "x", "w"), square, kernel("c", "y", "h", "r"))
    early = Early.of(program, program["ways"][0])
    assert early.steps == {0, 1}
    assert "r" not in early.weights


@pytest.mark.parametrize("op", ["aten.mul_.Tensor", "aten.copy_.default"])
def test_a_weight_that_the_program_writes_is_not_read_early(op: str) -> None:
    program = document(
        kernel("a", "h", "x", "w"), called(op, "r", "v", "w"), kernel("b", "y", "h", "v")
    )
    assert assumed(program, "a") == {"a": NOTHING, "b": NOTHING}


def test_running_statistics_are_written() -> None:
    norm = called("aten.batch_norm.default", "n", "x", "w", "w", "v", "v")
    program = document(norm, kernel("a", "y", "x", "v"))
    assert Early.of(program, program["ways"][0]).written == {"x", "w", "v"}


WRITING = document(
    kernel("a", "h", "x", "w", into="s"),
    kernel("b", "y", "x", "v"),
    inputs={"x": ROWS, "s": ROWS, "w": [N, N], "v": [N, N]},
)


def test_weights_beside_what_the_program_writes_are_read_early() -> None:
    memory = torch.ones(3 + N, N)
    assert assumed(WRITING, "a", s=memory[:3], v=memory[3:])["b"] == WEIGHTS


def test_a_weight_in_the_memory_of_what_the_program_writes_is_not_read_early() -> None:
    memory = torch.ones(3 + N, N)
    assert assumed(WRITING, "a", s=memory[:3], v=memory[2 : 2 + N])["b"] == NOTHING


def test_a_kernel_without_rows_does_not_count() -> None:
    assert {*assumed(CHAIN, *"abc", m=0).values()} == {NOTHING}


def test_tensors_on_several_devices_do_not_count() -> None:
    given = {"x": torch.ones(3, N), "w": torch.ones(N, N, device="meta")}
    assert not Early.of(CHAIN, CHAIN["ways"][0]).can_settle(given, {"M": 3})


@pytest.mark.parametrize("promised", [False, True])
def test_a_weight_that_is_copied_first_is_not_read_early(promised: bool) -> None:
    flat = kernel("b", "y", "h", "v")
    flat["inputs"][1]["shape"] = [N * N]
    program = document(kernel("a", "h", "x", "w"), flat)
    with mirage_kernels.constant_weights(promised):
        assert assumed(program, "a")["b"] == WEIGHTS
        assert assumed(program, "a", v=torch.ones(N, N).t())["b"] == NOTHING


def test_a_traced_program_assumes_what_is_promised_alone() -> None:
    """What is put between its steps, its trace does not say."""
    found: list[int] = []

    def run(
        key: str, tensors: Sequence[Tensor], into: Sequence[Tensor | None], assume: int
    ) -> Sequence[Tensor]:
        found.append(assume)
        return [tensors[0] + 1]

    stepped = SteppedProgram([CHAIN], run, lambda key: True)
    given = torch.ones(3, N), torch.ones(N, N), torch.ones(N, N)
    torch.compile(stepped, backend="eager", fullgraph=True)(*given)
    assert found == [NOTHING] * 3


def test_fake_tensors_are_a_trace_s() -> None:
    with FakeTensorMode():
        assert assumed(WRITING, "a")["b"] == NOTHING


def test_a_module_s_parameters_are_weights() -> None:
    given = {name: torch.nn.Parameter(torch.ones(N, N)) for name in "wv"}
    with torch.no_grad():
        assert assumed(CHAIN, "a", **given)["b"] == WEIGHTS


# -- which function of a kernel's shared object is called -----------------------------------------

SIGNATURE = {
    "name": "k",
    "layout": "rows",
    "static": {"N": 8, "K": 8},
    "dynamic": ["M"],
    "tensors": [
        {"name": "x", "dtype": "bf16", "dims": ["M", "K"]},
        {"name": "w", "dtype": "bf16", "dims": ["N", "K"]},
    ],
    "results": [{"name": "out", "dims": ["M", "N"]}],
}


def launched(monkeypatch: pytest.MonkeyPatch, w: Tensor, assume: int, early: bool = True) -> str:
    """Run a kernel whose functions only note that they were called."""
    called_: list[str] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    functions = {name: lambda *args, n=name: called_.append(n) for name in ("plain", "early")}
    at_once = functions["early"] if early else None
    own = ProgramKernel("k", SIGNATURE, functions["plain"], lambda dims: 8, at_once)
    own.run([torch.ones(3, 8), w], [], [torch.empty(3, 8)], assume)
    (name,) = called_
    return name


def test_the_early_function_is_called_where_something_is_assumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = torch.ones(8, 8)
    assert launched(monkeypatch, w, NOTHING) == "plain"
    assert launched(monkeypatch, w, WEIGHTS) == "early"
    assert launched(monkeypatch, w, WEIGHTS, early=False) == "plain"


def test_a_weight_that_a_launch_copies_is_not_read_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(monkeypatch, torch.ones(8, 8).t(), WEIGHTS) == "plain"


@pytest.mark.parametrize("said", [{}, {"lets_next_start": "at_once"}])
def test_a_kernel_that_does_not_say_so_does_not_wait_first(said: dict[str, str]) -> None:
    kernels = [ProgramKernel("k", SIGNATURE | about, None, None) for about in (said, WAITING)]
    assert [own.waits_first for own in kernels] == [False, True]


# -- which kernels are compiled so that they let the next one start after their wait ---------------


def firsts(*steps: Step, general: str = "") -> set[str]:
    found = first_kernels(document(*steps), {f"sm_90a/{name}" for name in general})
    return {key.removeprefix("sm_90a/") for key in found}


def test_a_program_s_first_kernel_waits_first() -> None:
    steps = CHAIN["ways"][0]["steps"]
    assert firsts(*steps) == {"a"}
    assert firsts(called("aten.mm.default", "t", "x", "w"), *steps) == {"a"}


def test_a_general_kernel_waits_first_anyhow() -> None:
    assert firsts(*CHAIN["ways"][0]["steps"], general="a") == set()


def test_a_first_kernel_starts_the_next_at_once_where_no_weights_come_before_a_general_one() -> (
    None
):
    plain = kernel("b", "g", "h")
    steps = kernel("a", "h", "x", "w"), plain, kernel("c", "y", "g", "w")
    assert firsts(*steps) == {"a"}
    assert firsts(*steps, general="b") == set()
    assert firsts(*steps, general="c") == set()
    assert firsts(steps[0]) == set()


def test_every_way_has_a_first_kernel() -> None:
    program = document(*CHAIN["ways"][0]["steps"])
    others = [kernel("d", "h", "x"), kernel("b", "y", "h", "v")]
    program["ways"].append({"most": {}, "steps": others})
    assert [*first_kernels(program, set())] == ["sm_90a/a", "sm_90a/d"]
