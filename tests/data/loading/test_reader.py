from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cotswold.data import Reader, Store
from cotswold.data.loading.order import Buffered, Rows, Split
from cotswold.data.loading.shuffle_buffer import Buffer, Epoch
from cotswold.errors import StoreError, UserError
from cotswold.geometry import Box

Numbered = Callable[..., Store]


def numbers(images: torch.Tensor) -> list[int]:
    """Return the numbers of these images in a numbered store."""
    found: list[int] = torch.round(images[:, 0, 0, 0] * 255).int().tolist()
    return found


@pytest.mark.parametrize("keep_last", [False, True])
@pytest.mark.parametrize("buffer_bytes", [1, 24 * 40, 1 << 20])
def test_an_epoch_hands_out_every_image_once(
    keep_last: bool, buffer_bytes: int, plain_store: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 16)
    reader = Reader(plain_store(107), "train", 10, keep_last=keep_last, buffer_bytes=buffer_bytes)
    for epoch in range(2):
        assert reader.epoch == epoch
        batches = [numbers(images) for images, _ in reader]
        assert [len(b) for b in batches] == [10] * 10 + [7] * keep_last
        assert len(batches) == len(reader)
        seen = [number for batch in batches for number in batch]
        assert len(set(seen)) == len(seen) and set(seen) <= set(range(107))
        assert seen != sorted(seen)
    reader.close()


def test_batches_are_images_last_float32_with_their_labels(store: Store) -> None:
    reader = Reader(store, "train", 8, shuffle=False)
    images, labels = reader.next()
    assert images.shape == (8, 3, 24, 32) and images.dtype == torch.float32
    assert images.stride() == (1, 8, 32 * 3 * 8, 3 * 8)
    assert (images.numpy() == store.read("train", 0, 8)).all()
    assert labels.dtype == torch.int64 and labels.tolist() == store.labels("train")[:8].tolist()
    reader.close()


def test_a_window_is_read_and_in_the_same_order_as_the_whole(store: Store) -> None:
    box = Box((3, 5), (20, 30))
    whole, window = Reader(store, "train", 30, seed=3), Reader(store, "train", 30, seed=3, box=box)
    for (a, _), (b, _) in zip(whole, window, strict=True):
        assert torch.equal(a[:, :, 3:20, 5:30], b)
    whole.close()
    window.close()


def test_the_order_does_not_depend_on_the_window_where_not_all_images_fit_the_buffer(
    plain_store: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 8)
    store = plain_store(100)
    readers = [
        Reader(store, "train", 10, seed=2, box=box, buffer_bytes=24 * 20)
        for box in (None, Box((1, 2), (2, 3)), Box((0, 0), (4, 3)))
    ]
    first, *others = [[numbers(images) for _ in range(2) for images, _ in each] for each in readers]
    assert others == [first] * 2
    for each in readers:
        each.close()


def test_a_window_goes_on_where_another_one_stood(
    plain_store: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 8)
    store = plain_store(50)
    first = Reader(store, "train", 7, box=Box((0, 0), (4, 2)), buffer_bytes=24 * 20)
    for _ in range(11):
        first.next()
    second = Reader(store, "train", 7, box=Box((2, 1), (3, 6)), buffer_bytes=24 * 20)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [numbers(second.next()[0]) for _ in range(9)] == [numbers(first.next()[0]) for _ in range(9)]
    first.close()
    second.close()


@pytest.mark.parametrize("box", [Box((4, 6), (4, 6)), Box((0, 6), (4, 6)), Box((9, 0), (9, 3))], ids=str)
def test_an_empty_window_has_labels_and_no_pixels_and_reads_no_image(
    box: Box, store: Store, bytes_read: list[int]
) -> None:
    whole, reader = Reader(store, "train", 30, seed=3), Reader(store, "train", 30, seed=3, box=box)
    expected = [labels for _, labels in whole]
    whole.close()
    bytes_read.clear()
    found = list(reader)
    assert [images.shape for images, _ in found] == [(30, 3, *box.shape)] * len(expected)
    assert all(images.dtype == torch.float32 for images, _ in found)
    assert all(torch.equal(a, b) for (_, a), b in zip(found, expected, strict=True))
    assert bytes_read == []
    reader.close()


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 7, 23])
def test_a_resumed_reader_goes_on_with_the_same_bits(
    steps: int, plain_store: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 8)
    store = plain_store(50)
    first = Reader(store, "train", 10, seed=4, buffer_bytes=24 * 20)
    for _ in range(steps):
        first.next()
    state = json.loads(json.dumps(first.state_dict()))
    second = Reader(store, "train", 10, seed=4, buffer_bytes=24 * 20)
    second.next()
    second.load_state_dict(state)
    for _ in range(12):
        (a, la), (b, lb) = first.next(), second.next()
        assert torch.equal(a, b) and torch.equal(la, lb)
    assert (first.epoch, first.position) == (second.epoch, second.position) == divmod(steps + 12, 5)
    first.close()
    second.close()


def test_leaving_a_loop_early_loses_nothing(plain_store: Numbered) -> None:
    reader = Reader(plain_store(40), "train", 10)
    seen = []
    for images, _ in reader:
        seen += numbers(images)
        break
    for images, _ in reader:
        seen += numbers(images)
    assert sorted(seen) == list(range(40)) and reader.epoch == 1
    reader.close()


