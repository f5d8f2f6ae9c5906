"""The file with a host's events, on a disk that is full for a while."""

from __future__ import annotations

import errno
import json
import os
from io import FileIO
from pathlib import Path

import pytest

from cotswold.api.servers import host_events
from cotswold.api.servers.host_events import EventFile


class Full:
    """A file that accepts a limited number of bytes."""

    def __init__(self, file: FileIO, room: int) -> None:
        self._file, self.room = file, room

    def write(self, content: bytearray) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        took = self._file.write(bytes(content[: self.room]))
        self.room -= took
        return took

    def close(self) -> None:
        self._file.close()


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


def test_events_of_a_time_without_room_are_written_later_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, path = list[str](), tmp_path / "events.jsonl"
    with EventFile(path, said.append) as file:
        file.write(number=0)
        full = Full(file._file, room=5)
        monkeypatch.setattr(file, "_file", full)
        for number in range(1, 4):
            file.write(number=number)
        assert path.read_bytes().endswith(b'{"num'), "a part of a line fits"
        (sentence,) = said
        assert "No space left" in sentence and str(path) in sentence
        full.room = 10_000
        file.write(number=4)
    assert numbers(path) == [0, 1, 2, 3, 4]
    assert len(said) == 2 and said[1].endswith("again")


def test_what_waits_for_room_has_a_bound_and_what_is_left_out_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_events, "WAITING_BYTES_MAX", 40)
    said, path = list[str](), tmp_path / "events.jsonl"
    with EventFile(path, said.append) as file:
        full = Full(file._file, room=0)
        monkeypatch.setattr(file, "_file", full)
        for number in range(5):
            file.write(number=number)
        full.room = 10_000
        file.write(number=5)
    assert numbers(path) == [0, 1] and "4 of them were lost" in said[1]
