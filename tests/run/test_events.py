"""Events are appended, survive kills and full disks, and go on after a resumption."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from cotswold.errors import DiskFullError, MachineError
from cotswold.run import EventLog, read_events


class Clock:
    """A clock that stands still until it is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_an_event_has_its_kind_its_time_and_what_it_was_given(path: Path, clock: Clock) -> None:
    with EventLog(path, clock=clock, ticks=clock) as log:
        clock.now += 2.5
        log.write("step", step=3, loss=0.1, words="ü\n", more={"a": [1, None, True]})
    assert list(read_events(path)) == [
        {
            "kind": "step",
            "time": 1002.5,
            "seconds": 2.5,
            "step": 3,
            "loss": 0.1,
            "words": "ü\n",
            "more": {"a": [1, None, True]},
        }
    ]
    assert len(path.read_text().splitlines()) == 1


def test_tensors_arrays_and_paths_become_what_json_holds(path: Path) -> None:
    with EventLog(path) as log:
        log.write(
            "x", a=torch.tensor(1.5), b=np.float32(0.5), c=torch.arange(3), d=Path("e/f"), g=np.int64(7)
        )
    event = next(read_events(path))
    assert (event["a"], event["b"], event["c"], event["d"], event["g"]) == (1.5, 0.5, [0, 1, 2], "e/f", 7)


def test_numbers_that_are_not_finite_become_null_so_that_any_reader_understands(path: Path) -> None:
    with EventLog(path) as log:
        log.write("x", loss=float("nan"), more=[float("inf"), torch.tensor(float("-inf"))])

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    event = json.loads(path.read_text(), parse_constant=refuse)
    assert (event["loss"], event["more"]) == (None, [None, None])


def test_something_else_is_refused_before_anything_is_written(path: Path) -> None:
    with EventLog(path) as log:
        with pytest.raises(TypeError, match="cannot hold a object"):
            log.write("x", what=object())
        log.write("y")
    assert [event["kind"] for event in read_events(path)] == ["y"]


def test_a_resumed_log_appends_and_its_seconds_go_on(path: Path, clock: Clock) -> None:
    with EventLog(path, clock=clock, ticks=clock) as log:
        clock.now += 10
        log.write("one")
    clock.now += 5000  # switched off
    with EventLog(path, clock=clock, ticks=clock) as log:
        assert log.seconds == 10
        clock.now += 3
        log.write("two")
    assert [(event["kind"], event["seconds"]) for event in read_events(path)] == [("one", 10), ("two", 13)]


TORN = [b'{"kind": "tw', b'{"kind":"two","seconds":99}', b"\0\0\0", b'{"kind": "\xc3', b"", b"\0\0\n\0"]


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_last_line_is_left_out_by_readers_and_cut_off_on_resume(
    path: Path, clock: Clock, torn: bytes
) -> None:
    with EventLog(path, clock=clock, ticks=clock) as log:
        clock.now += 1
        log.write("one")
    with path.open("ab") as file:
        file.write(torn)
    if b"\n" not in torn:
        assert [event["kind"] for event in read_events(path)] == ["one"]
    with EventLog(path, clock=clock, ticks=clock) as log:
        assert log.seconds == 1
        log.write("three")
    assert [event["kind"] for event in read_events(path)] == ["one", "three"]


def test_a_log_that_never_got_a_whole_line_starts_anew(path: Path) -> None:
    path.write_bytes(b'{"kin')
    with EventLog(path) as log:
        log.write("one")
    assert [event["kind"] for event in read_events(path)] == ["one"]


@pytest.mark.parametrize("line", [b"nonsense", b"[1]", b""])
def test_damage_in_the_middle_is_named_with_its_line(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"kind":"a"}\n' + line + b'\n{"kind":"b"}\n')
    with pytest.raises(MachineError, match="line 2, is not an event"):
        list(read_events(path))


def test_a_full_disk_leaves_no_torn_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def filling(file: int, content: memoryview) -> int:
        if len(content) > 8:
            return real(file, content[:8])
        raise OSError(errno.ENOSPC, "No space left on device")

    log = EventLog(path)
    log.write("one")
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", filling)
        with pytest.raises(DiskFullError, match="free some space and resume"):
            log.write("two")
    assert path.read_bytes() == before
    log.write("three")
    log.close()
    assert [event["kind"] for event in read_events(path)] == ["one", "three"]


def test_a_log_can_be_read_while_it_grows(path: Path) -> None:
    with EventLog(path) as log:
        log.write("one")
        reader = read_events(path)
        assert next(reader)["kind"] == "one"
        log.write("two")
        assert [event["kind"] for event in read_events(path)] == ["one", "two"]


def test_an_observer_sees_every_event_and_the_end(path: Path) -> None:
    class Remembering:
        name = "memory"
        seen: list[object]
        closed = False

        def __init__(self) -> None:
            self.seen = []

        def write(self, event: Mapping[str, object]) -> None:
            self.seen.append(event["kind"])

        def close(self) -> None:
            self.closed = True

    observer = Remembering()
    with EventLog(path, observers=[observer]) as log:
        log.write("one")
        log.write("two")
    assert (observer.seen, observer.closed) == (["one", "two"], True)
