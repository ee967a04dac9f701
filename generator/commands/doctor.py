"""`doctor`: what was found on this machine, what is missing, how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass

from mirage_kernels.generator.build.selection import kernel_name
from mirage_kernels.generator.build.toolchain import find_nvcc, nvcc_release
from mirage_kernels.generator.commands.arguments import JSON, is_checkout, package_kernels
from mirage_kernels.generator.commands.extension import Loaded, extension_file, load
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.target import TARGETS
from mirage_kernels.generator.terminal import Terminal, counted, listed


@dataclass(frozen=True)
class Finding:
    """One line: what was looked for, for whom, what was found, and what helps if it is missing."""

    what: str
    needed_by: str
    status: str  # "ok", "missing" or "broken"
    found: str
    hint: str = ""


Answer = tuple[str, str, str]  # status, what was found, what helps


def doctor(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Exit code 0 unless something that the library itself needs does not work.

    That is torch and the compiled extension; what only `generate` or `bench` need may be missing.
    """
    terminal.note("looking for compilers, loading torch and the extension ...")
    loaded = load()
    python = f"{platform.python_version()} ({platform.system()} {platform.machine()})"
    findings = [
        Finding("Python", "library", "ok", python),
        Finding("torch", "library", *_torch(loaded)),
        Finding("extension", "library", *_extension(loaded)),
        Finding("GPU", "bench", *_gpu(loaded)),
        Finding("nvcc", "compiling", *_nvcc()),
        Finding(os.environ.get("CXX", "g++"), "compiling", *_host_compiler()),
        *(Finding(name, needed_by, *_package(name, hint)) for name, needed_by, hint in _PACKAGES),
        Finding("kernels", "generate", *_kernels(loaded)),
    ]
    rows = [
        {"what": f.what, "needed by": f.needed_by, "status": f.status, "found": f.found}
        for f in findings
    ]
    terminal.table(rows, left=4)
    for finding in findings:
        if finding.status != "ok" and finding.hint:
            terminal.line(f"{finding.what}: {finding.hint}")
    broken = [f.what for f in findings if f.status != "ok" and f.needed_by == "library"]
    terminal.line(
        f"\nthe library does not work here: {listed(broken)}" if broken else "\nthe library works"
    )
    terminal.document({"works": not broken, "findings": findings})
    return 1 if broken else 0


def _torch(loaded: Loaded) -> Answer:
    if not loaded.torch:
        return "missing", loaded.problem, "`pip install 'torch>=2.10'` brings it"
    built_for = f"built for CUDA {loaded.cuda}" if loaded.cuda else "a CPU build"
    return "ok", f"{loaded.torch}, {built_for}", ""


def _extension(loaded: Loaded) -> Answer:
    file = extension_file()
    if not file.is_file():
        hint = "`make extension` in a source checkout compiles it; a wheel contains it"
        return "missing", f"{file} does not exist", hint
    if loaded.problem:
        hint = "`make clean extension` in a source checkout makes it anew; or install a wheel again"
        return "broken", loaded.problem, hint
    count = f"{counted(len(loaded.kernels), 'kernel')} for {loaded.arch}"
    return "ok", f"{count}, {file.stat().st_size / 1e6:.1f} MB", ""


def _gpu(loaded: Loaded) -> Answer:
    seen = nvidia_smi()
    if not seen and not loaded.gpu:
        gpus = ", ".join(f"{a} ({on.gpu})" for a, on in TARGETS.items())
        here = f"the extension here serves {loaded.arch}; " if loaded.arch else ""
        hint = f"CPU tensors run PyTorch's programs; {here}kernels can be made for {gpus}"
        return "missing", "no NVIDIA GPU", hint
    if not loaded.gpu:
        hint = "install a torch built for CUDA; the driver must be new enough for it"
        return "broken", f"{seen}, but torch does not see it", hint
    found = f"{seen or loaded.gpu}, compute capability {'.'.join(map(str, loaded.capability))}"
    return "missing" if loaded.complaint else "ok", found, loaded.complaint


def nvidia_smi() -> str:
    """Return the first GPU's name and driver as nvidia-smi tells them, or nothing."""
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    ran = subprocess.run(query, capture_output=True, text=True, check=False)
    found = [] if ran.returncode else ran.stdout.splitlines()
    return found[0].replace(", ", ", driver ", 1) if found else ""


def _nvcc() -> Answer:
    nvcc = find_nvcc()
    if nvcc is None:
        hint = "`pip install 'mirage-kernels[nvcc]'` brings one"
        return "missing", "not in CUDA_HOME, PATH, pip", hint
    return "ok", f"{nvcc_release(nvcc)} ({nvcc})", ""


def _host_compiler() -> Answer:
    path = shutil.which(os.environ.get("CXX", "g++"))
    if path is None:
        return "missing", "not in PATH", "`apt-get install g++`"
    ran = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, check=False)
    return "ok", f"{ran.stdout.strip()} ({path})", ""


# Distribution, who needs it, what its absence means.
_PACKAGES = (
    ("triton", "run", "`pip install triton`: emitted Triton programs run on the CPU with it"),
    ("numpy", "generate", "`pip install numpy`"),
    ("pulp", "generate", "`pip install 'mirage-kernels[generate]'`: layouts are planned with it"),
    ("ray", "search", "`pip install 'mirage-kernels[ray]'`: searches on a cluster need it"),
)


def _package(name: str, hint: str) -> Answer:
    try:
        return "ok", importlib.metadata.version(name), ""
    except importlib.metadata.PackageNotFoundError:
        return "missing", "not installed", hint


def _kernels(loaded: Loaded) -> Answer:
    folder = package_kernels()
    try:
        found = emitted(folder).values()
    except MirageError as error:
        return "broken", error.sentence, error.hint
    if not found:
        return (
            "missing",
            f"none in {folder}",
            "`mirage-kernels generate rms_norm_linear` makes some",
        )
    counts = Counter(record.arch for record in found)
    words = listed([f"{counts[arch]} for {arch}" for arch in TARGETS if arch in counts])
    own = {kernel_name(record) for record in found if record.arch == loaded.arch}
    absent = own - set(loaded.kernels)
    if is_checkout() and loaded.kernels and absent:
        words += f"; {len(absent)} are not compiled, {min(absent)} for one"
        return "missing", words, "`make extension KERNELS=all` compiles what is committed"
    return "ok", words, ""


VERBS = {"doctor": (doctor, JSON)}
