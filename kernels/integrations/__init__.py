"""This library's ops inside of other packages: one module for each of them."""

from collections.abc import Mapping

from torch import Tensor

NAME = "mirage_kernels"  # by which a package knows what is registered with it


def asks_for(what: object, wanted: Mapping[str, object]) -> bool:
    """Say whether attributes have the wanted values, as far as they are there; no tensor does."""
    found = ((getattr(what, name, value), value) for name, value in wanted.items())
    return all(not isinstance(has, Tensor) and has == value for has, value in found)
