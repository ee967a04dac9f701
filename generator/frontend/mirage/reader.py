"""Reading JSON of unknown origin: every value is asked for with its type, and knows its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.text import Json

LARGEST = 2**62
SHOWN = 60  # characters of a wrong value that an error repeats


@dataclass(frozen=True)
class Item:
    """A JSON value and where it stands."""

    data: Json
    place: str

    def wrong(self, wanted: str) -> FileError:
        """Return the error for a value that is not what the schema wants."""
        if isinstance(self.data, dict | list):  # may be long, or deep
            shown = "an object" if isinstance(self.data, dict) else "a list"
        else:
            shown = json.dumps(self.data)[:SHOWN]
        return FileError(
            f"{self.place}: {wanted} is expected, not {shown}",
            "docs/mirage.md describes the schema of checkpoints",
        )

    def __getitem__(self, key: str) -> Item:
        if not isinstance(self.data, dict):
            raise self.wrong("an object")
        if key not in self.data:
            raise FileError(
                f"{self.place}: the key {key!r} is missing",
                "docs/mirage.md describes the schema of checkpoints",
            )
        return Item(self.data[key], f"{self.place}, {key}")

    def get(self, key: str) -> Item | None:
        """Return the value under a key, None where the object lacks it."""
        if not isinstance(self.data, dict):
            raise self.wrong("an object")
        return self[key] if key in self.data else None

    def items(self, noun: str = "entry") -> Iterator[Item]:
        """Yield the values of a list."""
        if not isinstance(self.data, list):
            raise self.wrong("a list")
        return (Item(d, f"{self.place}, {noun} {i}") for i, d in enumerate(self.data))

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self.data, str):
            raise self.wrong("a string")
        return self.data

    def whole(self) -> int:
        """Return a whole number."""
        if isinstance(self.data, bool) or not isinstance(self.data, int):
            raise self.wrong("a whole number")
        if abs(self.data) > LARGEST:
            raise FileError(f"{self.place}: the number has {len(str(self.data))} digits")
        return self.data

    def number(self) -> float:
        """Return a finite number."""
        if isinstance(self.data, bool) or not isinstance(self.data, int | float):
            raise self.wrong("a number")
        if abs(self.data) > LARGEST or self.data != self.data:
            raise self.wrong("a finite number of ordinary size")
        return float(self.data)


def read_json(path: Path) -> Item:
    """Return the content of a JSON file; raise FileError saying what is wrong with it."""
    try:
        return Item(json.loads(path.read_bytes()), path.name)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}", "check the path") from error
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, nested without end
        what = (
            "is nested too deeply" if isinstance(error, RecursionError) else f"is no JSON: {error}"
        )
        raise FileError(f"{path.name} {what}", "is it a checkpoint of Mirage?") from error
