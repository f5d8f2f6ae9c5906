from __future__ import annotations

import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from llvmlite import ir
from tests.support.kernels.operations import (
    KERNELS,
    OPERATIONS,
    forced,
    operands,
    run,
    same_bits,
    tuning_class,
)
from tests.support.ops.layers import WIDE

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.compile import code_cache, library
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.microkernels.kinds import Tile
from cotswold.kernels.products import autotune, compiled
from cotswold.kernels.products import run as kernels
from cotswold.kernels.products.autotune import TuningKey
from cotswold.kernels.products.prepare import Execution, PreparedProduct
from cotswold.kernels.products.problem import Overrides, Problem

SHAPE = TuningKey.from_shape("product", "float32", 128, 1200, 60, False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of this test, with empty caches in the process."""
    monkeypatch.setenv("COTSWOLD_CACHE", str(tmp_path / "cache"))
    code_cache._WARNED_DIRECTORIES.clear()
    forget(monkeypatch)
    return tmp_path / "cache"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the caches, as in a new process."""
    monkeypatch.setattr(autotune, "_CHOICES", {})
    monkeypatch.setattr(library, "_ADDRESSES", {})
    kernels.READY.clear()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the compiled kernels."""
    found: list[str] = []
    usual = library._compile

    def noted(name: tuple[object, ...], processor: Processor, write: partial[ir.Module]) -> bytes:
        found.append(" ".join(map(str, name)))
        return usual(name, processor, write)

    monkeypatch.setattr(library, "_compile", noted)
    return found


class Clock:
    """Measurements of made-up durations."""

    def __init__(self, fastest: Tile, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.01) -> None:
        self.fastest, self.seconds, self.now = fastest, seconds, 0.0
        self.measured: list[Tile] = []
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        # compiling is not what is tested
        monkeypatch.setattr(compiled, "kernel", lambda *_: 0)

    def __call__(self, tile: Tile) -> float:
        self.measured.append(tile)
        took = self.seconds * (1 if tile == self.fastest else 2)
        self.now += took
        return took


def host() -> Processor:
    here = this_processor()
    assert here is not None
    return here


@pytest.mark.usefixtures("cache")
def test_the_fastest_tile_is_chosen_measured_once_and_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = autotune.candidates(host(), tuning_class(False))
    clock = Clock(tiles[-1], monkeypatch)
    first = autotune.choose(SHAPE, host(), clock)
    assert first.tile == tiles[-1]
    assert first.seconds.keys() == {str(one) for one in tiles}
    count = len(clock.measured)
    assert set(clock.measured) == set(tiles)
    assert autotune.choose(SHAPE, host(), clock) is first
    monkeypatch.setattr(autotune, "_CHOICES", {})
    again = autotune.choose(SHAPE, host(), clock)
    assert again.tile == first.tile and again.reason != first.reason
    assert len(clock.measured) == count


def test_a_damaged_choice_is_measured_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = autotune.candidates(host(), tuning_class(False))
    clock = Clock(tiles[-1], monkeypatch)
    autotune.choose(SHAPE, host(), clock)
    (file,) = cache.glob("*.json")
    file.write_bytes(file.read_bytes()[:-3])
    monkeypatch.setattr(autotune, "_CHOICES", {})
    clock.fastest = tiles[0]
    assert autotune.choose(SHAPE, host(), clock).tile == tiles[0]
    monkeypatch.setattr(autotune, "_CHOICES", {})
    assert autotune.choose(SHAPE, host(), clock).tile == tiles[0]


@pytest.mark.usefixtures("cache")
def test_a_choice_that_is_no_longer_a_candidate_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = autotune.candidates(host(), tuning_class(False))
    clock = Clock(tiles[0], monkeypatch)
    autotune.choose(SHAPE, host(), clock)
    monkeypatch.setattr(autotune, "_CHOICES", {})
    monkeypatch.setattr(autotune, "candidates", lambda *_: [Tile(2, 2)])
    assert autotune.choose(SHAPE, host(), clock).tile == Tile(2, 2)


class Busy:
    """Measurements on a machine that is busy until it is idle, and a wall clock."""

    def __init__(self, fastest: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fastest, self.busy, self.calls, self.runs = fastest, True, 0, 0
        self.now = 1e9
        monkeypatch.setattr("time.time", lambda: self.now)
        monkeypatch.setattr(compiled, "kernel", lambda *_: 0)
        monkeypatch.setattr(autotune, "SECONDS_LEAST", 0.0)
        self.patch = monkeypatch

    def __call__(self, tile: Tile) -> float:
        self.calls += 1
        # others take the processor now and then, from the fastest tile more than from the rest
        disturbed = self.busy and (tile == self.fastest or self.calls % 2)
        return (1.0 if tile == self.fastest else 1.5) * (1.8 + self.calls % 3 if disturbed else 1)

    def chosen_by_another_process(self) -> Tile:
        self.patch.setattr(autotune, "_CHOICES", {})
        before = self.calls
        found = autotune.choose(SHAPE, host(), self).tile
        self.runs += self.calls > before
        return found


@pytest.mark.usefixtures("cache")
def test_a_choice_of_a_busy_machine_is_measured_again_later_and_the_right_one_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles = autotune.candidates(host(), tuning_class(False))
    clock = Busy(tiles[-1], monkeypatch)
    assert clock.chosen_by_another_process() != tiles[-1]
    clock.now += autotune.RETUNE_SECONDS / 2
    clock.chosen_by_another_process()
    assert clock.runs == 1  # too soon: it is as busy as before
    clock.now += autotune.RETUNE_SECONDS
    clock.busy = False
    for _ in range(3):
        assert clock.chosen_by_another_process() == tiles[-1]
        clock.now += 2 * autotune.RETUNE_SECONDS
    assert clock.runs == 2  # what was measured in peace stays


@pytest.mark.usefixtures("cache")
def test_a_machine_that_is_always_busy_is_measured_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Busy(autotune.candidates(host(), tuning_class(False))[-1], monkeypatch)
    for _ in range(3 * autotune.MEASURED_MOST):
        clock.chosen_by_another_process()
        clock.now += 2 * autotune.RETUNE_SECONDS
    assert clock.runs == autotune.MEASURED_MOST


def test_little_work_is_not_measured(measured: list[str]) -> None:
    layer = BlockLocal(MapShape(2, 4, 4), Window(3), Window(3), rows=1, columns=1, depth=3)
    run("product", layer, operands("product", layer, 20, torch.float32))
    assert measured == []


@pytest.mark.usefixtures("cache")
def test_measuring_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(autotune.candidates(host(), tuning_class(False))[-1], monkeypatch, seconds=1.0)
    autotune.choose(SHAPE, host(), clock)
    # every candidate once; the rest only as long as there is time
    assert len(clock.measured) <= len(autotune.candidates(host(), tuning_class(False)))


@pytest.fixture
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load kernels from the cache, but not choices, and measure quickly."""
    usual = code_cache.load
    monkeypatch.setattr(code_cache, "load", lambda name: None if name.endswith(".json") else usual(name))
    monkeypatch.setattr(autotune, "SECONDS_MOST", 0.0)
    forget(monkeypatch)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the measured classes."""
    found: list[str] = []
    usual = autotune._measure

    def noted(shape: TuningKey, *rest: object) -> autotune.Choice:
        found.append(shape.name)
        return usual(shape, *rest)  # type: ignore[arg-type]  # handed on

    monkeypatch.setattr(autotune, "_measure", noted)
    return found


@pytest.mark.usefixtures("_unmeasured")
@pytest.mark.parametrize(("operation", "few"), KERNELS)
def test_measuring_leaves_the_right_result(operation: str, few: bool | None, measured: list[str]) -> None:
    layer = BlockLocal(MapShape(16, 12, 12), Window(5, 1), Window(5, 1), rows=1, columns=1, depth=24)
    assert layer.product_flops * 40 > autotune.WORTH_FLOPS
    pair = operands(operation, layer, 40, torch.float32)
    found = run(operation, layer, pair, Overrides(small_batch=few))
    assert len(measured) == 1
    assert same_bits(found, run(operation, layer, pair, forced(8, 3, few=False)))


MIDDLING = BlockLocal(MapShape(8, 16, 16), Window(5, 1), Window(5, 1), rows=2, columns=2, depth=8)
"""A layer of 32 neurons per block, worth measuring from a few images on."""


@pytest.mark.usefixtures("_unmeasured")
@pytest.mark.parametrize("others", [(64, 48, 128), (97, 33)], ids=["whole vectors", "odd"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_another_batch_compiles_nothing(operation: str, others: tuple[int, ...]) -> None:
    run(operation, MIDDLING, operands(operation, MIDDLING, 96, torch.float32))
    loaded = set(library._ADDRESSES)
    assert loaded
    for images in others:
        run(operation, MIDDLING, operands(operation, MIDDLING, images, torch.float32))
    assert {" ".join(map(str, name)) for name, _ in set(library._ADDRESSES) - loaded} == set()


@pytest.mark.usefixtures("_unmeasured")
@pytest.mark.parametrize("operation", ["product", "adjoint"])
def test_another_batch_measures_nothing_where_its_size_makes_no_difference(
    operation: str, measured: list[str]
) -> None:
    for images in (96, 64, 48, 128):
        run(operation, MIDDLING, operands(operation, MIDDLING, images, torch.float32))
    assert len(measured) == 1


def test_a_damaged_object_is_compiled_anew(
    cache: Path, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = operands("adjoint", WIDE, 9, torch.float32)
    written.clear()
    expected = run("adjoint", WIDE, pair, forced(2, 3))
    (file,) = cache.glob("adjoint*.o")
    whole = file.read_bytes()
    for spoilt in (whole[:1000], whole[:200] + b"\xff" + whole[201:]):
        file.write_bytes(spoilt)
        forget(monkeypatch)
        assert same_bits(run("adjoint", WIDE, pair, forced(2, 3)), expected)
        assert file.read_bytes() == whole
    assert len(written) == 3
    forget(monkeypatch)
    assert same_bits(run("adjoint", WIDE, pair, forced(2, 3)), expected)
    assert len(written) == 3


def test_kernels_work_without_a_writable_cache(cache: Path) -> None:
    cache.write_bytes(b"a file")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pair = operands("adjoint", WIDE, 9, torch.float32)
        found = [run("adjoint", WIDE, pair, forced(rows, 1)) for rows in (1, 2, 3)]
    assert same_bits(found[0], found[1]) and same_bits(found[0], found[2])
    assert [one.category for one in told] == [RuntimeWarning]


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon"])
def test_candidates_fit_the_registers(isa: str, narrow: bool) -> None:
    processor = Processor(isa, "any", "", "any")
    for one in autotune.candidates(processor, tuning_class(narrow)):
        # sums, vectors of B and a number of A
        assert one.rows * one.vectors + one.vectors < processor.registers


def test_near_shapes_share_a_class() -> None:
    near = TuningKey.from_shape("product", "float32", 128, 1100, 62, False)
    assert TuningKey.from_shape("product", "float32", 128, 1200, 60, False) == near
    assert TuningKey.from_shape("product", "float32", 128, 1200, 60, True) != near


@pytest.mark.usefixtures("cache")
def test_a_fork_and_other_threads_do_not_wait_for_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = autotune.candidates(host(), tuning_class(False))
    clock, began, end = Clock(tiles[-1], monkeypatch), threading.Event(), threading.Event()
    children: list[int] = []

    def slow(tile: Tile) -> float:
        began.set()
        assert end.wait(30)
        return clock(tile)

    with ThreadPoolExecutor(1) as pool:
        measuring = pool.submit(autotune.choose, SHAPE, host(), slow)
        assert began.wait(30)
        try:
            meanwhile = autotune.choose(SHAPE, host(), slow)
            assert meanwhile.tile == tiles[0] and meanwhile.is_provisional  # the default
            child = os.fork()
            if child == 0:  # which has no such thread, and measures itself
                os._exit(0 if autotune.choose(SHAPE, host(), clock).reason == "measured now" else 1)
            children.append(os.waitpid(child, 0)[1])
        finally:
            end.set()
        assert measuring.result(30).tile == tiles[-1]
    assert children == [0]
    found = autotune.choose(SHAPE, host(), clock)
    assert found.tile == tiles[-1] and not found.is_provisional


@pytest.mark.usefixtures("_unmeasured")
def test_a_product_prepared_while_another_thread_measures_has_the_best_tile_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles = autotune.candidates(host(), tuning_class(False))
    began, end, alone = threading.Event(), threading.Event(), Overrides(threads=1)
    measured, other = (operands("adjoint", MIDDLING, images, torch.float32) for images in (96, 64))
    used: list[Tile] = []
    usual = kernels._prepare_with_tile

    def measure(*_: object) -> autotune.Choice:
        began.set()
        assert end.wait(30)
        return autotune.Choice(tiles[-1], "measured now", {})

    def noted(problem: Problem, how: Execution) -> PreparedProduct:
        used.append(how.tile)
        return usual(problem, how)

    monkeypatch.setattr(autotune, "_measure", measure)
    monkeypatch.setattr(kernels, "_prepare_with_tile", noted)
    with ThreadPoolExecutor(1) as pool:
        measuring = pool.submit(run, "adjoint", MIDDLING, measured, alone)
        assert began.wait(30)
        try:
            first = run("adjoint", MIDDLING, other, alone)
        finally:
            end.set()
        measuring.result(30)
    assert same_bits(run("adjoint", MIDDLING, other, alone), first)
    run("adjoint", MIDDLING, other, alone)  # prepared already
    assert used == [tiles[0], tiles[-1], tiles[-1]], "the default, what was measured, and that again"


@pytest.mark.usefixtures("cache")
def test_each_number_of_threads_has_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, two = (
        TuningKey.from_shape("product", "float32", 128, 1200, 60, False, threads) for threads in (1, 2)
    )
    tiles = autotune.candidates(host(), tuning_class(False))
    clock = Clock(tiles[-1], monkeypatch)
    assert autotune.choose(alone, host(), clock).tile == tiles[-1]
    clock.fastest = tiles[0]
    assert autotune.choose(two, host(), clock).tile == tiles[0]
    monkeypatch.setattr(autotune, "_CHOICES", {})
    assert [autotune.choose(one, host(), clock).tile for one in (alone, two)] == [tiles[-1], tiles[0]]
