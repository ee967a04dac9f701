"""Whether a shared object is whole: to open one that was cut short ends the process."""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
# Where the table of sections begins, how long each of its entries is, and how many there are.
_HEADER = struct.Struct("<40xQ10xHH2x")


def is_cut_short(file: Path) -> bool:
    """Say whether an ELF file ends before its table of sections, which linkers write last."""
    with file.open("rb") as opened:
        header = opened.read(_HEADER.size)
    if not header.startswith(_MAGIC):
        return False
    if len(header) < _HEADER.size:
        return True
    begin, size, count = map(int, _HEADER.unpack(header))
    return file.stat().st_size < begin + size * count
