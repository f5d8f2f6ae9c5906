"""Events are appended, survive kills and full disks, and continue after a resumption."""

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


def test_a_name_that_is_no_text_comes_back_as_it_is(path: Path) -> None:
    name = os.fsdecode(b"a\xff/\xc3\xbc.png")
    with EventLog(path) as log:
        log.write("start", notes=[name])
    assert [event["notes"] for event in read_events(path)] == [[name]]
    path.read_text(encoding="utf-8")


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


@pytest.mark.parametrize("line", [b"nonsense", b"[1]", b"", b'{"format":1}', b'{"kind":7}'])
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


class Failing:
    """An observer that raises from its second event on, or when it is closed."""

    name = "a gauge"

    def __init__(self, error: Exception, at: str) -> None:
        self.error, self.at, self.seen, self.closed = error, at, 0, 0

    def write(self, event: Mapping[str, object]) -> None:
        self.seen += 1
        if event["kind"] == self.at:
            raise self.error

    def close(self) -> None:
        self.closed += 1
        if self.at == "close":
            raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "full"), ValueError("x")])
def test_an_observer_that_fails_is_left_out_and_named_once(path: Path, error: Exception) -> None:
    failing, well = Failing(error, "two"), Failing(error, "never")
    with EventLog(path, observers=[failing, well]) as log:
        for kind in ("one", "two", "three"):
            log.write(kind)
    found = list(read_events(path))
    assert [event["kind"] for event in found] == ["one", "two", "observer_lost", "three"]
    assert found[2]["observer"] == "a gauge" and str(error) in str(found[2]["error"])
    assert (failing.seen, well.seen) == (2, 4)
    assert failing.closed == 1, "it holds no file until the end of the run"


def test_an_observer_that_fails_at_the_end_is_named(path: Path) -> None:
    with EventLog(path, observers=[Failing(OSError("gone"), "close")]) as log:
        log.write("one")
    assert [event["kind"] for event in read_events(path)] == ["one", "observer_lost"]


def test_an_interrupt_while_an_observer_looks_is_no_failure_of_its(path: Path) -> None:
    class Interrupted(Failing):
        def write(self, event: Mapping[str, object]) -> None:
            raise KeyboardInterrupt

    with EventLog(path, observers=[Interrupted(ValueError(), "")]) as log:
        with pytest.raises(KeyboardInterrupt):
            log.write("one")
        with pytest.raises(KeyboardInterrupt):
            log.write("two")  # it still looks
    assert [event["kind"] for event in read_events(path)] == ["one", "two"]


def test_times_and_seconds_go_on_when_the_clock_on_the_wall_is_set(path: Path, clock: Clock) -> None:
    ticks = Clock()
    with EventLog(path, clock=clock, ticks=ticks) as log:
        for step in (-3600, 7200):
            clock.now += step
            ticks.now += 2
            log.write("step")
    assert [(event["time"], event["seconds"]) for event in read_events(path)] == [(1002, 2), (1004, 4)]


@pytest.mark.parametrize(("moved", "resumed_at"), [(-5000, 1002), (5000, 6000)])
def test_times_never_go_back_though_the_clock_was_set_back_before_a_resumption(
    path: Path, clock: Clock, moved: float, resumed_at: float
) -> None:
    ticks = Clock()
    with EventLog(path, clock=clock, ticks=ticks) as log:
        ticks.now += 2
        log.write("one")
    clock.now += moved
    with EventLog(path, clock=clock, ticks=ticks) as log:
        log.write("two")
        clock.now -= 300
        ticks.now += 3
        log.write("three")
    assert [event["time"] for event in read_events(path)] == [1002, resumed_at, resumed_at + 3]
    assert [event["seconds"] for event in read_events(path)] == [2, 2, 5]


@pytest.mark.parametrize("time", ["NaN", "-5", "1e300", "true", '"4"', "null"])
def test_a_time_that_is_none_moves_no_later_one(path: Path, clock: Clock, time: str) -> None:
    path.write_text(f'{{"kind":"a","time":400}}\n{{"kind":"b","time":{time}}}\n')
    with EventLog(path, clock=clock, ticks=clock) as log:
        log.write("c")
    assert list(read_events(path))[-1]["time"] == 1000


@pytest.mark.parametrize("seconds", ["NaN", "-5", "Infinity", "true", '"4"', "9" * 400, "1e300", "null"])
def test_seconds_that_are_none_do_not_stop_the_clock(path: Path, seconds: str) -> None:
    path.write_text('{"kind":"a","seconds":4}\n' + f'{{"kind":"b","seconds":{seconds}}}\n')
    with EventLog(path) as log:
        log.write("c")
    assert [event["kind"] for event in read_events(path)] == ["a", "b", "c"]
    assert 4 <= float(str(list(read_events(path))[-1]["seconds"])) < 5 or seconds == "true"


def test_a_line_that_is_nested_too_deeply_is_no_event(path: Path) -> None:
    path.write_text('{"kind":"a"}\n{"kind":' + "[" * 100_000 + "\n" + '{"kind":"b"}\n')
    with pytest.raises(MachineError, match="line 2, is not an event"):
        list(read_events(path))
    with EventLog(path) as log:
        log.write("c")
