"""What the environment says to the generator: nothing else in it reads variables of its own."""

from __future__ import annotations

import os
from pathlib import Path

from mirage_kernels.generator.errors import FileError

STORE_VARIABLE = "MIRAGE_KERNELS_STORE"
OBJECTS_VARIABLE = "MIRAGE_KERNELS_OBJECTS"


def store_folder(given: str | None = None) -> Path:
    """Return where results of searches are kept: `--store`, MIRAGE_KERNELS_STORE, or the cache.

    The cache is the user's, where the XDG base directory specification puts it: a relative
    XDG_CACHE_HOME is to be ignored. Raises FileError where there is no home folder either.
    """
    chosen = given or os.environ.get(STORE_VARIABLE)
    return Path(chosen) if chosen else _cache(f"--store DIR, or set {STORE_VARIABLE}")


def objects_folder() -> Path:
    """Return where compiled objects are kept: MIRAGE_KERNELS_OBJECTS, or in the user's cache."""
    chosen = os.environ.get(OBJECTS_VARIABLE)
    return Path(chosen).absolute() if chosen else _cache(f"set {OBJECTS_VARIABLE}") / "objects"


def _cache(hint: str) -> Path:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "mirage-kernels"
    try:
        return Path.home() / ".cache" / "mirage-kernels"
    except RuntimeError as error:
        raise FileError(
            "there is no home folder to keep a cache in", f"name a folder: {hint}"
        ) from error


def only() -> tuple[str, ...]:
    """Return which kernels a build is to hold, as MIRAGE_KERNELS_ONLY says; none: all of them."""
    return tuple(os.environ.get("MIRAGE_KERNELS_ONLY", "").split())


def ray_address(given: str | None = None) -> str | None:
    """Return the address of a running Ray cluster, or None where one of this machine is meant."""
    return given or os.environ.get("RAY_ADDRESS") or None


def quiet_ray() -> None:
    """Let a Ray cluster of this machine send no statistics, unless the user wants it to."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
