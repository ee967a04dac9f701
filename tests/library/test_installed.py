"""A user's path with an installed package, no checkout: generate, compile, load, ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compilers import nvcc

from tests.scripts import script

pytest.importorskip("torch")

from mirage_kernels import kernel_table
from mirage_kernels.generator.build.compile import EXTENSION_NAME, ROOT
from mirage_kernels.generator.commands.arguments import is_checkout, package_kernels
from mirage_kernels.generator.settings import store_folder

pytestmark = pytest.mark.skipif(not is_checkout(), reason="an installed wheel holds no sources")

ASK = "import mirage_kernels as mk; print(mk.supports('rms_norm', K=72, dtype='bf16'), mk.__file__)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with what a wheel holds."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_py", "--build-lib"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    shutil.copy(package_kernels() / EXTENSION_NAME, folder / "mirage_kernels")
    return folder


def ran(site: Path, folder: Path, *words: str, **environment: str) -> str:
    """Run Python there with these packages; return what it prints."""
    paths = {"PYTHONPATH": str(site), "MIRAGE_KERNELS_STORE": str(store_folder())}
    outcome = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | paths | environment,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_a_kernel_of_a_new_shape_is_made_and_loaded_without_a_checkout(
    site: Path, tmp_path: Path
) -> None:
    nvcc()
    verb = ("-m", "mirage_kernels.generator.cli")
    arch = kernel_table()[0].arch
    words = ("generate", "rms_norm", "--arch", arch, "--dtype", "bf16", "--shape", "K=72")
    assert "next: mirage-kernels compile mine" in ran(
        site, tmp_path, *verb, *words, "--out", "mine"
    )
    assert "next: mirage_kernels.load" in ran(site, tmp_path, *verb, "compile", "mine")
    assert ran(site, tmp_path, "-c", ASK).split() == ["False", f"{site}/mirage_kernels/__init__.py"]
    assert ran(site, tmp_path, "-c", ASK, MIRAGE_KERNELS_PATH="mine").split()[0] == "True"


SMALL = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "vocab_size": 1024}
SMALL |= {"num_attention_heads": 8, "num_key_value_heads": 2}


def test_a_model_decodes_with_kernels_that_were_made_for_its_config(
    site: Path, tmp_path: Path
) -> None:
    """Generate, compile, load, optimize, text: on a CPU by PyTorch's programs of the ops."""
    nvcc()
    pytest.importorskip("transformers")
    path = script("users_path")
    _, said = path.walked(site, tmp_path, "cpu", path.CONFIG | SMALL)
    assert "rms_norm_gated_mlp/K512_N1024_bf16" in said["loaded"]
    assert any("2 x rms_norm_gated_mlp K=512, N=1024" in line for line in said["report"])
    assert said["tokens"] == 48
    assert said["differs_at"] is None or said["tied_there"]
