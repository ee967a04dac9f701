"""What each verb prints and does when all is well."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_kernels.generator.build.selection import kernel_name
from mirage_kernels.generator.cli import VERBS
from mirage_kernels.generator.commands import doctor, prove
from mirage_kernels.generator.commands.arguments import package_kernels
from mirage_kernels.generator.commands.extension import Loaded
from mirage_kernels.generator.plan.layout_planner import require_layouts
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.records.check import Difference
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord

KERNEL = "rms_norm_linear/K4096_N6144_fp16"
FORMS = ("cluster_split_k.cuh", "sliced_k.cuh", "triton.py")
FILES = [
    *(f"forms/rms_norm_linear/{name}" for name in FORMS),
    *(f"sm_90a/{KERNEL}{ending}" for ending in (".cu", ".json")),
]
MY_RECIPE = '''
from mirage_kernels.generator.language import contract, gelu
from mirage_kernels.generator.recipe import recipe, shape

print("a recipe file that prints")

@recipe(
    inputs={"x": "M K", "weight": "N K"},
    output="M N",
    dynamic={"M": 64},
    reference=None,
    shapes=(shape("my model", K=32, N=48),),
)
def my_recipe(x, weight):
    """gelu(linear(x, weight))."""
    return gelu(contract(x, weight, over="K"))
'''


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def my_recipe(workplace: Path) -> str:
    (workplace / "mine").mkdir()
    (workplace / "mine" / "my_recipe.py").write_text(MY_RECIPE)
    return "mine/my_recipe.py"


@pytest.fixture
def kernels(without_search: None, mirage_kernels, workplace: Path) -> Path:
    words = ("--shape", "K=4096,N=6144", "--dtype", "fp16", "--out", "kernels")
    assert mirage_kernels("generate", "rms_norm_linear", *words).code == 0
    return workplace / "kernels"


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_without_a_verb_there_is_help(mirage_kernels, words: tuple[str, ...]) -> None:
    outcome = mirage_kernels(*words)
    assert outcome.code == 0
    for verb, summary in VERBS.items():
        assert re.search(rf"{verb} +{re.escape(summary)}", outcome.out)


def test_version(mirage_kernels) -> None:
    assert re.fullmatch(r"mirage-kernels \d+\.\d+\.\d+\n", mirage_kernels("--version").out)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_json(mirage_kernels, verb: str) -> None:
    outcome = mirage_kernels(verb, "--help")
    assert outcome.code == 0
    assert f"usage: mirage-kernels {verb}" in outcome.out
    assert "--json" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100


def test_generate_writes_the_kernel_and_its_table(kernels: Path) -> None:
    assert files_below(kernels) == [*FILES, "sm_90a/table.cpp"]


def test_generate_reports_the_search(mirage_kernels, without_search, workplace) -> None:
    words = ("generate", "rms_norm_linear", "--shape", "K=4096,N=6144", "--dtype", "fp16")
    outcome = mirage_kernels(*words, "--out", ".")
    assert outcome.code == 0
    assert "searched 23,747 states" in outcome.out
    assert "55 candidates: 7 proved, 3 rejected" in outcome.out
    assert "also proved: 14.80 us  one kernel" in outcome.out
    assert outcome.out.count("19.20") == outcome.out.count("19.20 us  two kernels; 2 of these") == 1
    assert "6 files in .\nnext: mirage-kernels compile .\n" in outcome.out
    assert "search" in outcome.err
    assert "\x1b" not in outcome.out + outcome.err
    document = _json(mirage_kernels(*words, "--out", ".", "--json"))
    assert document["kernels"][0]["report"]["states"] == 23_747
    assert sorted(document["written"]) == [*FILES, "sm_90a/table.cpp"]


def test_generate_takes_every_shape_and_dtype_of_the_catalog(mirage_kernels, workplace) -> None:
    outcome = mirage_kernels("generate", "rms_norm_linear", "--dry-run", "--json", "--out", ".")
    chosen = {(k["shape"]["K"], k["shape"]["N"], k["dtype"]) for k in _json(outcome)["kernels"]}
    shapes = catalog()["rms_norm_linear"].shapes
    assert chosen == {(*s.dims.values(), dtype) for s in shapes for dtype in ("fp16", "bf16")}
    assert (8192, 10240, "bf16") in chosen
    assert files_below(workplace) == []


def test_recipe_file_goes_to_a_folder_beside_it(mirage_kernels, my_recipe, workplace) -> None:
    document = _json(mirage_kernels("generate", my_recipe, "--dry-run", "--json"))
    assert document["folder"] == "mine/kernels"
    assert [k["shape"] for k in document["kernels"]] == [{"K": 32, "N": 48}] * 2
    assert files_below(workplace) == ["mine/my_recipe.py"]


def test_recipe_file_is_searched_proved_and_written(mirage_kernels, my_recipe, workplace) -> None:
    outcome = mirage_kernels("generate", my_recipe, "--shape", "K=64,N=48", "--dtype", "bf16")
    assert outcome.code == 0, outcome.err
    assert re.search(r"[1-9]\d* candidates: [1-9]\d* proved", outcome.out)
    stem = "sm_90a/my_recipe/K64_N48_bf16"
    forms = [f"forms/my_recipe/{name}" for name in ("sliced_k.cuh", "triton.py")]
    written = [*forms, f"{stem}.cu", f"{stem}.json", "sm_90a/table.cpp"]
    assert files_below(workplace / "mine" / "kernels") == written
    assert "contract" in mirage_kernels("show", f"mine/kernels/{stem}.json").out


def test_without_pulp_generate_says_what_to_install(
    mirage_kernels, my_recipe, workplace, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "pulp", None)
    require_layouts.cache_clear()
    outcome = mirage_kernels("generate", my_recipe, "--shape", "K=64,N=48", "--dtype", "bf16")
    assert outcome.code == 2
    assert "needs PuLP" in outcome.err
    assert "pip install 'mirage-kernels[generate]'" in outcome.err
    assert files_below(workplace) == ["mine/my_recipe.py"]


def test_list_names_recipes_and_kernels(mirage_kernels, kernels: Path) -> None:
    outcome = mirage_kernels("list", "--kernels", str(kernels))
    assert outcome.code == 0
    assert re.search(r"gated_mlp +K=4096,N=14336 +Llama-3-8B, TP 1", outcome.out)
    assert re.search(rf"{KERNEL} +sm_90a +M <= .*any +[-0-9]+ +(yes|no)", outcome.out)
    document = _json(mirage_kernels("list", "--json", "--kernels", str(kernels)))
    assert {"gated_mlp", "gqa", "rms_norm_linear"} <= {r["name"] for r in document["recipes"]}
    (kernel,) = document["kernels"]
    assert (kernel["name"], kernel["buckets"][-1]) == (KERNEL, 0)
    assert isinstance(kernel["compiled"], bool)
    assert "kernels" not in _json(mirage_kernels("list", "--recipes", "--json"))


def test_show_recipe(mirage_kernels, kernels: Path) -> None:
    outcome = mirage_kernels("show", "rms_norm_linear", "--kernels", str(kernels))
    assert outcome.code == 0
    assert "static dims K, N; at run time M <= 4096" in outcome.out
    assert "contract(" in outcome.out
    assert KERNEL in outcome.out


def test_show_recipe_file(mirage_kernels, my_recipe) -> None:
    outcome = mirage_kernels("show", my_recipe, "--json")
    assert _json(outcome)["recipe"]["name"] == "my_recipe"
    assert "a recipe file that prints" in outcome.err


@pytest.mark.parametrize("name", [KERNEL, f"sm_90a/{KERNEL}", f"kernels/sm_90a/{KERNEL}.json"])
def test_show_kernel_by_name_or_file(mirage_kernels, kernels: Path, name: str) -> None:
    outcome = mirage_kernels("show", name, "--kernels", "kernels")
    assert outcome.code == 0
    assert "in the loop:" in outcome.out
    assert "fmap=K" in outcome.out
    assert re.search(r"Proved equal to the recipe on \d+ random draws .* 2\^-\d+", outcome.out)
    assert re.search(r"any M +.*K by \d+.*stages \d+", outcome.out)
    assert f"Emitted: forms/rms_norm_linear: {', '.join(FORMS)}\n" in outcome.out
    assert "Emitted: sm_90a/rms_norm_linear: K4096_N6144_fp16.cu\n" in outcome.out


def test_show_kernel_json_is_its_record(mirage_kernels, kernels, record: KernelRecord) -> None:
    document = _json(mirage_kernels("show", KERNEL, "--kernels", "kernels", "--json"))
    assert document["record"] == json.loads(record.text())
    assert document["sources"] == [name for name in FILES if not name.endswith(".json")]


def test_check_prints_the_diff_and_fails(mirage_kernels, kernels, monkeypatch) -> None:
    found = Difference("sm_90a/x.cu", "the file is not what the generator makes", "-a\n+b\n")
    check = ("check", "--kernels", str(kernels))
    monkeypatch.setattr(prove, "differences_in", lambda folder, **_: [found])
    outcome = mirage_kernels(*check)
    assert outcome.code == 1
    assert "sm_90a/x.cu: the file is not what the generator makes\n-a\n+b\n" in outcome.out
    assert _json(mirage_kernels(*check, "--json"), code=1)["differences"] == [vars(found)]
    monkeypatch.setattr(prove, "differences_in", lambda folder, **_: [])
    assert mirage_kernels(*check).out.startswith("1 kernel:")


def test_doctor_finds_what_is_here(mirage_kernels) -> None:
    import torch

    document = _json(mirage_kernels("doctor", "--json"), code=None)
    found = {finding["what"]: finding for finding in document["findings"]}
    looked_for = {"Python", "torch", "extension", "GPU", "nvcc", "triton", "pulp", "kernels"}
    assert looked_for <= set(found)
    assert torch.__version__ in found["torch"]["found"]
    assert all(f["status"] == "ok" or f["hint"] for f in found.values())


@pytest.fixture
def doctor_says(mirage_kernels, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """What `doctor` finds about something where the extension is as given."""

    def said(what: str, loaded: Loaded) -> dict[str, str]:
        monkeypatch.setattr(doctor, "load", lambda: loaded)
        monkeypatch.setattr(doctor, "nvidia_smi", lambda: "")
        findings = _json(mirage_kernels("doctor", "--json"), code=None)["findings"]
        return next(finding for finding in findings if finding["what"] == what)

    return said


def test_doctor_compares_the_extension_with_what_is_committed(doctor_says) -> None:
    names = sorted(kernel_name(record) for record in emitted(package_kernels(), "sm_90a").values())
    names.append("lora_linear_batched/K4096_N4096_R16_fp16")  # has no record of its own
    of_table = Loaded("2.13.0", "", "", None, tuple(names), "sm_90a", problem="")
    assert doctor_says("kernels", of_table)["status"] == "ok"
    lacking = doctor_says("kernels", replace(of_table, kernels=tuple(names[1:])))
    assert lacking["status"] == "missing"
    assert lacking["found"].endswith(f"1 are not compiled, {names[0]} for one")


def test_doctor_says_that_the_extension_is_for_another_gpu(doctor_says) -> None:
    complaint = "this build contains kernels for sm_90a only, but the GPU is sm_80"
    gpu = ("2.13.0", "13.0", "NVIDIA A100", (8, 0))
    finding = doctor_says("GPU", Loaded(*gpu, (), "sm_90a", problem="", complaint=complaint))
    assert (finding["status"], finding["hint"]) == ("missing", complaint)


def _json(outcome, code: int | None = 0):
    assert code in (None, outcome.code), outcome.err
    return json.loads(outcome.out)


def test_on_a_full_disk_nothing_of_a_kernel_is_left(
    mirage_kernels, without_search, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = workplace / FILES[0]  # of another generation
    earlier.parent.mkdir(parents=True)
    earlier.write_text("earlier\n")
    whole = Path.write_text

    def write_text(self: Path, text: str) -> int:
        if "table.cpp" in self.name:  # the last one
            raise OSError(28, "No space left on device")
        return whole(self, text)

    monkeypatch.setattr(Path, "write_text", write_text)
    outcome = mirage_kernels("generate", "rms_norm_linear", "--out", str(workplace))
    assert outcome.code == 2
    assert "table.cpp cannot be written: No space left on device" in outcome.err
    assert files_below(workplace) == [FILES[0]]
    assert earlier.read_text() == "earlier\n"
