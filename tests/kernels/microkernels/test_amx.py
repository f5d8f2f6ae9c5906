"""AMX: its code, generated on any processor, its choice, and the permission to use it."""

from __future__ import annotations

import ctypes
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
import torch
from llvmlite import binding as llvm
from tests.support.kernels.operations import OPERATIONS, operands, run, tuning_class
from tests.support.ops.layers import PLAIN

from cotswold.kernels.compile import engine
from cotswold.kernels.machine import processor
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.microkernels.half_driver import KINDS as HALF_KINDS
from cotswold.kernels.microkernels.half_driver import write_half_kernel
from cotswold.kernels.microkernels.half_units import Units
from cotswold.kernels.microkernels.kinds import AMX_TILE, KINDS, Tile
from cotswold.kernels.products import autotune
from cotswold.kernels.products.problem import Overrides

FEATURES = "+avx512f,+avx512dq,+avx512bf16,+avx512bw,+avx512vl,+amx-tile,+amx-bf16"
ONE_THREAD = Overrides(threads=1)
AMX = Processor("avx512", "x86-64-v4", FEATURES, "x86_64-unknown-linux-gnu")


def functions(text: str) -> dict[str, list[str]]:
    """Return the instructions of each function in assembly."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        label = re.match(r"^([a-z]\w*):", line)
        if label:
            lines = found.setdefault(label[1], [])
        elif line.startswith("\t") and not line.strip().startswith("."):
            lines.append(line.split()[0])
    return found


@pytest.mark.parametrize("kind", HALF_KINDS)
def test_four_products_of_registers_share_four_loads(kind: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    units = Units.for_dtype("bfloat16", AMX, AMX_TILE)
    assert units.amx and units.paired
    found = functions(engine.assembly(write_half_kernel(KINDS[kind], units, AMX_TILE, AMX.triple), AMX))
    for name, (down, across) in {"32x2": (2, 2), "32x1": (2, 1), "16x2": (1, 2), "16x1": (1, 1)}.items():
        tile = found[f"amx_{name}"]
        assert tile.count("tdpbf16ps") == tile.count("tilestored") == down * across
        assert tile.count("tileloadd") == down * across + down + across  # sums of an earlier chunk too
    assert found["work"].count("ldtilecfg") == found["work"].count("tilerelease") == 1
    assert not [name for name, lines in found.items() if "vdpbf16ps" in lines]


def test_a_processor_with_amx_has_one_tile_for_bfloat16_and_others_for_the_rest() -> None:
    assert autotune.candidates(AMX, tuning_class(dtype="bfloat16")) == [AMX_TILE]
    for rows, entry in ((7, 64), (64, 8)):  # little work for a tile of 16 rows and 32 k
        assert AMX_TILE not in autotune.candidates(AMX, tuning_class(False, "bfloat16", rows, entry))
    for dtype in ("float32", "float64", "float16"):
        assert AMX_TILE not in autotune.candidates(AMX, tuning_class(dtype=dtype))
    assert not Units.for_dtype("bfloat16", AMX, Tile(8, 3)).amx
    for missing in ("amx-tile", "amx-bf16", "avx512bf16", "avx512bw", "avx512vl"):
        without = Processor(AMX.isa, AMX.cpu, FEATURES.replace(f"+{missing}", f"-{missing}"), AMX.triple)
        assert not without.has_amx
        assert AMX_TILE not in autotune.candidates(without, tuning_class(dtype="bfloat16"))


def test_the_only_tile_is_chosen_without_a_measurement() -> None:
    def measured(tile: Tile) -> float:
        raise AssertionError(f"{tile} is measured")

    assert autotune.choose(tuning_class(dtype="bfloat16", rows=77), AMX, measured).tile == AMX_TILE


@pytest.mark.parametrize(
    ("system", "answer", "allowed"), [("linux", 0, True), ("linux", -1, False), ("darwin", 0, False)]
)
def test_the_operating_system_is_asked_for_permission(
    monkeypatch: pytest.MonkeyPatch, system: str, answer: int, allowed: bool
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(syscall=lambda *numbers: answer))
    assert processor._may_use_amx() is allowed


def test_a_process_that_may_not_use_amx_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    known = llvm.get_host_cpu_features()
    found = llvm.FeatureMap({**known, "amx-tile": True})
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: found)
    monkeypatch.setattr(processor, "_may_use_amx", lambda: False)
    here = this_processor.__wrapped__()
    assert here is not None and not here.has_amx


def _sums(_: int = 0) -> list[float]:
    """Sums of the results of all products in bfloat16."""
    found = []
    for name in OPERATIONS:
        pair = operands(name, PLAIN, 40, torch.bfloat16)
        found.append(run(name, PLAIN, pair, ONE_THREAD).float().nan_to_num().sum().item())
    return found


def test_threads_and_forks_multiply_bfloat16_as_their_process_does() -> None:
    expected = _sums()
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(_sums, range(4))) == [expected] * 4
    for way in ("fork", "spawn"):
        with get_context(way).Pool(1) as others:
            assert others.map_async(_sums, range(2)).get(120) == [expected] * 2
