"""Checkpoints written by several ranks and read by others."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checkpoint.many_ranks import returned, threads
from tests.support.demo_runs import hasty_disk as hasty_disk

from cotswold.checkpoint import Checkpoint, CheckpointManager, TensorChunk, manifest
from cotswold.errors import CheckpointError, DiskFullError, RunError
from cotswold.files import open_file
from cotswold.geometry import Box
from cotswold.host import Ranks

DTYPES = [torch.bool, torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128]


@st.composite
def partitions(draw: st.DrawFn, whole: Box, cuts: int) -> list[Box]:
    """Draw boxes that make up a whole, by repeated cuts of one box."""
    parts = [whole]
    for _ in range(draw(st.integers(0, cuts)) if whole.start else 0):
        part = parts.pop(draw(st.integers(0, len(parts) - 1)))
        axis = draw(st.integers(0, len(part.start) - 1))
        at = draw(st.integers(part.start[axis], part.stop[axis]))
        stop = tuple(at if d == axis else e for d, e in enumerate(part.stop))
        start = tuple(at if d == axis else e for d, e in enumerate(part.start))
        parts += [Box(part.start, stop), Box(start, part.stop)]
    return parts


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    ends = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
    return Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    count = prod(shape) * torch.empty(0, dtype=dtype).element_size()
    highest = 2 if dtype == torch.bool else 256
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(highest, (count,), dtype=torch.uint8, generator=generator).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def spread(tensor: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Return the same values with permuted axes in memory and gaps between them."""
    room = torch.zeros([2 * tensor.shape[axis] + 1 for axis in order], dtype=tensor.dtype)
    view = room[tuple(slice(1, None, 2) for _ in order)]
    view = view.permute([order.index(axis) for axis in range(len(order))]) if order else room.reshape(())
    view.copy_(tensor)
    return view


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_ranks_write_in_any_partition_others_read_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("partition")
    writers, readers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    wholes, pieces = {}, list[list[TensorChunk]]([] for _ in range(writers))
    for name in ("w", "v"):
        shape = tuple(data.draw(st.lists(st.integers(0, 6), max_size=4)))
        wholes[name] = random_bits(shape, data.draw(st.sampled_from(DTYPES)), len(name))
        for box in data.draw(partitions(Box.whole(shape), 6)):
            part = wholes[name][box.slices]
            if data.draw(st.booleans()):
                part = spread(part, data.draw(st.permutations(range(len(shape)))))
            pieces[data.draw(st.integers(0, writers - 1))].append(TensorChunk(name, part, box, shape))
    wanted = [{name: data.draw(boxes(tuple(wholes[name].shape))) for name in wholes} for _ in range(readers)]
    orders = {name: data.draw(st.permutations(range(wholes[name].dim()))) for name in wholes}

    def read(ranks: Ranks) -> None:
        checkpoint = CheckpointManager(folder, ranks=ranks).latest().checkpoint
        assert checkpoint is not None and checkpoint.state == {"of": 0}
        for name, box in wanted[ranks.rank].items():
            part = wholes[name][box.slices]
            assert bits(checkpoint.read(name, box)).equal(bits(part))
            target = spread(torch.zeros_like(part), list(orders[name]))
            checkpoint.read_into(name, target, box)
            assert bits(target).equal(bits(part))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "cotswold.checkpoint.chunk_file._BUFFER_BYTES", data.draw(st.sampled_from([16, 48, 1 << 20]))
        )
        returned(save(folder, writers, lambda rank: iter(pieces[rank])))
        returned(threads(readers, read))


def save(
    folder: Path, size: int, pieces: Callable[[int], Iterator[TensorChunk]], step: int = 1
) -> list[Path | BaseException]:
    """Return the results or exceptions of ranks that save a checkpoint together."""
    return threads(
        size,
        lambda ranks: CheckpointManager(folder, ranks=ranks).save(
            step, pieces(ranks.rank), {"of": ranks.rank}
        ),
    )


