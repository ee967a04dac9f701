"""How a call of attention is cut: what the host's rules answer for 132 multiprocessors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from compilers import compiled

PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "tile/attention_crowd.cuh"

template <int kDepth_>
struct Large {
  static constexpr int kRows = 8, kDepth = kDepth_, kWarps = 8, kBlocks = 1;
};

template <int kDepth>
void tell(const mirage::AttentionArgs& args) {
  const auto crowd = mirage::tile::crowd_of<Large<kDepth>>(args);
  const bool large = mirage::tile::has_few_segments<8, kDepth>(args);
  std::printf("%d %d %d", large, crowd.blocks, crowd.crew);
}

int main(int, char** asked) {
  mirage::AttentionArgs args{};
  args.B = std::atoi(asked[2]);
  args.max_len = std::atoi(asked[3]);
  args.Hkv = args.q_len = 1;
  args.G = 4;
  args.multiprocessors = 132;
  std::atoi(asked[1]) == 128 ? tell<128>(args) : tell<64>(args);
}
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that says which kernel a call takes, and how large blocks share it."""
    folder = tmp_path_factory.mktemp("crowds")
    made = compiled(PROGRAM, folder, "-arch=sm_90a", "-o", "rules")
    assert made.returncode == 0, made.stderr
    return folder / "rules"


def answer(rules: Path, depth: int, segments: int, length: int) -> list[int]:
    """Return whether large blocks serve a call, how many, and how many make a crew."""
    asked = [str(rules), *map(str, (depth, segments, length))]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    return [int(number) for number in said.stdout.split()]


@pytest.mark.parametrize(
    ("depth", "segments", "length", "large"),
    [
        (128, 2, 4096, True),
        (128, 3, 16384, True),
        (128, 4, 16384, False),
        (128, 7, 4096, True),
        (128, 8, 1024, False),
        (128, 16, 4096, True),
        (128, 20, 4096, False),
        (128, 32, 4096, False),
        (128, 64, 1024, False),
        (128, 66, 1024, True),
        (64, 7, 4096, True),
        (64, 12, 4096, False),
        (64, 28, 4096, False),
        (64, 32, 4096, True),
        (64, 56, 1024, False),
    ],
)
def test_the_faster_kernel_is_chosen(
    rules: Path, depth: int, segments: int, length: int, large: bool
) -> None:
    assert answer(rules, depth, segments, length)[0] == large


@pytest.mark.parametrize(
    ("depth", "segments", "length", "blocks", "crew"),
    [
        (128, 10, 16384, 130, 13),
        (128, 12, 16384, 96, 8),
        (128, 34, 4096, 102, 3),
        (64, 34, 4096, 68, 2),
    ],
)
def test_crews_are_powers_of_two_if_few_blocks_idle(
    rules: Path, depth: int, segments: int, length: int, blocks: int, crew: int
) -> None:
    assert answer(rules, depth, segments, length)[1:] == [blocks, crew]
