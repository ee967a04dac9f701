"""Kernels called by name: loading, what is refused, and on a GPU what they compute."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from compilers import nvcc
from torch._subclasses import FakeTensorMode

import mirage_kernels

pytestmark = pytest.mark.usefixtures("nothing_loaded")
SIGNATURE = """{"name": "scaled", "dtype": "bf16", "arch": "sm_90a", "static": {"N": 4},
"dynamic": ["M"], "inputs": ["x", "s"], "tensors": [{"name": "x", "dtype": "bf16",
"dims": ["M", "N"], "optional": false}], "scalars": [{"name": "s", "dtype": "fp32"}],
"results": [{"name": "out", "dtype": "bf16", "dims": ["M", "N"]}]}"""


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    """A folder with one shared object that has a program's three symbols."""
    _compiled(tmp_path, "sm_90a")
    return tmp_path


def _compiled(to: Path, arch: str, digest: str = "") -> None:
    folder = to / arch / "scaled"
    folder.mkdir(parents=True, exist_ok=True)
    text = SIGNATURE.replace("sm_90a", arch).replace("\n", " ").replace('"', '\\"')
    (folder / "N4_bf16.c").write_text(
        "int scaled_N4_bf16(void) { return 0; }\n"
        "long long scaled_N4_bf16_workspace(const long long* dims) { return 8 * dims[0]; }\n"
        f'const char scaled_N4_bf16_signature[] = "{text}";\n'
        f'const char mirage_kernel_digest[] = "{digest}";\n'
    )
    out = str(folder / "N4_bf16.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", out, str(folder / "N4_bf16.c")], check=True)


def test_a_program_says_what_it_serves(scaled: Path) -> None:
    assert mirage_kernels.load(scaled) == ["scaled"]
    assert mirage_kernels.programs() == ["scaled"]
    assert mirage_kernels.program("scaled").__doc__ == "scaled(x, s): bf16 N=4 on sm_90a"


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_shared_object_that_was_cut_short_is_named(scaled: Path, kept: float) -> None:
    (file,) = scaled.rglob("*.so")
    whole = file.read_bytes()
    file.unlink()  # the process may have it open
    file.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(ImportError, match=r"N4_bf16\.so is no compiled kernel \(.*compile`"):
        mirage_kernels.load(scaled)
    file.write_bytes(whole)
    assert mirage_kernels.load(scaled) == ["scaled"]


def test_results_that_are_written_in_place_take_no_memory(scaled: Path) -> None:
    mirage_kernels.load(scaled)
    (kernel,) = mirage_kernels.program("scaled").kernels
    x, cache = (torch.empty(n, 4, dtype=torch.bfloat16, device="meta") for n in (3, 50))
    assert kernel.results([x], [cache])[0] is cache
    assert kernel.results([x], [None])[0].shape == (3, 4)


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ((3, 4), ""),
        ((2, 4), "the result out has M = 2; 3 works"),
        ((3, 5), "the result out has N = 5; 4 works"),
    ],
)
def test_results_that_are_given_have_to_fit(scaled: Path, into: tuple[int, int], said: str) -> None:
    mirage_kernels.load(scaled)
    (kernel,) = mirage_kernels.program("scaled").kernels
    x, given = (torch.empty(n, dtype=torch.bfloat16, device="meta") for n in ((3, 4), into))
    assert kernel.misfit([x], [given]) == said
    assert kernel.misfit([x], [given, given]) == "it has 1 results, not 2"


def test_a_call_gives_results_in_place(scaled: Path) -> None:
    mirage_kernels.load(scaled)
    x, out = (torch.empty(3, 4, dtype=torch.bfloat16, device="meta") for _ in range(2))
    assert mirage_kernels.program("scaled")(x, 2.0, into=[out]) is out


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        (torch.int32, ""),
        (torch.int64, ""),
        (torch.int16, "at is of torch.int16; torch.int32 or torch.int64 works"),
    ],
)
def test_index_tensors_may_be_of_either_type(scaled: Path, dtype: torch.dtype, said: str) -> None:
    mirage_kernels.load(scaled)
    (kernel,) = mirage_kernels.program("scaled").kernels
    told = [{"name": "at", "dtype": "int", "dims": ["M"], "optional": False}]
    kernel = replace(kernel, signature=kernel.signature | {"tensors": told})
    assert kernel.misfit([torch.empty(3, dtype=dtype, device="meta")]) == said


