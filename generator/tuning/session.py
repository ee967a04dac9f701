"""A tuning's measurements in order, kernel by kernel; then the catalog's section."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.tuning.catalog import Section, overall_correlation
from mirage_kernels.generator.tuning.files import read
from mirage_kernels.generator.tuning.kernel import PEERS_SECONDS, KernelTuning
from mirage_kernels.generator.tuning.manifest import Compiled, Manifest
from mirage_kernels.generator.tuning.process import Measurer
from mirage_kernels.generator.tuning.results import Results


@dataclass
class Tuning:
    """What is to be measured, what has been, and who measures."""

    manifest: Manifest
    results: Results
    measurer: Measurer
    command: str
    begun: bool = False  # whether the measurer has said where it runs

    def measure(self, progress: Progress) -> None:
        """Measure all that has not been; needs no GPU when everything has."""
        kernels = self.manifest.kernels
        for done, kernel in enumerate(kernels):
            progress(Event("measure", done, len(kernels), kernel.key.name))
            self.of(kernel).measure()
        progress(Event("measure", len(kernels), len(kernels), "done"))

    def of(self, kernel: Compiled) -> KernelTuning:
        """Return the tuning of one kernel."""
        return KernelTuning(kernel, self.results, self._ask)

    def whole(self) -> Tuning:
        """Return the tuning of those kernels of which enough has been measured."""
        kernels = tuple(k for k in self.manifest.kernels if self.of(k).is_whole())
        return replace(self, manifest=replace(self.manifest, kernels=kernels))

    def section(self) -> Section:
        """Return the catalog's section of what was measured.

        Raises ToolchainError where no candidate of any kernel could be measured.
        """
        made = (self.of(kernel).tuned() for kernel in self.manifest.kernels)
        kernels = tuple(t for t in made if t.buckets)
        if not kernels:
            raise ToolchainError(
                "no candidate could be measured", "measured.json and manifest.json say why of each"
            )
        here = (self.manifest.arch, self.results.known.environment)
        return Section(*here, overall_correlation(kernels), kernels)

    def _ask(self, question: dict[str, Json], seconds: float) -> dict[str, Json]:
        """Ask the worker; the first question of a tuning is where it runs."""
        if not self.begun:
            here = self.measurer.ask({"environment": self.command}, seconds=PEERS_SECONDS)
            if "failed" in here:
                raise ToolchainError(str(here["failed"]), "`mirage-kernels doctor` says more")
            self.results.begin(read(dict[str, str], here["environment"]))
            self.begun = True
        return self.measurer.ask(question, seconds=seconds)
