"""How a call of attention is cut: what the host's rules answer for 132 multiprocessors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from compilers import compiled

PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "tile/attention/launch_heuristic.cuh"

template <int kDepth_>
struct Large {
  static constexpr int kRows = 8, kDepth = kDepth_, kWarps = 8, kBlocks = 1;
};

struct Small {
  static constexpr int kRows = 8, kWarps = 4, kBlocks = 2, kDynamic = 1;
};

template <int kDepth>
void tell(const mirage::AttentionArgs& args) {
  const auto shape = mirage::tile::launch_shape_of<Large<kDepth>>(args);
  const bool large = mirage::tile::has_few_work_tiles<8, kDepth>(args);
  const bool many = mirage::tile::has_many_work_tiles<Small>(args);
  std::printf("%d %d %d %d", large, shape.blocks, shape.cluster, many);
}

int main(int, char** asked) {
  mirage::AttentionArgs args{};
  args.first_window = -1;
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


def answer(rules: Path, depth: int, work_tiles: int, length: int) -> list[int]:
    """Return if large blocks serve a call, how many, of a cluster; if small ones claim."""
    asked = [str(rules), *map(str, (depth, work_tiles, length))]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    return [int(number) for number in said.stdout.split()]


# Depth, work tiles and length of calls that large blocks serve, and of those that they do not.
LARGE = [(128, 2, 4096), (128, 3, 16384), (128, 7, 4096), (128, 16, 4096), (128, 66, 1024)]
LARGE += [(64, 7, 4096), (64, 32, 4096)]
SMALL = [(128, 4, 16384), (128, 8, 1024), (128, 20, 4096), (128, 32, 4096), (128, 64, 1024)]
SMALL += [(64, 12, 4096), (64, 28, 4096), (64, 56, 1024)]


@pytest.mark.parametrize(
    ("call", "large"), [*((c, True) for c in LARGE), *((c, False) for c in SMALL)]
)
def test_the_faster_kernel_is_chosen(rules: Path, call: tuple[int, int, int], large: bool) -> None:
    assert answer(rules, *call)[0] == large


@pytest.mark.parametrize(
    ("depth", "work_tiles", "length", "blocks", "cluster"),
    [
        (128, 10, 16384, 130, 13),
        (128, 12, 16384, 96, 8),
        (128, 34, 4096, 102, 3),
        (64, 34, 4096, 68, 2),
    ],
)
def test_clusters_are_powers_of_two_if_few_blocks_idle(
    rules: Path, depth: int, work_tiles: int, length: int, blocks: int, cluster: int
) -> None:
    assert answer(rules, depth, work_tiles, length)[1:3] == [blocks, cluster]


@pytest.mark.parametrize(
    ("work_tiles", "length", "many"),
    [
        (512, 4096, True),
        (512, 1024, True),  # two work_tiles to a block
        (1024, 1024, True),
        (1024, 496, False),  # too short to claim the next one in time
        (256, 4096, False),  # one segment to a block
        (300, 4096, False),  # some blocks would have two, most only one
        (1 << 24, 1024, False),  # more than are counted
    ],
)
def test_many_equal_work_tiles_are_claimed_one_by_one(
    rules: Path, work_tiles: int, length: int, many: bool
) -> None:
    assert answer(rules, 128, work_tiles, length)[3] == many
