"""A stack on disk, compared with the same stack in memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cotswold import ops
from cotswold.errors import DiskFullError, MachineError
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.nn import SparseAutoencoderStack
from cotswold.training.parameters.offload import aligned
from cotswold.training.parameters.offload.row_cache import RowThreads
from cotswold.training.parameters.offload.row_files import RowFiles
from cotswold.training.parameters.offload.sparse_memory import Arena
from cotswold.training.parameters.offload.stack import OffloadedStack

RULE = ops.StepRule(rate=2.0)
PLAIN = StackGeometry(
    BlockLocal(MapShape(2, 19, 9), Window(5, 2), Window(4, 2, 1, 1), 2, 2, 3),
    Smoothing(3),
    Smoothing(3, True),
)
"""A stack of eight rows of blocks, of which at most three cover a row of the map."""
ROWS = PLAIN.filters.grid[0]


@dataclass(frozen=True)
class StackPair:
    plain: SparseAutoencoderStack
    momentum: Tensor
    streamed: OffloadedStack
    batch: Tensor
    upstream: Tensor

    def step(self, above: bool) -> tuple[ops.StackReport, ops.StackReport]:
        upstream = self.upstream if above else None
        terms = self.plain.objective_settings, RULE
        plain = ops.stack_step(
            self.plain.state(self.momentum),
            self.batch,
            self.plain.geometry,
            *terms,
            upstream=upstream,
            input_gradient=above,
        )
        return plain, self.streamed.step(self.batch, *terms, upstream=upstream, input_gradient=above)

    def written(self) -> tuple[Tensor, Tensor]:
        """Return filters and momentum from the files."""
        found = []
        for cache in (self.streamed.stream.filters, self.streamed.stream.momentum):
            cache.clear()
            for row in range(cache.files.arena.rows):
                cache.files.read(row)
            found.append(cache.files.arena.tensor.clone())
        return found[0], found[1]


def stack_pair(geometry: StackGeometry, room: int, folder: Path, threads: RowThreads) -> StackPair:
    plain = SparseAutoencoderStack(geometry, 0.1, 1e-6, seed=3, index=1)
    streamed = OffloadedStack(
        geometry,
        0.1,
        1e-6,
        3,
        1,
        folder=folder / "rows",
        names=("filters", "momentum"),
        room=room,
        threads=threads,
    )
    streamed.reset_parameters()
    streamed.zero_momentum()
    generator = torch.Generator().manual_seed(5)

    def maps(shape: MapShape) -> Tensor:
        values = torch.randn(5, shape.channels, shape.height, shape.width, generator=generator)
        return ops.images_last(values)

    batch = maps(geometry.input)
    plain.calibrate(batch)
    streamed.calibrate(batch)
    return StackPair(plain, torch.zeros_like(plain.filters), streamed, batch, maps(geometry.output))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[StackGeometry, int], StackPair]]:
    with RowThreads() as threads:
        yield lambda geometry, room: stack_pair(geometry, room, tmp_path, threads)


@st.composite
def geometries(draw: st.DrawFn) -> StackGeometry:
    size, step = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    low, high = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
    height = draw(st.integers(1, 25))
    assume(height + low + high >= size)
    shape = MapShape(draw(st.integers(1, 2)), height, 7)
    y, x = Window(size, step, low, high), Window(3, 2, 1, 0)
    filters = BlockLocal(shape, y, x, draw(st.integers(1, 2)), 2, draw(st.integers(1, 3)))
    return StackGeometry(filters, Smoothing(3, True), Smoothing(3, True))


@settings(max_examples=20, deadline=None)
@given(geometries(), st.integers(1, 10), st.lists(st.booleans(), min_size=2, max_size=3))
def test_steps_have_the_bits_of_those_in_memory_whatever_room_there_is(
    geometry: StackGeometry, room: int, aboves: list[bool]
) -> None:
    with TemporaryDirectory() as folder, RowThreads() as threads:
        both = stack_pair(geometry, room, Path(folder), threads)
        for above in aboves:
            plain, streamed = both.step(above)
            assert torch.equal(plain.loss, streamed.loss)
            if above:
                assert torch.equal(_gradient(plain), _gradient(streamed))
        filters, momentum = both.written()
        assert torch.equal(filters, both.plain.filters)
        assert torch.equal(momentum, both.momentum)
        assert torch.equal(both.plain.norms, both.streamed.norms)


def _gradient(report: ops.StackReport) -> Tensor:
    assert report.input_gradient is not None
    return report.input_gradient


def test_outputs_and_objectives_have_the_bits_of_those_in_memory(
    make: Callable[[StackGeometry, int], StackPair],
) -> None:
    both = make(PLAIN, 5)
    both.step(above=False)
    with torch.no_grad():
        assert torch.equal(both.plain(both.batch), both.streamed(both.batch))
        found, expected = (each.objective_parts(both.batch) for each in (both.streamed, both.plain))
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        both.plain.eval()
        both.streamed.eval()
        assert torch.equal(both.plain.norms, both.streamed.norms)
        assert torch.equal(both.plain(both.batch), both.streamed(both.batch))


def test_a_sweep_reads_only_what_the_one_before_has_not_left_in_memory(
    make: Callable[[StackGeometry, int], StackPair], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, read = make(PLAIN, 6), _noted(monkeypatch, "read")
    with torch.no_grad():
        for _ in range(4):
            read.clear()
            both.streamed(both.batch)
            assert len(read) == ROWS - 6


def test_no_more_rows_are_in_memory_than_there_is_room_for(
    make: Callable[[StackGeometry, int], StackPair], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, held, most = make(PLAIN, 6), set[int](), [0]
    both.streamed.stream.filters.clear()
    read, drop = RowFiles.read, Arena.drop

    def reading(files: RowFiles, row: int) -> None:
        if files is both.streamed.rows:
            held.add(row)
            most[0] = max(most[0], len(held))
        read(files, row)

    def dropping(arena: Arena, row: int) -> None:
        if arena is both.streamed.rows.arena:
            held.discard(row)
        drop(arena, row)

    monkeypatch.setattr(RowFiles, "read", reading)
    monkeypatch.setattr(Arena, "drop", dropping)
    both.step(above=True)
    assert most == [6]


def test_an_update_reads_momentum_once_and_writes_everything_once(
    make: Callable[[StackGeometry, int], StackPair], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = make(PLAIN, 5)
    both.step(above=True)
    both.streamed.stream.settle()
    both.streamed.stream.momentum.clear()
    read, written = _noted(monkeypatch, "read"), _noted(monkeypatch, "write")
    # a row whose place is needed before it is written keeps its place, and another one is read again
    monkeypatch.setattr(both.streamed.stream.filters._threads.writers, "submit", _at_once)
    both.step(above=True)
    both.streamed.stream.settle()
    momenta = [("momentum", row) for row in range(ROWS)]
    assert sorted(written) == [("filters", row) for row in range(ROWS)] + momenta
    assert sorted(one for one in read if one[0] == "momentum") == momenta
    assert len(read) == ROWS + 2 * (ROWS - 5)


def _at_once(do: Callable[[int], None], row: int) -> Future[None]:
    """Run a task at once, like an idle executor."""
    done: Future[None] = Future()
    do(row)
    done.set_result(None)
    return done


def _noted(monkeypatch: pytest.MonkeyPatch, verb: str) -> list[tuple[str, int]]:
    """Return a list of the rows that files read or write from now on."""
    noted: list[tuple[str, int]] = []
    plainly: Callable[[RowFiles, int], None] = getattr(RowFiles, verb)

    def noting(files: RowFiles, row: int) -> None:
        noted.append((files.name, row))
        plainly(files, row)

    monkeypatch.setattr(RowFiles, verb, noting)
    return noted


def test_a_row_that_cannot_be_read_is_named(make: Callable[[StackGeometry, int], StackPair]) -> None:
    both = make(PLAIN, 5)
    both.streamed.stream.settle()
    both.streamed.stream.filters.clear()
    lost = both.streamed.rows.folder / "filters.00003.safetensors"
    lost.unlink()
    with pytest.raises(MachineError, match=r"filters\.00003\.safetensors cannot be read"), torch.no_grad():
        both.streamed(both.batch)


def test_a_row_that_cannot_be_written_stops_the_run_at_the_latest_when_it_is_saved(
    make: Callable[[StackGeometry, int], StackPair], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = make(PLAIN, ROWS)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(aligned.AlignedFile, "write", full)
    both.streamed.stream.filters.take(0)
    both.streamed.stream.filters.release(0, is_changed=True)
    with pytest.raises(DiskFullError, match="no room left"):
        both.streamed.stream.settle()


@pytest.mark.parametrize("sweeps", [0, 1])
def test_a_stack_is_calibrated_and_comes_to_rest_whichever_way_the_last_sweep_went(
    make: Callable[[StackGeometry, int], StackPair], sweeps: int
) -> None:
    both = make(PLAIN, 5)
    both.step(above=False)
    with torch.no_grad():
        for _ in range(sweeps):
            both.streamed(both.batch)
    both.streamed.calibrate(both.batch)
    both.streamed.zero_momentum()
    _, momentum = both.written()
    assert int(momentum.count_nonzero()) == 0