def test_a_sum_along_an_empty_dim_is_refused(scaled: Path) -> None:
    mirage_kernels.load(scaled)
    (kernel,) = mirage_kernels.program("scaled").kernels
    results = [{"name": "out", "dtype": "bf16", "dims": ["N"]}]
    kernel = replace(kernel, signature=kernel.signature | {"results": results})
    with pytest.raises(ValueError, match="scaled: M is 0, no terms to sum; 1 or more works"):
        kernel.run([torch.empty(0, 4)], [2.0], [torch.empty(4)])


class Launches:
    """A kernel's launch that keeps what it is called with."""

    def __init__(self) -> None:
        self.strides: list[int] = []

    def __call__(self, tensors: object, strides: Sequence[int], *others: object) -> int:
        self.strides = [*strides]
        return 0


def test_a_launch_is_told_how_wide_indices_are(
    scaled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirage_kernels.load(scaled)
    (kernel,) = mirage_kernels.program("scaled").kernels
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    told = [{"name": "at", "dtype": "int", "dims": ["M"], "optional": False}]
    for dtype, size in ((torch.int32, 4), (torch.int64, 8)):
        launch = Launches()
        made = replace(kernel, signature=kernel.signature | {"tensors": told}, launch=launch)
        made.run([torch.zeros(3, dtype=dtype)], [], [torch.zeros(3, 4, dtype=torch.bfloat16)])
        assert launch.strides == [1, size, 4, 1]


def test_vectors_that_are_read_by_their_stride_are_not_copied(scaled: Path) -> None:
    mirage_kernels.load(scaled)
    (kernel,) = mirage_kernels.program("scaled").kernels
    told = [{"name": n, "dims": ["N"]} for n in "ab"]
    told[1] |= {"broadcast": True}
    kernel = replace(kernel, signature=kernel.signature | {"tensors": told})
    one = torch.ones(1).expand(4)
    copied, kept = kernel.side_by_side([one, one])
    assert copied is not None
    assert copied.is_contiguous()
    assert kept is one


def test_results_have_the_extents_of_inputs_under_torch_compile(scaled: Path) -> None:
    mirage_kernels.load(scaled)
    scaled_by = torch.compile(mirage_kernels.program("scaled"), backend="eager", fullgraph=True)
    x = torch.empty(3, 4, dtype=torch.bfloat16, device="meta")
    made = scaled_by(x, s=2.0)
    assert (made.shape, made.dtype) == ((3, 4), torch.bfloat16)


@pytest.mark.parametrize(("gpu", "arch"), [((9, 0), "sm_90a"), ((8, 6), "sm_80"), ((7, 5), "")])
def test_a_gpu_gets_a_kernel_of_its_own_architecture(
    scaled: Path, monkeypatch: pytest.MonkeyPatch, gpu: tuple[int, int], arch: str
) -> None:
    _compiled(scaled, "sm_80")
    mirage_kernels.load(scaled)
    about = SimpleNamespace(major=gpu[0], minor=gpu[1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    kernels = mirage_kernels.program("scaled").kernels
    with FakeTensorMode():
        x = torch.empty(3, 4, dtype=torch.bfloat16, device="cuda")
        fitting = [k.signature["arch"] for k in kernels if not k.misfit([x])]
    assert fitting[:1] == ([arch] if arch else [])


def test_a_shared_object_that_is_no_program_is_named(scaled: Path) -> None:
    (scaled / "sm_90a/scaled/N4_bf16.so").rename(scaled / "other.so")
    with pytest.raises(ImportError, match=r"other\.so is no compiled kernel"):
        mirage_kernels.load(scaled)


def test_an_input_that_the_fitting_kernel_lacks_is_refused(
    scaled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirage_kernels.load(scaled)
    program = mirage_kernels.program("scaled")
    monkeypatch.setattr(program, "inputs", ("x", "s", "bias"))
    x = torch.empty(3, 4, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match="bf16 N=4 on sm_90a: it has no bias"):
        program(x, 1.0, bias=x)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.empty(3, 5, dtype=torch.bfloat16), "x has N = 5; 4 works"),
        (torch.empty(3, 4), "x is of torch.float32; torch.bfloat16 works"),
        (torch.empty(4, dtype=torch.bfloat16), r"x has 1 dims; \[M, N\] works"),
        (None, "x is missing"),
    ],
)
def test_tensors_that_no_kernel_takes_are_named(scaled: Path, x: torch.Tensor, said: str) -> None:
    mirage_kernels.load(scaled)
    with pytest.raises(ValueError, match=said):
        mirage_kernels.program("scaled")(x, 1.0)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="`mirage-kernels compile"):
        mirage_kernels.load(tmp_path)
    with pytest.raises(KeyError, match="none is loaded"):
        mirage_kernels.program("scaled")


