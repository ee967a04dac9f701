"""Random calls of every op in checking mode: right ones are right, wrong ones get a sentence.

    python tests/library/fuzz.py --calls 10000 [--device cuda] [--op gqa] [--seed 7] [--seconds 300]

makes so many calls of each op and ends with 1 where one crashed, was wrong against float64, or was
accepted though checking mode can see what is wrong. What it prints of such a call makes it again:
`--op OP --seed SEED --calls 1`. With `--seconds` an op's calls end after so long, and the seed that
would have been next is said.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fuzz_calls import DRAW, Drawn

SENTENCE = re.compile(r"mirage_kernels::\w+: [^\n]+")


def complaint(drawn: Drawn) -> str:
    """Make a call and say what is wrong about what it did; empty where all is well."""
    try:
        made = drawn.run()
    except RuntimeError as error:
        if not drawn.wrong:
            return f"was refused: {error}"
        return "" if SENTENCE.fullmatch(str(error)) else f"got no sentence: {error}"
    except Exception as error:  # whatever it is: no op may raise it
        return f"raised {type(error).__name__}: {error}"
    if drawn.wrong:
        return "was accepted"
    try:
        return "" if drawn.right(made) else "is not close to float64"
    except AssertionError as error:
        return f"is not close to float64: {error}"


def fuzz(
    op: str, device: str, seeds: range, seconds: float = math.inf
) -> tuple[Counter[str], list[str]]:
    """Make a call per seed, for so long; return how many were right and wrong, and complaints."""
    counted: Counter[str] = Counter()
    complaints = []
    end = time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > end:
            break
        drawn = DRAW[op](random.Random(f"{op} {seed}"), device, op)
        counted["wrong" if drawn.wrong else "right"] += 1
        said = complaint(drawn)
        if said:
            what = f" with {drawn.wrong}" if drawn.wrong else ""
            complaints.append(f"{op} --seed {seed}: {drawn.what}{what} {said}")
    return counted, complaints


def main() -> int:
    """Make the calls that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="of each op")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--op", choices=sorted(DRAW), help="this one alone")
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each op's calls")
    asked = parser.parse_args()
    os.environ["MIRAGE_KERNELS_CHECK"] = "1"  # read at the first call
    failed = 0
    for op in [asked.op] if asked.op else sorted(DRAW):
        seeds = range(asked.seed, asked.seed + asked.calls)
        counted, complaints = fuzz(op, asked.device, seeds, asked.seconds)
        made = counted.total()
        rest = f"; go on: --op {op} --seed {asked.seed + made}" if made < asked.calls else ""
        print(
            f"{op}: {counted['right']} right, {counted['wrong']} wrong, {len(complaints)} bad{rest}"
        )
        print("".join(f"    {line}\n" for line in complaints[:20]), end="", flush=True)
        failed += len(complaints)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
