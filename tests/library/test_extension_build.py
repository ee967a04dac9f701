"""Building the extension: what is compiled and what comes from the cache, failures, whole files."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mirage_kernels.generator.build import compile as compiler
from mirage_kernels.generator.build.compile import ObjectCache, Wanted
from mirage_kernels.generator.build.toolchain import find_toolchain
from mirage_kernels.generator.errors import ToolchainError

pytestmark = pytest.mark.skipif(
    not (compiler.ROOT / "csrc").is_dir(), reason="an installed wheel holds no sources"
)

FILES = {
    "csrc/launch.h": "#pragma once\n",
    "csrc/torch/module.cpp": '#include "launch.h"\nint module() { return 1; }\n',
    "kernels/sm_90a/table.cpp": '#include "launch.h"\nint table() { return 2; }\n',
    "kernels/sm_90a/linear/K8_fp16.cu": '#include "form.cuh"\n__global__ void half() {}\n',
    "kernels/sm_90a/linear/K8_bf16.cu": "__global__ void bfloat() {}\n",
    "kernels/sm_90a/linear/form.cuh": "#pragma once\n",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkout of two kernels that was built, and with its cache of objects."""
    folder = tmp_path_factory.mktemp("built")
    for name, text in FILES.items():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_KERNELS_OBJECTS", str(folder / "objects"))
        patch.setattr(compiler, "ROOT", folder / "tree")
        assert len(build(folder / "tree")) == 4
    return folder


@pytest.fixture
def tree(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout in another place, with a copy of its cache."""
    root = tmp_path / "tree"
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("MIRAGE_KERNELS_OBJECTS", str(tmp_path / "objects"))
    monkeypatch.setattr(compiler, "ROOT", root)
    return root


def build(tree: Path) -> list[str]:
    """Build; return the sources that were compiled."""
    compiled: list[str] = []

    def progress(stage: str, done: int, total: int, text: str) -> None:
        if stage == "compile":
            compiled.append(text.partition(" ")[0])

    sources = compiler.all_sources("sm_90a", tree / "kernels")
    out = compiler.build_extension(sources, tree / "_C.abi3.so", jobs=1, progress=progress)
    assert out.is_file()
    return [Path(name).name for name in compiled]


def test_only_what_changed_is_compiled(tree: Path) -> None:
    assert build(tree) == []
    (tree / "csrc/launch.h").write_text("#pragma once\nnamespace mirage {}\n")
    assert sorted(build(tree)) == ["module.cpp", "table.cpp"]
    (tree / "kernels/sm_90a/linear/form.cuh").write_text("int changed();\n")
    assert build(tree) == ["K8_fp16.cu"]
    (tree / "kernels/sm_90a/linear/form.cuh").write_text("#pragma once\n")
    assert build(tree) == []


def test_a_moved_checkout_compiles_nothing_and_makes_the_same_bytes(
    built: Path, tree: Path
) -> None:
    before = (built / "tree/_C.abi3.so").read_bytes()
    (tree / "_C.abi3.so").unlink()
    assert build(tree) == []
    assert (tree / "_C.abi3.so").read_bytes() == before
    shutil.rmtree(os.environ["MIRAGE_KERNELS_OBJECTS"])
    assert len(build(tree)) == 4
    assert (tree / "_C.abi3.so").read_bytes() == before


def test_failure_shows_the_command_and_the_next_build_goes_on_from_there(tree: Path) -> None:
    before = (tree / "_C.abi3.so").read_bytes()
    broken, more = tree / "kernels/sm_90a/z.cu", tree / "kernels/sm_90a/linear/K16_fp16.cu"
    broken.write_text("int half( {\n")
    more.write_text("__global__ void more() {}\n")
    with pytest.raises(ToolchainError, match=r"z.cu does not build") as raised:
        build(tree)
    assert "nvcc" in raised.value.hint
    assert "error" in raised.value.hint
    assert (tree / "_C.abi3.so").read_bytes() == before
    assert not list((tree.parent / "objects").glob("unfinished.*"))
    broken.write_text("__global__ void mended() {}\n")
    assert build(tree) == ["z.cu"]


@pytest.mark.parametrize("changed", ["compilers", "options", "content", "header"])
def test_an_object_is_of_its_compiler_options_and_content(tmp_path: Path, changed: str) -> None:
    (tmp_path / "x.cu").write_text('#include "x.h"\n#include "gone.h"\n#include <cuda.h>\n')
    (tmp_path / "x.h").write_text("int x;")
    cache = ObjectCache(tmp_path / "objects", tmp_path, "nvcc 13.0")
    wanted = Wanted("x.cu", ("nvcc",), ("-O3",))
    kept = cache.path(wanted)
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert cache.find(wanted) == kept
    if changed in ("content", "header"):
        (tmp_path / ("x.cu" if changed == "content" else "x.h")).write_text("int y;")
    compilers = "nvcc 13.1" if changed == "compilers" else "nvcc 13.0"
    options = ("-O2",) if changed == "options" else wanted.options
    later = ObjectCache(cache.folder, tmp_path, compilers)
    assert later.find(Wanted("x.cu", ("nvcc",), options)) is None


def test_every_include_is_one_that_the_cache_reads() -> None:
    for folder in ("csrc", "kernels"):
        for path in (compiler.ROOT / folder).rglob("*.[ch]*"):
            if path.suffix in (".cu", ".cuh", ".cpp", ".h"):
                written = re.findall(r"#\s*include\s+(.)", path.read_text())
                assert set(written) <= {'"', "<"}, path


def test_objects_used_last_stay_in_a_full_cache(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, tmp_path, "")
    for age, name in enumerate(("new", "old")):
        (tmp_path / "ab").mkdir(exist_ok=True)
        (tmp_path / "ab" / name).write_bytes(bytes(100))
        os.utime(tmp_path / "ab" / name, (1e9 - age, 1e9 - age))
    cache.shrink(150)
    assert [path.name for path in (tmp_path / "ab").iterdir()] == ["new"]


def installed_extension() -> Path:
    spec = importlib.util.find_spec("mirage_kernels._C")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def test_folder_without_emitted_kernels_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="sm_90a holds no emitted kernels"):
        compiler.all_sources("sm_90a", tmp_path)


def test_an_architecture_without_kernels_is_told_which_have_some() -> None:
    with pytest.raises(ToolchainError, match="sm_75 holds no emitted kernels") as raised:
        compiler.all_sources("sm_75", compiler.ROOT / "kernels")
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
        compiler.all_sources("hopper", tmp_path)


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
