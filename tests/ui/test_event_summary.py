"""Terminal messages about processes that start and exit: one line each, without floods."""

from __future__ import annotations

import re
from io import StringIO

import pytest

from cotswold.run import Event
from cotswold.ui import event_summary
from cotswold.ui.event_summary import EventSummary
from cotswold.ui.training_display import TrainingDisplay


class Clock:
    """A clock that stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(kind: str, name: str, sentence: str) -> Event:
    return {"kind": f"cluster_{kind}", "name": name, "sentence": sentence, "portions": ()}


def exited(name: str, reason: str, code: int = 1) -> Event:
    return {"kind": "cluster_exited", "name": name, "reason": reason, "exit_code": code}


STEP: Event = {"kind": "step"}


def heard(clock: Clock, found: EventSummary, *events: Event) -> list[str]:
    """Return the lines, after enough time."""
    lines = [line for event in events for line in found.take(event)]
    clock.now += event_summary.PAUSE_SECONDS
    return lines + found.take(STEP)


def test_each_that_happens_has_a_line() -> None:
    found = EventSummary(clock := Clock())
    assert heard(clock, found, told("joined", "replica-1", "session 1")) == ["replica-1 has joined"]
    lost = told("lost", "replica-1", "it is silent")
    assert heard(clock, found, lost) == [
        "replica-1 is lost (it is silent); others take over the work in progress"
    ]
    again = told("joined", "replica-1", "session 2")
    assert heard(clock, found, again) == ["replica-1 has joined again"]
    left = told("left", "replica-1", "it was asked to end")
    assert heard(clock, found, left) == ["replica-1 leaves (it was asked to end)"]
    assert heard(clock, found, exited("replica-1", "ended with exit code 0", 0)) == []


def test_what_is_lost_with_servers_and_what_disks_cannot_take_is_told_as_it_is() -> None:
    found = EventSummary(clock := Clock())
    revived = [told("recovered", f"run/{number}", "goes on from a disk") for number in range(3)]
    assert heard(clock, found, *revived) == [
        "every server with 3 parts of the parameters is lost; disks have an earlier state"
    ]
    lost = told("samples_lost", "", "5 samples that counted were lost by some server: epoch 1: 3 to 7")
    assert heard(clock, found, lost) == [lost["sentence"]]
    restored = told("restored", "server-1.1", "1 bucket (3): 2 shards had 7 updates")
    assert heard(clock, found, restored) == [
        "server-1.1 resumes from its disk with 1 bucket (3): 2 shards had 7 updates"
    ]
    full = told("disk", "server-1", "no room left to write it")
    assert heard(clock, found, full) == ["server-1: no room left to write it"]


def test_a_death_is_told_once_and_one_that_was_given_up_before_it_ended_as_both() -> None:
    found = EventSummary(clock := Clock())
    why = "was killed by SIGKILL"
    died = [exited("replica-1", why), told("lost", "replica-1", why)]
    assert heard(clock, found, *died) == ["replica-1 was killed by SIGKILL"]
    given_up = [told("lost", "replica-2", "it is silent"), exited("replica-2", why)]
    assert len(heard(clock, found, *given_up)) == 2


def test_many_deaths_are_a_few_lines_and_none_is_omitted() -> None:
    found = EventSummary(clock := Clock())
    lines: list[str] = []
    for number in range(1000):
        why = f"ended with exit code {number % 50 + 1}"
        lines += found.take(exited(f"replica-{number}", why))
        clock.now += 0.01
    lines += found.take({"kind": "end"})
    assert len(lines) <= 3 * (event_summary.LINES_MOST + 1), "in 10 s"
    assert lines[0] == "replica-0, replica-50 and replica-100, each: ended with exit code 1"
    assert re.fullmatch(
        r"and \d+ more events of processes, see events.jsonl", lines[event_summary.LINES_MOST]
    )
    assert re.fullmatch(r"replica-\d+, replica-\d+, replica-\d+ and \d more, each: .*", lines[5]), lines[5]


def test_buckets_that_others_took_over_are_one_line() -> None:
    found = EventSummary(clock := Clock())
    events: list[Event] = [
        {
            "kind": "cluster_replication",
            "name": f"server-{number % 2}",
            "change": what,
            "sentence": "whatever",
        }
        for number in range(5)
        for what in ("elected", "joined")
    ]
    many = "server-0 and server-1 took over 5 parts of the parameters from replicas"
    assert heard(clock, found, *events) == [many]
    one = "server-0 took over one part of the parameters from replicas"
    assert heard(clock, found, events[0]) == [one]
    together: Event = {**events[0], "servers": {"server-7": 3, "server-8": 1}}
    assert heard(clock, found, together) == [
        "server-7 and server-8 took over 4 parts of the parameters from replicas"
    ]


def test_portions_that_are_refused_are_no_news_of_processes() -> None:
    found = EventSummary(clock := Clock())
    refused = {**told("portions_refused", "worker-1", "others were faster"), "portions": (3,)}
    assert heard(clock, found, refused) == []


def test_without_a_terminal_the_lines_come_as_well_and_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = StringIO()
    shown = TrainingDisplay(stream)
    shown(exited("server-0", "was killed by SIGKILL"))
    end = {"status": "failed", "flops_per_second": 1.0, "training_seconds": 1.0, "samples": 9}
    shown({"kind": "end", **end})
    first, last = stream.getvalue().splitlines()
    assert first == "server-0 was killed by SIGKILL" and last.startswith("failed: 9 samples")
