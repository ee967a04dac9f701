"""What kernels are launched with, and which calls launch none: the bindings, compiled to pretend.

The CPU counts as the GPU, and the kernels of the table print their arguments. Of a kernel: its name
and tokens, of each input the first element and the row stride, scalars, how many outputs; a call
that prints nothing runs PyTorch's program.
"""

from __future__ import annotations

import re
from collections.abc import Callable

NONCE = re.compile(r", nonce ([0-9a-f]{2,})$")  # kernels of weights print 1 where it is given


def test_a_call_launches_what_serves_it(
    told: dict[str, str], golden: Callable[[str, str], None]
) -> None:
    said = {name: NONCE.sub(", a nonce", printed) for name, printed in told.items()}
    golden("launches.txt", "".join(f"# {name}\n{said[name]}\n" for name in said))


def test_a_workspace_comes_with_every_launch_and_a_nonce_of_its_own(told: dict[str, str]) -> None:
    nonces = [int(found[1], 16) for said in told.values() if (found := NONCE.search(said))]
    launches = [
        name for name, said in told.items() if name.startswith("attention") and " | " in said
    ]
    assert len(nonces) == len(set(nonces)) == len(launches) > 30
    assert max(nonces) >= 2**56  # all 64 bits are mixed


def test_an_uncovered_shape_is_refused_or_computed(told: dict[str, str]) -> None:
    assert told["uncovered"].startswith("mirage_kernels::rms_norm_linear: no kernel covers K=64")
    assert told["attention uncovered"] == "computed 1"
