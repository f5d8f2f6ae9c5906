"""Checkpoints are read bit for bit, or rejected with a reason."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from cotswold.checkpoint import Checkpoint, CheckpointManager, TensorChunk
from cotswold.errors import CheckpointError, DiskFullError, MismatchError, RunError
from cotswold.geometry import Box

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.complex64,
    torch.complex128,
]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return (
        one.contiguous().reshape(-1).view(torch.uint8).equal(other.contiguous().reshape(-1).view(torch.uint8))
    )


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    size = torch.empty(shape, dtype=dtype)
    bits = torch.randint(
        0,
        2 if dtype == torch.bool else 256,
        (size.numel() * size.element_size(),),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(seed),
    )
    return bits.view(dtype).reshape(shape)


def newest(checkpoints: CheckpointManager) -> Checkpoint:
    found = checkpoints.latest()
    assert found.checkpoint is not None
    assert found.skipped == ()
    return found.checkpoint


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)], ids=str)
def test_a_tensor_of_any_type_and_shape_comes_back_bit_for_bit(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = random_bits(shape, dtype)
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save(1, {"a/tensor .. é": tensor}, {})
    assert same_bits(newest(checkpoints).read("a/tensor .. é"), tensor)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.permute(3, 2, 0, 1),  # images last
        lambda x: x[:, 1:, ::2],
        lambda x: x[0, 0, 0, ::7],  # one value
        lambda x: x[0, 0, 0, 0].expand(3, 4),
        lambda x: torch.nn.Parameter(x),
    ],
)
def test_a_tensor_with_any_strides_comes_back_the_same(
    tmp_path: Path, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    tensor = view(torch.randn(4, 5, 6, 7))
    CheckpointManager(tmp_path).save(1, {"x": tensor}, {})
    assert torch.equal(newest(CheckpointManager(tmp_path)).read("x"), tensor)


def test_a_tensor_of_many_chunks_comes_back_bit_for_bit(tmp_path: Path) -> None:
    tensor = random_bits((9_000_001,), torch.int32)  # 36 MB, with a remainder
    CheckpointManager(tmp_path).save(1, {"x": tensor}, {})
    assert same_bits(newest(CheckpointManager(tmp_path)).read("x"), tensor)


def test_the_files_are_safetensors_that_the_library_reads(tmp_path: Path) -> None:
    tensors = {
        "w": torch.randn(3, 4),
        "α": torch.tensor(0.5, dtype=torch.float64),
        "b": torch.ones(2, dtype=torch.bool),
    }
    path = CheckpointManager(tmp_path).save(1, tensors, {})
    read = {name: value for file in path.glob("*.safetensors") for name, value in load_file(file).items()}
    assert read.keys() == tensors.keys()
    assert all(same_bits(read[name], tensors[name]) for name in tensors)


def test_the_state_comes_back_exactly(tmp_path: Path) -> None:
    state = {"epoch": 3, "rate": 0.1 + 0.2, "large": 2**80, "order": [1, None, True], "ü": {"best": 1e-300}}
    CheckpointManager(tmp_path).save(7, {}, state)
    found = newest(CheckpointManager(tmp_path))
    assert (found.step, found.state, found.names) == (7, state, [])


def test_tensors_are_read_in_place_without_changing_where_they_lie(tmp_path: Path) -> None:
    source = torch.randn(4, 6)
    CheckpointManager(tmp_path).save(1, {"w": source}, {})
    parameter = torch.nn.Parameter(torch.zeros(4, 6))
    strided = torch.zeros(6, 4).T
    address = parameter.data_ptr()
    newest(CheckpointManager(tmp_path)).read_into("w", parameter)
    newest(CheckpointManager(tmp_path)).read_into("w", strided)
    assert torch.equal(parameter, source) and torch.equal(strided, source)
    assert parameter.data_ptr() == address and parameter.requires_grad


@pytest.mark.parametrize("target", [torch.zeros(4, 5), torch.zeros(4, 6, dtype=torch.float64)])
def test_a_tensor_of_another_shape_or_type_is_refused(tmp_path: Path, target: torch.Tensor) -> None:
    CheckpointManager(tmp_path).save(1, {"w": torch.randn(4, 6)}, {})
    with pytest.raises(CheckpointError, match=r"tensor w is torch\.float32 .* another network"):
        newest(CheckpointManager(tmp_path)).read_into("w", target)


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    CheckpointManager(tmp_path).save(1, {"w": torch.zeros(1)}, {})
    with pytest.raises(CheckpointError, match="no tensor v"):
        newest(CheckpointManager(tmp_path)).read("v")


cuts = st.lists(st.integers(0, 7), max_size=3).map(lambda inner: sorted({0, 7, *inner}))


@given(
    cuts,
    cuts,
    st.tuples(st.integers(0, 7), st.integers(0, 7)),
    st.tuples(st.integers(0, 7), st.integers(0, 7)),
)
def test_any_box_can_be_read_however_the_tensor_was_cut(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[int],
    columns: list[int],
    one: tuple[int, int],
    other: tuple[int, int],
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole = torch.arange(49.0).reshape(7, 7)
    grid = [Box((a, c), (b, d)) for a, b in pairwise(rows) for c, d in pairwise(columns)]
    CheckpointManager(folder).save(1, (TensorChunk("w", whole[box.slices], box, (7, 7)) for box in grid), {})
    wanted = Box(
        (min(one[0], other[0]), min(one[1], other[1])), (max(one[0], other[0]), max(one[1], other[1]))
    )
    assert torch.equal(newest(CheckpointManager(folder)).read("w", wanted), whole[wanted.slices])


def test_pieces_that_leave_a_hole_are_refused(tmp_path: Path) -> None:
    pieces = [TensorChunk("w", torch.zeros(2), Box((start,), (start + 2,)), (6,)) for start in (0, 4)]
    with pytest.raises(CheckpointError, match="chunks of tensor w do not cover"):
        CheckpointManager(tmp_path).save(1, pieces, {})
    assert list(tmp_path.iterdir()) == []


def test_pieces_are_asked_for_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "00000001.partial"

    def pieces() -> Iterator[TensorChunk]:
        for number in range(3):
            assert len(list(folder.iterdir())) == number  # the one before is on disk
            yield TensorChunk(str(number), torch.zeros(1))

    CheckpointManager(tmp_path).save(1, pieces(), {})


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    checkpoints = CheckpointManager(tmp_path, keep=2)
    for step in (1, 20, 300, 4000):
        checkpoints.save(step, {}, {})
    assert [path.name for path in checkpoints.paths()] == ["00000300", "00004000"]
    assert newest(checkpoints).step == 4000


def test_steps_are_ordered_as_numbers_however_large(tmp_path: Path) -> None:
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save(99_999_999, {}, {})
    checkpoints.save(100_000_000, {}, {})
    assert newest(checkpoints).step == 100_000_000


def test_the_same_step_again_replaces_the_first(tmp_path: Path) -> None:
    checkpoints = CheckpointManager(tmp_path, keep=2)
    checkpoints.save(1, {}, {})
    for attempt in range(3):
        checkpoints.save(5, {}, {"attempt": attempt})
        assert newest(checkpoints).state == {"attempt": attempt}
    assert [checkpoints.load(path).step for path in checkpoints.paths()] == [1, 5]


def test_checkpoints_of_a_future_that_was_not_taken_up_are_removed(tmp_path: Path) -> None:
    checkpoints = CheckpointManager(tmp_path, keep=2)
    checkpoints.save(10, {}, {})
    damaged = checkpoints.save(20, {}, {})
    (damaged / "manifest.json").unlink()
    checkpoints.save(15, {}, {})
    assert [path.name for path in checkpoints.paths()] == ["00000010", "00000015"]


def test_what_cannot_be_removed_fails_no_save_and_goes_at_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        (path / "manifest.json").unlink(missing_ok=True)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    checkpoints = CheckpointManager(tmp_path, keep=1)
    checkpoints.save(1, {}, {})
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refuse)
        for step in (2, 1, 2):  # also where what is left has the name of the next
            with pytest.warns(RuntimeWarning, match="cannot be removed .Operation not permitted."):
                checkpoints.save(step, {}, {"step": step})
            assert newest(checkpoints).state == {"step": step}
            assert len(checkpoints.paths()) == 1
    checkpoints.save(3, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["00000003"]


def test_a_folder_that_cannot_be_renamed_fails_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = CheckpointManager(tmp_path, keep=1)
    old = checkpoints.save(1, {}, {})
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path == old:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.warns(RuntimeWarning, match="00000001, which is no longer needed, cannot be removed"):
        checkpoints.save(2, {}, {})
    assert [checkpoints.load(path).step for path in checkpoints.paths()] == [1, 2]


def test_an_empty_folder_has_no_latest(tmp_path: Path) -> None:
    assert CheckpointManager(tmp_path / "none").latest() == (None, ())


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a flipped bit": flip_a_bit,
    "a lost end": lambda path: os.truncate(path, path.stat().st_size - 1),
    "an empty file": lambda path: os.truncate(path, 0),
    "a lost file": Path.unlink,
    "one byte more": lambda path: rewrite(path, path.read_bytes() + b"!"),
    "nonsense": lambda path: rewrite(path, b"\xff" * path.stat().st_size),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["00000.safetensors", "manifest.json"])
def test_a_damaged_newest_is_skipped_with_a_word(tmp_path: Path, file: str, damage: str) -> None:
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save(1, {"w": torch.full((100,), 1.0)}, {})
    path = checkpoints.save(2, {"w": torch.full((100,), 2.0)}, {"position": 123456})
    DAMAGES[damage](path / file)
    found = checkpoints.latest()
    assert found.checkpoint is not None
    assert found.checkpoint.step == 1
    assert torch.equal(found.checkpoint.read("w"), torch.full((100,), 1.0))
    assert len(found.skipped) == 1
    assert str(path / file) in found.skipped[0]


def test_any_flipped_bit_of_a_manifest_is_found(tmp_path: Path) -> None:
    path = CheckpointManager(tmp_path).save(1, {"w": torch.zeros(1)}, {"position": 123456}) / "manifest.json"
    sound = path.read_bytes()
    manifest = json.loads(sound)
    for place in range(len(sound)):
        spoilt = bytearray(sound)
        spoilt[place] ^= 1 << place % 8
        path.write_bytes(spoilt)
        try:
            read = Checkpoint(path.parent)
        except CheckpointError:
            continue
        assert json.loads(bytes(spoilt)) == manifest  # white space for white space
        assert read.state == {"position": 123456}


def test_damage_after_opening_is_found_when_the_tensor_is_read(tmp_path: Path) -> None:
    path = CheckpointManager(tmp_path).save(1, {"w": torch.zeros(100)}, {})
    found = newest(CheckpointManager(tmp_path))
    flip_a_bit(path / "00000.safetensors")
    with pytest.raises(CheckpointError, match="checksum"):
        found.read("w")


def test_if_all_are_damaged_that_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    for step in (1, 2):
        (CheckpointManager(tmp_path).save(step, {}, {}) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged: .*00000002.*00000001"):
        CheckpointManager(tmp_path).latest()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    CheckpointManager(tmp_path, identity="one").save(1, {}, {})
    with pytest.raises(RunError, match="checkpoint of another run"):
        CheckpointManager(tmp_path, identity="other").latest()
    assert newest(CheckpointManager(tmp_path, identity="one")).identity == "one"


def test_a_newer_format_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotswold.checkpoint.manifest._FORMAT", 2)
    path = CheckpointManager(tmp_path).save(1, {}, {})
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError,
        match=r"by a newer version of Cotswold \(format 2; this version reads 1\)",
    ):
        CheckpointManager(tmp_path).load(path)


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("mkdir", 0),
        ("mkdir", 1),
        ("rename", 0),
        *((call, number) for call in ("write", "fsync") for number in range(6)),
    ],
)
@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_fills_up_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, reason: int
) -> None:
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save(1, {"w": torch.ones(3)}, {})
    real, count = getattr(os, call), 0

    def failing(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count > number:
            raise OSError(reason, os.strerror(reason))
        return real(*arguments)

    tensors = {str(i): torch.zeros(5) for i in range(4)}
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(DiskFullError, match="free some space and resume"):
            checkpoints.save(2, tensors, {})
    assert newest(checkpoints).step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]
    checkpoints.save(2, tensors, {})
    assert newest(checkpoints).step == 2


def test_another_failure_of_the_disk_is_told_apart_from_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(CheckpointError, match="cannot be written: Input/output error"):
        CheckpointManager(tmp_path).save(1, {"w": torch.ones(3)}, {})


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, content: real(file, content[:7]))
    tensor = torch.randn(100)
    CheckpointManager(tmp_path).save(1, {"w": tensor}, {})
    assert torch.equal(newest(CheckpointManager(tmp_path)).read("w"), tensor)


def test_a_state_that_json_cannot_hold_leaves_nothing_half_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        CheckpointManager(tmp_path).save(1, {}, {"x": {1, 2}})
    assert list(tmp_path.iterdir()) == []


def test_a_piece_whose_box_is_not_its_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\) and box"):
        TensorChunk("w", torch.zeros(2), Box((0,), (3,)), (6,))
    with pytest.raises(ValueError, match="both box and shape"):
        TensorChunk("w", torch.zeros(2), Box((0,), (2,)))


def test_checkpoints_that_are_whole_but_of_no_use_are_not_called_damaged(tmp_path: Path) -> None:
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save(1, {"w": torch.ones(2)}, {})

    def use(checkpoint: Checkpoint) -> None:
        checkpoint.read("momentum")

    with pytest.raises(MismatchError, match=r"^(?!every checkpoint).* has no tensor momentum"):
        checkpoints.latest(use)
