"""Building the extension: only what changed is compiled, failures show the command, files whole."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from mirage_kernels.generator.build import compile as compiler
from mirage_kernels.generator.build.toolchain import find_toolchain
from mirage_kernels.generator.errors import ToolchainError

pytestmark = pytest.mark.skipif(
    not (compiler.ROOT / "csrc").is_dir(), reason="an installed wheel holds no sources"
)

TABLE = """
#include "extra.h"
#include "launch.h"
namespace mirage {
const Kernel kKernels[1] = {};
const int kKernelCount = 0;
const AttentionKernel kAttentionKernels[1] = {};
const int kAttentionKernelCount = 0;
const char* const kArch = "sm_90a";
}  // namespace mirage
"""


@pytest.fixture
def kernels_dir(tmp_path: Path) -> Path:
    emitted = tmp_path / "sm_90a"
    emitted.mkdir()
    (emitted / "table.cpp").write_text(TABLE)
    (emitted / "extra.h").write_text("#pragma once\n")
    return tmp_path


def installed_extension() -> Path:
    spec = importlib.util.find_spec("mirage_kernels._C")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def build(kernels_dir: Path) -> list[str]:
    lines: list[str] = []
    out = kernels_dir / "_C.abi3.so"
    compiler.build_extension("sm_90a", kernels_dir, out, jobs=1, progress=lines.append)
    assert out.is_file()
    return lines


def test_only_what_changed_is_compiled(kernels_dir: Path) -> None:
    build(kernels_dir)
    assert [line for line in build(kernels_dir) if re.search(r"compile +1/", line)] == []
    (kernels_dir / "sm_90a" / "extra.h").write_text("#pragma once\nnamespace mirage {}\n")
    compiled = [line for line in build(kernels_dir) if re.search(r"compile +\d+/", line)]
    assert len(compiled) == 1
    assert "table.cpp" in compiled[0]


def test_a_plan_in_a_file_of_its_own_is_compiled_again_with_its_kernel(kernels_dir: Path) -> None:
    folder = kernels_dir / "sm_90a" / "some_recipe"
    folder.mkdir()
    for stem in ("K8_fp16", "K8_bf16"):
        (folder / f"{stem}.cu").write_text(f'#include "{stem}.held.cuh"\n')
        (folder / f"{stem}.held.cuh").write_text(f"int {stem}();\n")
    build(kernels_dir)
    (folder / "K8_fp16.held.cuh").write_text("int changed();\n")
    compiled = [line for line in build(kernels_dir) if re.search(r"compile +\d+/", line)]
    assert len(compiled) == 1
    assert "K8_fp16.cu" in compiled[0]


def test_failure_shows_the_command_and_leaves_the_old_file(kernels_dir: Path) -> None:
    build(kernels_dir)
    (kernels_dir / "sm_90a" / "broken.cu").write_text("int half( {\n")
    before = (kernels_dir / "_C.abi3.so").read_bytes()
    with pytest.raises(ToolchainError, match=r"broken.cu does not build") as raised:
        build(kernels_dir)
    assert "nvcc" in raised.value.hint
    assert "error" in raised.value.hint
    assert (kernels_dir / "_C.abi3.so").read_bytes() == before
    assert sorted(path.name for path in kernels_dir.iterdir()) == ["_C.abi3.so", "sm_90a"]


def test_folder_without_emitted_kernels_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="sm_90a holds no emitted kernels"):
        build(tmp_path)


def test_an_architecture_without_kernels_is_told_which_have_some() -> None:
    with pytest.raises(ToolchainError, match="sm_75 holds no emitted kernels") as raised:
        compiler.plan_jobs(find_toolchain(), "sm_75", compiler.ROOT / "kernels")
    assert "sm_80, sm_86, sm_89, sm_90a" in raised.value.hint


def test_an_nvcc_that_is_too_old_is_named(tmp_path: Path, monkeypatch) -> None:
    nvcc = tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"nvcc is of CUDA 12\.4, .* by 12\.8 or newer"):
        find_toolchain()


def test_a_source_distribution_names_all_that_a_wheel_is_compiled_from() -> None:
    rules = (compiler.ROOT / "MANIFEST.in").read_text()
    assert "graft csrc" in rules
    assert "recursive-include kernels *.cu *.cuh *.cpp" in rules


def test_what_is_no_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="'hopper' is no GPU architecture"):
        compiler.build_extension(
            "hopper", tmp_path, tmp_path / "_C.abi3.so", jobs=1, progress=print
        )


def test_jobs_fit_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_free_memory_bytes", lambda: 1 << 30)
    assert compiler.default_jobs() == 1


def test_extension_links_neither_cuda_nor_python_libraries() -> None:
    command = ["readelf", "-d", str(installed_extension())]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.+)\]", listing)
    assert "libtorch.so" in needed
    assert [name for name in needed if re.search(r"cuda|cudart|c10|python", name)] == []


def test_extension_names_no_path_of_the_building_machine() -> None:
    content = installed_extension().read_bytes()
    for folder in (str(compiler.ROOT), str(Path.home()), "site-packages"):
        assert folder.encode() not in content, folder
