"""What the `kernels` package loads from this folder: the layers of the installed library."""

from mirage_kernels.integrations import kernels as layers

__all__ = ["layers"]
