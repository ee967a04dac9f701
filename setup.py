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
    "mirage_kernels.csrc": "csrc",  # headers that `mirage-kernels compile` includes
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
    """Compile the committed kernels of one architecture (MIRAGE_KERNELS_ARCH) into `_C.abi3.so`.

    MIRAGE_KERNELS_ONLY names some of them; then the generator's requirements must be installed.
    """

    def build_extension(self, ext: Extension) -> None:
        if self.editable_mode:  # serves the generator without an extension, or with one built here
            ext.optional = True
            print("an editable installation compiles nothing: `make extension` does", flush=True)
            return
        import_from_tree("mirage_kernels")
        import_from_tree("mirage_kernels.generator")
        from mirage_kernels.generator.build.compile import (
            DEFAULT_ARCH,
            all_sources,
            build_extension,
        )
        from mirage_kernels.generator.build.toolchain import find_toolchain
        from mirage_kernels.generator.errors import MirageError, ToolchainError
        from mirage_kernels.generator.settings import only

        try:
            find_toolchain()
        except ToolchainError as missing:
            self._skip_or_fail(ext, f"{missing.sentence}; {missing.hint}")
            return
        arch, kernels = os.environ.get("MIRAGE_KERNELS_ARCH", DEFAULT_ARCH), ROOT / "kernels"
        try:
            sources = all_sources(arch, kernels)  # found without reading a record
            if only():
                from mirage_kernels.generator.build.selection import selected

                sources = selected(only(), arch, kernels)
            build_extension(sources, Path(self.get_ext_fullpath(ext.name)), progress=print_step)
        except MirageError as failure:
            raise ExecError(f"{failure.sentence}\n{failure.hint}") from failure

    def _skip_or_fail(self, ext: Extension, missing: str) -> None:
        """Skip in the checkout, which still serves the generator; a wheel must be whole."""
        if not self.inplace:
            raise ExecError(f"the extension cannot be built: {missing}")
        ext.optional = True
        print(f"mirage_kernels._C is not built: {missing}", flush=True)


def print_step(stage: str, done: int, total: int, text: str) -> None:
    """Print a line of progress at once: pip buffers what it captures."""
    print(f"{stage:<8} {done}/{total}  {text}", flush=True)


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
