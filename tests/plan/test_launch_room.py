"""What a launch of the fast schedules has room for: a muGraph with more gets a general kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.recipe import load_recipe
from mirage_kernels.generator.request import Request, requests
from mirage_kernels.generator.schedules import streaming
from mirage_kernels.generator.schedules.attention import plan as attention
from mirage_kernels.generator.schedules.schedule import Subject
from mirage_kernels.generator.target import target

NAMES = [f"a{i}" for i in range(13)]
FILE = f"""
from mirage_kernels.generator.recipe import recipe, shape

@recipe(
    inputs=dict.fromkeys({NAMES!r}, "M K"),
    output="M K",
    dynamic={{"M": 64}},
    reference=None,
    shapes=(shape("a test", K=64),),
)
def long_sum({", ".join(NAMES)}):
    return {" + ".join(NAMES)}
"""


@pytest.fixture
def request_of_many(tmp_path: Path) -> Request:
    (tmp_path / "long_sum.py").write_text(FILE)
    return requests(load_recipe(f"{tmp_path}/long_sum.py"), "sm_90a", None, None)[0]


def test_more_tensors_than_a_launch_carries_need_a_general_kernel(request_of_many: Request) -> None:
    record = pipeline.generate(request_of_many, jobs=1, progress=lambda _: None).record
    assert [v.schedule for v in record.variants] == ["general"] * len(record.variants)
    with pytest.raises(PlanError, match="a launch carries 12 tensors, not 13"):
        streaming.require(Subject("long_sum", record.graph, target("sm_90a")))


def test_the_room_is_that_of_the_header() -> None:
    header = (ROOT / "csrc/launch.h").read_text()
    found = {
        struct: dict(re.findall(r"(\w+)\[(\d+)\];", body))
        for struct, body in re.findall(r"struct (\w+) \{(.*?)\n\};", header, re.DOTALL)
    }
    args, row, attending = found["LaunchArgs"], found["Kernel"], found["AttentionArgs"]
    assert {
        "tensors": int(args["inputs"]),
        "scalars": int(args["scalars"]),
        "results": int(args["outputs"]),
        "dynamic dims": int(args["dims"]),
        "static dims": int(row["dims"]),
    } == streaming.ROOM
    assert {
        "scalars": int(attending["scalars"]),
        "int32 scalars": int(attending["integers"]),
        "inputs along the depth": int(attending["vectors"]),
    } == attention.ROOM
