"""Packaging: metadata stands in pyproject.toml; here packages are found and the extension built.

The same modules that serve `mirage-kernels generate` compile it, imported from this tree.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import ExecError

ROOT = Path(__file__).resolve().parent
PACKAGE_DIR = {
    "mirage_kernels": "kernels",
    "mirage_kernels.generator": "generator",
    "mirage_kernels.recipes": "recipes",
}


def import_from_tree(name: str) -> None:
    """Make the package `name` importable from its folder here, installed or not."""
    folder = ROOT / PACKAGE_DIR[name]
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ExecError(f"{folder}/__init__.py is missing")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


class BuildKernels(build_ext):
    """Compile the committed kernels of one architecture (MIRAGE_KERNELS_ARCH) into `_C.abi3.so`."""

    def build_extension(self, ext: Extension) -> None:
        import_from_tree("mirage_kernels")
        import_from_tree("mirage_kernels.generator")
        from mirage_kernels.generator.build import compile as compiler
        from mirage_kernels.generator.build.toolchain import find_toolchain
        from mirage_kernels.generator.errors import ToolchainError

        arch = os.environ.get("MIRAGE_KERNELS_ARCH", compiler.DEFAULT_ARCH)
        try:
            find_toolchain()
        except ToolchainError as missing:
            self._skip_or_fail(ext, missing.sentence, missing.hint)
            return
        out = Path(self.get_ext_fullpath(ext.name))
        try:
            compiler.build_extension(arch, ROOT / "kernels", out, jobs=None, progress=print_line)
        except ToolchainError as failure:
            raise ExecError(f"{failure.sentence}\n{failure.hint}") from failure

    def _skip_or_fail(self, ext: Extension, sentence: str, hint: str) -> None:
        """Skip in an editable install, which still serves the generator; a wheel must be whole."""
        if not (self.inplace or self.editable_mode):
            raise ExecError(f"the extension cannot be built: {sentence}; {hint}")
        ext.optional = True
        print_line(f"mirage_kernels._C is not built: {sentence}; {hint}")


def print_line(line: str) -> None:
    """Print at once: pip buffers what it captures."""
    print(line, flush=True)


def packages() -> list[str]:
    """List each mapped package and the packages inside its folder."""
    return [
        package
        for name, folder in PACKAGE_DIR.items()
        for package in (name, *(f"{name}.{child}" for child in find_packages(folder)))
    ]


setup(
    package_dir=PACKAGE_DIR,
    packages=packages(),
    ext_modules=[Extension("mirage_kernels._C", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BuildKernels},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