def test_arguments_are_checked_by_name(scaled: Path) -> None:
    mirage_kernels.load(scaled)
    x = torch.empty(3, 4, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="scaled takes x, s, each once"):
        mirage_kernels.program("scaled")(x, 1.0, y=x)
    with pytest.raises(TypeError, match="s is None"):
        mirage_kernels.program("scaled")(x)
    with pytest.raises(ValueError, match="on cpu; cuda works"):
        mirage_kernels.program("scaled")(x, 1.0)


RECIPE = """
import torch
def softened(x, w): return torch.nn.functional.softplus(x @ w).mean(-1)
example_inputs = {"x": torch.empty(8, 72), "w": torch.empty(72, 40)}
dynamic = {"x": {0: "M"}}
"""


MASKED = """
import torch
B, H, L, D = 3, 2, 200, 64
def masked(q, k, v, seen):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None])
heads = {n: torch.empty(B, H, m, D, device="meta") for n, m in (("q", 1), ("k", L), ("v", L))}
def example_inputs(): return heads | {"seen": torch.empty(B, L, dtype=torch.bool, device="meta")}
"""


STATE = """
import torch
B, H, D = 3, 4, 64
def turned(x, freqs):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs).flatten(-2).type_as(x)
def stepped(x, freqs, A, S):
    S.copy_(S * torch.exp(A) + turned(x, freqs).float())
    return S.sum(-1).to(x.dtype)
f = torch.float32
example_inputs = {"x": torch.empty(B, H, D, dtype=torch.bfloat16, device="meta"),
    "freqs": torch.empty(B, 1, D // 2, dtype=torch.complex64, device="meta"),
    "A": torch.empty(B, H, 1, dtype=f, device="meta"),
    "S": torch.empty(B, H, D, dtype=f, device="meta")}
"""


CHOSEN = """
import torch
def chosen(x, y):
    whole = torch.round(3 * x) + torch.floor(2 * y) * torch.erf(x)
    return whole + torch.where(x > y, torch.log(x), y) - (x >= 0) * y
example_inputs = {n: torch.empty(5, 96, dtype=torch.bfloat16, device="meta") for n in "xy"}
"""