def test_a_state_of_another_reader_is_refused(plain_store: Numbered) -> None:
    store = plain_store(40)
    state = Reader(store, "train", 10).state_dict()
    with pytest.raises(UserError, match="another batch and seed"):
        Reader(store, "train", 5, seed=1).load_state_dict(state)


def test_a_split_smaller_than_a_batch_is_one_small_batch(plain_store: Numbered) -> None:
    reader = Reader(plain_store(3), "train", 10)
    assert [len(images) for images, _ in reader] == [3] and len(reader) == 1
    reader.close()
    with pytest.raises(UserError, match="batch must be at least 1"):
        Reader(plain_store(3), "train", 0)


def test_a_damaged_chunk_reaches_the_caller_by_name(
    plain_store: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 8)
    store = plain_store(40)
    path: Path = store.path / "arrays/train/samples/c/3/0/0/0"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    reader = Reader(store, "train", 4, buffer_bytes=1)
    with pytest.raises(StoreError, match="arrays/train/samples/c/3/0/0/0"):
        for _ in reader:
            pass
    reader.close()


def test_a_reader_that_met_a_damaged_chunk_goes_on_where_it_stood_once_the_chunk_is_whole(
    plain_store: Numbered,
) -> None:
    store = plain_store(40)
    path: Path = store.path / "arrays/train/samples/c/0/0/0/0"
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    reader = Reader(store, "train", 4)
    for _ in range(2):  # the second time, too, it says so and does not wait for ever
        with pytest.raises(StoreError, match="is damaged"):
            reader.next()
    path.write_bytes(whole)
    assert sorted(number for images, _ in reader for number in numbers(images)) == list(range(40))
    reader.close()


def test_reading_ahead_stops_when_the_reader_is_closed_and_waiting_is_counted(plain_store: Numbered) -> None:
    def ahead() -> set[threading.Thread]:
        """Return the prefetching threads; libraries have others, which come and go."""
        return {each for each in threading.enumerate() if each.name == "ahead"}

    before = ahead()
    reader = Reader(plain_store(40), "train", 4)
    reader.next()
    assert reader.waited_seconds > 0
    waited = reader.waited_seconds
    reader.close()
    for each in ahead() - before:
        each.join(10)
    assert ahead() <= before
    reader.next()
    assert reader.waited_seconds > waited
    reader.close()


def test_more_than_the_buffer_a_shard_and_a_batch_is_never_held(
    plain_store: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 8)
    held, real = [], Buffer.take

    def watched(self: Buffer, epoch: int, rows: Rows) -> NDArray[np.uint8]:
        taken = real(self, epoch, rows)
        assert self._slots is not None
        held.append(len(self._slots))
        return taken

    monkeypatch.setattr(Buffer, "take", watched)
    reader = Reader(plain_store(200), "train", 10, buffer_bytes=24 * 40)
    for _ in range(2):
        assert len({number for images, _ in reader for number in numbers(images)}) == 200
    reader.close()
    assert set(held) == {40 + 8 + 10}


def test_shards_of_the_next_epoch_are_read_while_the_last_images_of_this_one_are_handed_out() -> None:
    order, read = Buffered(Split(200, 8, 0), 40), list[int]()

    def shard(number: int) -> NDArray[np.uint8]:
        read.append(number)
        return np.arange(8 * number, 8 * number + 8, dtype=np.uint8).reshape(8, 1, 1, 1)

    epochs = [Epoch(number, order.rows(number), 10) for number in range(3)]
    buffer = Buffer(order, 8, 10, iter(epochs), shard)
    reads = []
    for epoch in epochs[:2]:
        for rows in epoch.batches():
            taken = buffer.take(epoch.number, rows)
            assert taken[:, 0, 0, 0].tolist() == rows.tolist()
            reads.append(len(read))
    steps = np.diff(reads)
    assert steps.max() <= 2, "after the first batch no batch waits for more than two shards"
    assert read[:50] == [*order.shards(0), *order.shards(1)]


def test_a_state_keeps_its_buffer_whatever_the_reader_would_choose(
    plain_store: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 8)
    store = plain_store(100)
    first = Reader(store, "train", 10, buffer_bytes=24 * 20)
    for _ in range(13):
        first.next()
    second = Reader(store, "train", 10)
    second.load_state_dict(first.state_dict())
    assert [numbers(second.next()[0]) for _ in range(9)] == [numbers(first.next()[0]) for _ in range(9)]
    first.close()
    second.close()


@pytest.mark.parametrize(
    "change",
    [
        {"order": "sorted"},
        {"position": 4},
        {"position": -1},
        {"position": "1"},
        {"epoch": -1},
        {"epoch": None},
        {"buffer": 0},
        {"buffer": 1.5},
    ],
)
def test_a_state_that_is_none_is_refused(change: dict[str, object], plain_store: Numbered) -> None:
    reader = Reader(plain_store(40), "train", 10)
    with pytest.raises(UserError, match="the reader's state"):
        reader.load_state_dict({**reader.state_dict(), **change})