def rows(rank: int, value: float = 0.0, count: int = 3) -> Iterator[TensorChunk]:
    """Yield a rank's row of a matrix, and a separate tensor."""
    yield TensorChunk("w", torch.full((1, 4), value + rank), Box((rank, 0), (rank + 1, 4)), (count, 4))
    yield TensorChunk(f"own {rank}", torch.full((2,), value))


def newest(folder: Path) -> Checkpoint:
    found = CheckpointManager(folder).latest()
    assert found.checkpoint is not None and found.skipped == ()
    return found.checkpoint


def all_raise(results: list[Path | BaseException], kind: type[Exception], words: str) -> None:
    """Check that every rank raised this class with these words."""
    for result in results:
        assert type(result) is kind, result
        assert words in str(result)


def test_every_rank_learns_where_the_checkpoint_is(tmp_path: Path) -> None:
    assert returned(save(tmp_path, 3, rows)) == [tmp_path / "00000001"] * 3
    assert newest(tmp_path).read("w").tolist() == [[0.0] * 4, [1.0] * 4, [2.0] * 4]
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]


def test_a_rank_may_have_nothing_to_write(tmp_path: Path) -> None:
    returned(save(tmp_path, 3, lambda rank: iter([TensorChunk("w", torch.ones(4))] if rank == 1 else [])))
    assert newest(tmp_path).read("w").tolist() == [1.0] * 4


def test_one_process_writes_what_it_has_always_written(tmp_path: Path) -> None:
    """Check the manifest of format 1 field by field, so that existing checkpoints stay readable."""
    returned(save(tmp_path, 1, lambda rank: iter([TensorChunk("w", torch.ones(2))])))
    manifest = json.loads((tmp_path / "00000001" / "manifest.json").read_text())
    assert manifest.pop("crc32") == "f8a2b7f3"
    assert manifest == {
        "format": 1,
        "step": 1,
        "identity": "",
        "state": {"of": 0},
        "pieces": [
            {
                "tensor": "w",
                "dtype": "float32",
                "shape": [2],
                "start": [0],
                "stop": [2],
                "file": "00000.safetensors",
                "bytes": 80,
                "crc32": "c599a21f",
            }
        ],
    }


def broken(rank: int) -> Iterator[TensorChunk]:
    yield from rows(rank, 7.0)
    if rank == 1:
        raise ValueError("the third piece is odd")