def generated(folder: Path, text: str, name: str) -> Path:
    """Generate and compile the kernels of a PyTorch function."""
    from mirage_kernels.generator.cli import main

    nvcc()
    (folder / "mine.py").write_text(text)
    words = ["generate", f"{folder}/mine.py:{name}", "--dtype", "bf16", "--jobs", "1"]
    assert main([*words, "--out", f"{folder}/out", "--store", f"{folder}/store"]) == 0
    assert main(["compile", f"{folder}/out"]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PyTorch function's kernels, generated and compiled."""
    return generated(tmp_path_factory.mktemp("made"), RECIPE, "softened")


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of attention with a mask that is an input."""
    return generated(tmp_path_factory.mktemp("masked"), MASKED, "masked")


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of a rotation of pairs, and of a state in fp32 that is written in place."""
    return generated(tmp_path_factory.mktemp("stepped"), STATE, "stepped")


def test_a_function_s_kernel_is_compiled_and_loads(made: Path) -> None:
    assert mirage_kernels.load(made) == ["softened"]


@pytest.mark.gpu
def test_a_function_s_kernel_computes_it(made: Path) -> None:
    mirage_kernels.load(made)
    x, w = torch.randn(13, 72).cuda().bfloat16(), torch.randn(72, 40).cuda().bfloat16()
    exact = torch.nn.functional.softplus(x.double() @ w.double()).mean(-1)
    found = mirage_kernels.program("softened")(x, w)
    assert ((found.double() - exact).norm() / exact.norm()) < 5e-3


def test_a_kernel_takes_a_mask_of_bytes(masked: Path) -> None:
    assert mirage_kernels.load(masked) == ["masked"]
    q, k, v = (torch.empty(3, 2, n, 64, dtype=torch.bfloat16, device="meta") for n in (1, 200, 200))
    seen = torch.empty(3, 200, dtype=torch.bool, device="meta")
    assert mirage_kernels.program("masked")(q, k, v, seen).shape == q.shape
    with pytest.raises(ValueError, match=r"seen is of torch\.int8; torch\.bool works"):
        mirage_kernels.program("masked")(q, k, v, seen.to(torch.int8))


@pytest.mark.gpu
@pytest.mark.parametrize("first", [0, 3])
def test_hidden_keys_have_no_weight(masked: Path, first: int) -> None:
    mirage_kernels.load(masked)
    q, k, v = (torch.randn(3, 2, n, 64).cuda().bfloat16() for n in (1, 200, 200))
    seen = (torch.rand(3, 200 + first).cuda() < 0.3)[:, first:]  # rows may begin at any byte
    k[~seen[:, None].expand(3, 2, 200)] = torch.nan
    scores = (q.double() @ k.double().transpose(-1, -2) / 8).masked_fill(
        ~seen[:, None, None], -torch.inf
    )
    exact = torch.softmax(scores, -1) @ v.double()
    found = mirage_kernels.program("masked")(q, k, v, seen)
    assert ((found.double() - exact).norm() / exact.norm()) < 1e-2


def test_a_program_is_called_by_the_function_s_own_names(stepped: Path) -> None:
    assert mirage_kernels.load(stepped) == ["stepped"]
    assert mirage_kernels.program("stepped").inputs == ("x", "freqs", "A", "S")


@pytest.mark.gpu
def test_pairs_are_turned_and_a_state_stays_in_fp32(stepped: Path) -> None:
    mirage_kernels.load(stepped)
    x, angles = torch.randn(3, 4, 64).cuda().bfloat16(), torch.randn(3, 1, 32).cuda()
    decay, state = torch.rand(3, 4, 1).cuda() * 0.5, torch.randn(3, 4, 64).cuda() * 1000
    freqs = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.double().reshape(3, 4, 32, 2)) * freqs.to(torch.complex128)
    turned = torch.view_as_real(pairs).flatten(-2).bfloat16().double()
    exact = state.double() * torch.exp(decay.double()) + turned
    found = mirage_kernels.program("stepped")(x=x, freqs=freqs, A=decay, S=state)
    assert ((state.double() - exact).norm() / exact.norm()) < 1e-5
    assert ((found.double() - exact.sum(-1)).norm() / exact.sum(-1).norm()) < 1e-2


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel of functions that round, and of what comparisons choose."""
    return generated(tmp_path_factory.mktemp("chosen"), CHOSEN, "chosen")


def test_comparisons_are_part_of_a_kernel(chosen: Path) -> None:
    assert mirage_kernels.load(chosen) == ["chosen"]
    assert len([*chosen.glob("sm_*/*/*.cu")]) == 1


@pytest.mark.gpu
def test_what_is_not_chosen_is_not_computed_with(chosen: Path) -> None:
    mirage_kernels.load(chosen)
    x, y = (torch.randn(5, 96).cuda().bfloat16() for _ in range(2))
    y[:, :20] = x[:, :20]
    x[:, 30:40] = (torch.arange(-5, 5) * 0.5).cuda()  # what is rounded lies between two numbers
    x[0, 0], x[0, 1], y[0, 2] = torch.nan, torch.inf, -torch.inf
    a, b = x.double(), y.double()
    whole = torch.round(3 * a) + torch.floor(2 * b) * torch.erf(a)
    exact = whole + torch.where(a > b, torch.log(a), b) - (a >= 0) * b
    found = mirage_kernels.program("chosen")(x, y)
    torch.testing.assert_close(found.double(), exact, atol=1e-2, rtol=1e-2, equal_nan=True)


@pytest.mark.parametrize("content", [b"", b'{"name": "cut', b"\xff\xfe", b"[1]", b"[" * 200000])
def test_a_damaged_program_is_refused_in_a_sentence_with_its_file(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "cut_bf16.program.json").write_bytes(content)
    with pytest.raises(ImportError, match=r"cut_bf16\.program\.json is damaged \(.*generate`"):
        mirage_kernels.load(tmp_path)


def test_an_empty_path_is_no_folder() -> None:
    with pytest.raises(FileNotFoundError, match="folder is ''; the path of a folder works"):
        mirage_kernels.load("")


def test_a_program_of_another_version_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "old_bf16.program.json").write_text('{"name": "old", "inputs": [], "ways": []}')
    with pytest.raises(ImportError, match=r"lacks constants, returns\); `mirage-kernels generate`"):
        mirage_kernels.load(tmp_path)


def _program(folder: Path, **digests: str) -> None:
    """Write a program that runs the kernel `scaled`."""
    step = {"kernel": "scaled_N4_bf16", "inputs": [], "results": [], "last": []}
    document = {
        **{"name": "cut", "dtype": "bf16", "arch": "sm_90a"},
        "inputs": [{"name": "x", "shape": [4], "dtype": "bfloat16"}],
        **{"returns": {"value": "x"}, "constants": []},
        **{"ways": [{"most": {}, "steps": [step]}], "kernels": digests},
    }
    (folder / "sm_90a").mkdir(parents=True, exist_ok=True)
    (folder / "sm_90a/cut_bf16.program.json").write_text(json.dumps(document))


EDITS = [
    ("name", None, "missing required field `name`"),
    ("name", 3, "at `$.name`"),
    ("arch", None, "missing required field `arch`"),
    ("arch", "90", "at `$.arch`"),
    ("inputs", {}, "at `$.inputs`"),
    ("inputs", [{"name": "x", "shape": [{"extent": "M"}], "dtype": "bfloat16"}], "`times`"),
    ("ways", "x", "at `$.ways`"),
    ("ways", [], "at `$.ways`"),
    ("ways", [{"most": {}}], "`steps` - at `$.ways[0]`"),
    ("ways", [{"most": {"M": 64}, "steps": []}], "takes no more than {'M': 64}"),
    ("ways", [{"most": {}, "steps": [{"kernel": "k"}]}], "of `$.ways[0].steps[0]`"),
    ("ways", [{"most": {}, "steps": [{"call": 3}]}], "of `$.ways[0].steps[0]`"),
    ("returns", {"value": "x", "none": True}, "one of value, none, dict, list, tuple"),
    ("returns", {"list": [{"value": 3}]}, "at `$.returns.list[0].value`"),
    ("constants", [{"name": "c"}], "at `$.constants[0]`"),
    ("kernels", ["k"], "at `$.kernels`"),
]


@pytest.mark.parametrize(("field", "value", "said"), EDITS)
def test_a_program_that_was_edited_wrongly_is_refused_with_the_place(
    tmp_path: Path, field: str, value: object, said: str
) -> None:
    _program(tmp_path)
    file = tmp_path / "sm_90a/cut_bf16.program.json"
    told = json.loads(file.read_text()) | {field: value}
    file.write_text(json.dumps({name: x for name, x in told.items() if x is not None}))
    with pytest.raises(ImportError, match=f"{re.escape(said)}.*`mirage-kernels generate`"):
        mirage_kernels.load(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_only_has_the_name_of_a_program_is_named(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "cut_bf16.program.json"
    file.mkdir() if kind == "folder" else file.symlink_to("nowhere")
    with pytest.raises(ImportError, match=r"cut_bf16\.program\.json cannot be read \("):
        mirage_kernels.load(tmp_path)


def test_a_program_whose_kernel_is_not_compiled_is_not_loaded(tmp_path: Path) -> None:
    _program(tmp_path)
    said = rf"cut_bf16\.program\.json runs kernels that .*: scaled_N4_bf16; .*compile {tmp_path}`"
    with pytest.raises(ImportError, match=said):
        mirage_kernels.load(tmp_path)
    assert mirage_kernels.programs() == []


@pytest.mark.parametrize("digest", ["", "b"])
def test_a_program_is_not_loaded_with_another_kernel_of_the_name(
    tmp_path: Path, digest: str
) -> None:
    _compiled(tmp_path, "sm_90a", digest)
    _program(tmp_path, scaled_N4_bf16="a")
    with pytest.raises(ImportError, match="with other kernels than are compiled as scaled_N4_bf16"):
        mirage_kernels.load(tmp_path)
    _program(tmp_path, scaled_N4_bf16=digest)
    assert mirage_kernels.load(tmp_path) == ["cut"]


def test_a_program_that_does_not_tell_its_kernels_is_loaded(tmp_path: Path) -> None:
    _compiled(tmp_path, "sm_90a", "a")
    _program(tmp_path)
    assert mirage_kernels.load(tmp_path) == ["cut"]


def test_a_folder_does_not_change_the_kernels_of_another_s_program(tmp_path: Path) -> None:
    for name, digest in (("a", "a"), ("same", "a"), ("b", "b")):
        _compiled(tmp_path / name, "sm_90a", digest)
        _program(tmp_path / name, scaled_N4_bf16=digest)
    assert mirage_kernels.load(tmp_path / "a") == mirage_kernels.load(tmp_path / "same")
    said = rf"/b has other kernels by the names of scaled_N4_bf16, which {tmp_path}/a/"
    with pytest.raises(ImportError, match=said):
        mirage_kernels.load(tmp_path / "b")


def test_what_a_folder_has_no_more_is_forgotten_when_it_is_loaded_again(tmp_path: Path) -> None:
    _compiled(tmp_path, "sm_90a", "a")
    _program(tmp_path, scaled_N4_bf16="a")
    assert mirage_kernels.load(tmp_path) == ["cut"]
    (tmp_path / "sm_90a/cut_bf16.program.json").unlink()
    assert mirage_kernels.load(tmp_path) == mirage_kernels.programs() == ["scaled"]
