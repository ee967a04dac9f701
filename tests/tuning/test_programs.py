"""Programs of a generated folder are tuned: candidates, their calls, what the worker measures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mirage_kernels.generator.bench.measure import Clock
from mirage_kernels.generator.bench.workloads import programs as calls
from mirage_kernels.generator.bench.workloads.programs import ProgramBuffers, ProgramCall, distance
from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.recipe import Shape, load_recipe
from mirage_kernels.generator.records.folder import emitted, write
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general import GeneralKnobs
from mirage_kernels.generator.tuning.catalog import (
    CATALOG,
    Bucket,
    Catalog,
    Chosen,
    Section,
    Tried,
    Tuned,
    write_catalog,
    write_file,
)
from mirage_kernels.generator.tuning.measurements import UNMEASURED, Results, bucketed_calls
from mirage_kernels.generator.tuning.programs import (
    generated_records,
    is_generated,
    program_candidates,
)
from mirage_kernels.generator.tuning.session import Tuning
from mirage_kernels.generator.tuning.worker import Worker
from mirage_kernels.program_library import ProgramKernel

ROWS = '''
from mirage_kernels.recipes import recipe


@recipe(inputs={"x": "M K", "g": "K"}, outputs="M K", shapes=[])
def scaled(x, g):
    """x * g / sum(x * x)"""
'''