def test_a_piece_that_raises_on_one_rank_fails_the_save_on_all(tmp_path: Path) -> None:
    save(tmp_path, 3, rows)
    all_raise(
        save(tmp_path, 3, broken, step=2), CheckpointError, "rank 1: ValueError: the third piece is odd"
    )
    assert newest(tmp_path).step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]
    returned(save(tmp_path, 3, rows, step=2))
    assert newest(tmp_path).step == 2


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("call", ["mkdir", "write", "fsync", "rename"])
@pytest.mark.parametrize("number", range(5))
def test_a_disk_that_fills_up_on_one_rank_fails_the_save_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int, call: str, number: int
) -> None:
    save(tmp_path, 3, rows)
    real, counts, failed = getattr(os, call), dict[str, int](), []

    def failing(*arguments: object, **named: object) -> object:
        name = threading.current_thread().name
        counts[name] = counts.get(name, -1) + 1
        if name == f"rank {victim}" and counts[name] >= number:
            failed.append(name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        results = save(tmp_path, 3, lambda rank: rows(rank, 5.0), step=2)
    if not failed:  # it has no call of that number
        assert returned(results) == [tmp_path / "00000002"] * 3
        return
    all_raise(results, DiskFullError, f"rank {victim}: no room left to write {tmp_path}")
    assert not list(tmp_path.glob("*.partial"))
    before = Checkpoint(tmp_path / "00000001")
    assert before.read("w").tolist() == [[0.0] * 4, [1.0] * 4, [2.0] * 4]
    assert newest(tmp_path).step == 1 or (call, number) == ("fsync", 4)  # that of the name of the new one


def test_a_state_that_json_cannot_hold_fails_the_save_on_all(tmp_path: Path) -> None:
    results = threads(2, lambda ranks: CheckpointManager(tmp_path, ranks=ranks).save(1, {}, {"x": {1}}))
    all_raise(results, CheckpointError, "rank 0: TypeError")
    assert list(tmp_path.iterdir()) == []


def test_ranks_at_different_steps_are_told_so(tmp_path: Path) -> None:
    results = threads(
        3, lambda ranks: CheckpointManager(tmp_path, ranks=ranks).save(5 + ranks.rank // 2, {}, {})
    )
    all_raise(results, CheckpointError, "must save the same step, got [5, 5, 6]")


def test_hosts_that_do_not_share_the_directory_are_told_so(tmp_path: Path) -> None:
    results = threads(
        2, lambda ranks: CheckpointManager(tmp_path / str(ranks.rank), ranks=ranks).save(1, {}, {})
    )
    all_raise(results, CheckpointError, "rank 1: ")
    all_raise(results, CheckpointError, "on a file system that all its hosts share")


def test_a_tensor_that_two_ranks_write_is_refused(tmp_path: Path) -> None:
    results = save(tmp_path, 2, lambda rank: iter([TensorChunk("b", torch.ones(3))]))
    all_raise(results, CheckpointError, "two chunks of tensor b overlap")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_overlaps_and_gaps_are_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    parts = list(data.draw(st.lists(boxes(shape), max_size=5)))
    seen = [point for box in parts for point in box.points()]
    results = save(
        tmp_path_factory.mktemp("overlap"),
        1,
        lambda rank: (TensorChunk("w", torch.zeros(box.shape), box, shape) for box in parts),
    )
    gaps = bool(parts) and set(seen) != set(Box.whole(shape).points())
    assert isinstance(results[0], CheckpointError) == (gaps or len(set(seen)) < len(seen))


@pytest.mark.parametrize(
    "other",
    [
        TensorChunk("w", torch.ones(1), Box((1,), (2,)), (3,)),
        TensorChunk("w", torch.ones(2, dtype=torch.int32)),
    ],
)
def test_pieces_of_different_wholes_are_refused(tmp_path: Path, other: TensorChunk) -> None:
    results = save(tmp_path, 2, lambda rank: iter([other if rank else TensorChunk("w", torch.ones(2))]))
    all_raise(results, CheckpointError, "chunks of tensor w belong to different tensors")


def test_a_piece_outside_of_the_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="is not inside the whole"):
        TensorChunk("w", torch.zeros(2), Box((2,), (4,)), (3,))
    with pytest.raises(ValueError, match="is not inside the whole"):
        TensorChunk("w", torch.zeros(2), Box((0,), (2,)), (2, 1))


@pytest.mark.parametrize("file", [f"{number:05d}.safetensors" for number in range(6)] + ["manifest.json"])
def test_all_ranks_go_back_to_the_same_checkpoint_where_the_newest_is_damaged(
    tmp_path: Path, file: str
) -> None:
    for step in (1, 2):
        save(tmp_path, 3, rows, step=step)
    damaged = tmp_path / "00000002" / file
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")

    def look(ranks: Ranks) -> tuple[int, tuple[str, ...]]:
        found = CheckpointManager(tmp_path, ranks=ranks).latest()
        assert found.checkpoint is not None
        return found.checkpoint.step, found.skipped

    one, *others = returned(threads(4, look))
    assert one[0] == 1
    assert len(one[1]) == 1
    assert str(damaged) in one[1][0]
    assert others == [one] * 3


def test_opening_reads_each_file_once_however_many_ranks_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = returned(save(tmp_path, 3, rows))[0]
    read = list[str]()

    def opened(path: Path, flags: int) -> int:
        read.append(path.name)
        return open_file(path, flags)

    monkeypatch.setattr("cotswold.checkpoint.chunk_file.open_file", opened)
    returned(threads(4, lambda ranks: Checkpoint(path, ranks)))
    files = [name for name in read if name.endswith(".safetensors")]
    assert sorted(files) == [f"{number:05d}.safetensors" for number in range(6)]


def test_a_rank_of_another_run_stops_all_of_them(tmp_path: Path) -> None:
    CheckpointManager(tmp_path, identity="one").save(1, {}, {})
    identities = ["one", "other"]
    results = threads(
        2, lambda ranks: CheckpointManager(tmp_path, identity=identities[ranks.rank], ranks=ranks).latest()
    )
    for result in results:
        assert isinstance(result, RunError)
        assert "rank 1: " in str(result) and "checkpoint of another run" in str(result)


def test_ranks_that_see_different_checkpoints_of_one_name_are_told_so(tmp_path: Path) -> None:
    for rank in range(2):
        CheckpointManager(tmp_path / str(rank)).save(1, {}, {"of": rank})
    results = threads(2, lambda ranks: Checkpoint(tmp_path / str(ranks.rank) / "00000001", ranks))
    for result in results:
        assert isinstance(result, CheckpointError)
        assert "not the same checkpoint for every rank" in str(result)


def test_damage_after_opening_is_found_when_a_part_is_read(tmp_path: Path) -> None:
    save(tmp_path, 1, lambda rank: iter([TensorChunk("w", torch.arange(100.0).reshape(10, 10))]))
    found = newest(tmp_path)
    file = tmp_path / "00000001" / "00000.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # the last value, which is not asked for
    with pytest.raises(CheckpointError, match="checksum"):
        found.read("w", Box((0, 0), (1, 3)))


def test_a_piece_that_has_nothing_of_the_box_is_not_read(tmp_path: Path) -> None:
    save(tmp_path, 3, rows)
    found = newest(tmp_path)
    for file in sorted((tmp_path / "00000001").glob("*.safetensors")):
        if file.name != "00001.safetensors":  # the first of rank 1
            file.unlink()
    assert found.read("w", Box((1, 1), (2, 3))).tolist() == [[1.0, 1.0]]


def test_a_target_is_untouched_where_the_pieces_do_not_cover_the_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        manifest, "_check_chunks", lambda name, records: None
    )  # as who else may have written it
    save(tmp_path, 1, lambda rank: iter([TensorChunk("w", torch.ones(2), Box((0,), (2,)), (3,))]))
    target = torch.zeros(3)
    with pytest.raises(CheckpointError, match="do not cover"):
        newest(tmp_path).read_into("w", target)
    assert target.tolist() == [0.0] * 3


def test_saving_and_reading_take_no_more_than_a_chunk_beyond_the_tensors(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.checkpoint.memory_use", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed goes back at once
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    growth = json.loads(done.stdout)
    assert len(growth) == 6
    for what, grown in growth.items():
        assert grown < 24 << 20, (what, growth)  # a chunk has 16 MiB, the tensors 128


def test_all_ranks_go_back_where_one_cannot_take_the_newest(tmp_path: Path) -> None:
    for step in (1, 2):
        CheckpointManager(tmp_path).save(step, {"w": torch.zeros(3)}, {})

    def found(ranks: Ranks) -> tuple[int, tuple[str, ...]]:
        def take(checkpoint: Checkpoint) -> None:
            if (ranks.rank, checkpoint.step) == (1, 2):
                raise CheckpointError("its disk is gone")

        latest = CheckpointManager(tmp_path, ranks=ranks).latest(take)
        assert latest.checkpoint is not None
        return latest.checkpoint.step, latest.skipped

    assert returned(threads(3, found)) == [(1, ("rank 1: its disk is gone",))] * 3
