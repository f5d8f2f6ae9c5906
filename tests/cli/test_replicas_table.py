"""The live table of replicas: contents on terminals of any height."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console, Group

from cotswold.run import Event
from cotswold.ui.async_table import tables
from cotswold.ui.describe import describe
from cotswold.ui.training_display import TrainingDisplay


class Screen(StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def replica(number: int, **more: object) -> Event:
    row: Event = {
        "name": f"replica-{number}",
        "samples_per_second": 1000.0 * number,
        "staleness": 2.25,
        "samples_in_flight": 96,
        "activity": "computing",
        "waits_for": [],
        "activity_seconds": 0.1,
        "silent_seconds": 0.0,
    }
    return row | more


def replicas(*rows: Event, servers: int = 1) -> Event:
    server = {
        "updates_per_second": 321.0,
        "queued_bytes": 2_500_000,
        "shards": 3,
        "queued_updates": 2,
        "waits_for": [],
    }
    named = [{"name": f"server-{number}", **server} for number in range(servers)]
    return {"kind": "replicas", "activity": "training", "replicas": list(rows), "servers": named}


STEP: Event = {
    "kind": "step",
    "phase": "layers",
    "phase_step": 480,
    "phase_steps": 4800,
    "loss": 0.5,
    "accuracy": 0.875,
    "epoch": 1,
    "replicas": 2,
    "staleness": 1.25,
    "queued_bytes": 2_500_000,
    "samples_per_second": 100.0,
    "gflops": 0.001,
    "interval_steps": 7,
    "interval_seconds": 4.8,
}


def drawn(event: Event, height: int = 40) -> list[str]:
    console = Console(file=StringIO(), width=120)
    console.print(Group(*tables(event, height)))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_a_row_says_how_fast_how_stale_what_and_since_when() -> None:
    waiting = replica(2, activity="pushing", waits_for=["server-0", "server-1"], activity_seconds=75.0)
    lines = drawn(replicas(replica(1), waiting))
    (one,) = [line for line in lines if "replica-1" in line]
    assert one.split() == ["replica-1", "1,000", "2.2", "96", "computes", "0.1", "s"]
    (two,) = [line for line in lines if "replica-2" in line]
    assert "waits for server-0 and server-1 to apply its push" in two and two.endswith("1 min 15 s ")
    (server,) = [line for line in lines if line.lstrip().startswith("server-0")]
    assert server.split()[:5] == ["server-0", "321", "2.5", "MB", "3"]
    assert "applies 2 updates" in server


def test_servers_that_keep_copies_say_which_parts_they_have() -> None:
    event = replicas(replica(1))
    parts = {
        "primary_buckets": 22,
        "bucket_replicas": 64,
        "term": 5,
        "lag_changes": 3,
        "dirty_bytes": 2_000_000,
        "dirty_seconds": 0.5,
    }
    servers = event["servers"]
    assert isinstance(servers, list)
    event["servers"] = [{**servers[0], **parts}]
    lines = drawn(event)
    (heads,) = [line for line in lines if "primary" in line]
    assert heads.split()[3:7] == ["primary", "replicas", "term", "lag"] and "shards" not in heads
    (server,) = [line for line in lines if line.lstrip().startswith("server-0")]
    assert server.split()[4:12] == ["22", "64", "5", "3", "2.0", "MB", "0.5", "s"]


def test_a_replica_that_is_not_heard_is_called_silent_with_what_it_did_last() -> None:
    lines = drawn(replicas(replica(1, silent_seconds=9.0)))
    assert any("is silent; at its last message it computed" in line and "9.0 s" in line for line in lines)


def test_on_a_low_terminal_the_slowest_and_the_silent_are_shown_and_the_rest_counted() -> None:
    rows = [replica(number) for number in range(1, 201)]
    rows[150] = replica(151, silent_seconds=5.0)
    lines = drawn(replicas(*rows, servers=30), height=24)
    assert len(lines) <= 24
    shown = [line.split()[0] for line in lines if line.lstrip().startswith("replica-")]
    assert "replica-151" in shown and "replica-1" in shown and "replica-200" not in shown
    assert any("more replicas, which are faster" in line for line in lines)
    assert any("more servers" in line for line in lines)


def test_a_terminal_shows_the_table_above_the_line_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    stream = Screen()
    with TrainingDisplay(stream) as display:
        display(STEP)
        display(replicas(replica(1), replica(2)))
    last = stream.getvalue()[stream.getvalue().rindex("training") :]
    assert last.index("replica-2") < last.index("server-0") < last.index("480/4800")
    for word in ("loss 0.5", "accuracy 87.50%", "epoch 2", "100 samples/s"):
        assert word in last


def test_elsewhere_lines_say_the_same_in_words() -> None:
    stream = StringIO()
    with TrainingDisplay(stream) as display:
        display(replicas(replica(1)))
        display(STEP)
    (line,) = stream.getvalue().splitlines()
    assert line == (
        "layers 480/4800 loss 0.5 accuracy 87.50% epoch 2 2 replicas staleness 1.2 queue 2.5 MB "
        "100 samples/s 1.0 MFLOP/s"
    )


def test_the_time_left_is_that_of_samples_and_not_of_steps() -> None:
    stream = StringIO()
    shown = TrainingDisplay(stream)
    shown(STEP)
    for at in (960, 1440, 1920, 2400):
        left = shown._time_left({**STEP, "phase_step": at})
    assert left == pytest.approx((4800 - 2400) / 100)
    assert (describe(STEP, left) or "").endswith("0:00:24 left")


def test_a_terminal_of_eighty_columns_shows_bar_place_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Screen()
    with TrainingDisplay(stream) as display:
        display(STEP)
        display(replicas(replica(1)) | {"evaluators": [{"name": "evaluator-1", "activity": "idle"}]})
    last = stream.getvalue()[stream.getvalue().rindex("training") :]
    place = last.index("480/4800")
    assert last.index("evaluator-1 waits for parameters to evaluate") < place < last.index("loss 0.5")
    assert "epoch 2 2 replicas" in last and "samples/s" in last
