"""Remaining time shown on the terminal."""

from __future__ import annotations

from io import StringIO

import pytest

from cotswold.run import Event
from cotswold.ui import terminal
from cotswold.ui.describe import describe, figures
from cotswold.ui.terminal import show_stages
from cotswold.ui.training_display import Estimate, TrainingDisplay


def step(at: int, *, steps: int, seconds: float, stack: int = 0, of: int = 100) -> Event:
    return {
        "kind": "step",
        "phase": stack,
        "step": at,
        "phase_step": at,
        "phase_steps": of,
        "loss": 1.0,
        "samples_per_second": 10.0,
        "gflops": 1.0,
        "interval_steps": steps,
        "interval_seconds": seconds,
    }


def test_the_first_interval_in_which_kernels_are_compiled_tells_nothing() -> None:
    left = Estimate()
    assert left(step(1, steps=1, seconds=7.0)) is None
    assert left(step(3, steps=2, seconds=0.2)) is None
    assert left(step(4, steps=1, seconds=0.1)) == pytest.approx(96 * 0.1)


def test_steps_that_take_long_give_an_estimate_after_one() -> None:
    left = Estimate()
    assert left(step(1, steps=1, seconds=70.0)) is None
    assert left(step(2, steps=1, seconds=60.0)) == pytest.approx(98 * 60)


def test_the_estimate_is_a_mean_over_the_phase_and_begins_anew_with_the_next() -> None:
    left = Estimate()
    for event in (step(1, steps=1, seconds=9.0), step(11, steps=10, seconds=1.0)):
        left(event)
    assert left(step(21, steps=10, seconds=3.0)) == pytest.approx(79 * 0.2)
    assert left(step(1, steps=1, seconds=9.0, stack=1)) is None


def test_a_line_says_no_time_before_there_is_one_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    stream = StringIO()
    with TrainingDisplay(stream) as display:
        display(step(1, steps=1, seconds=7.0))
        display(step(11, steps=10, seconds=1.0))
    first, second = stream.getvalue().splitlines()
    assert "left" not in first and first.endswith("GFLOP/s")
    assert second.endswith("0:00:09 left")


@pytest.mark.parametrize(("gflops", "said"), [(3.21, "3.2 GFLOP/s"), (0.0321, "32.1 MFLOP/s")])
def test_the_rate_of_a_small_network_is_not_shown_as_zero(gflops: float, said: str) -> None:
    event = {**step(1, steps=1, seconds=1.0), "gflops": gflops}
    assert figures(event).endswith(f" {said}")


class Screen(StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_validations_of_fast_iterations_get_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = StringIO(), 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    shown = TrainingDisplay(stream)
    for number in range(120):
        shown({"kind": "validation", "phase": "layers", "loss": float(number)})
        now += 0.25
    lines = stream.getvalue().splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["0", "20", "40", "60", "80", "100"]
    shown(END)
    *_, last, over = stream.getvalue().splitlines()
    assert last.endswith("loss 119") and over.startswith("finished: ")


END = {"kind": "end", "status": "finished", "flops_per_second": 1.0, "training_seconds": 1.0, "samples": 9}


def test_the_end_says_what_did_not_count() -> None:
    end = {
        "kind": "phase_end",
        "phase": "layers",
        "pushed_bytes_by_layer": {},
        "pushed_bytes": 0,
        "samples_counted": 10020,
    }
    assert "counted" not in str(describe(end))
    assert str(describe({**end, "samples_refused": 6180})).endswith("; 10,020 samples counted, 6,180 refused")


@pytest.mark.parametrize("stream", [StringIO(), Screen()])
def test_a_phase_with_an_open_end_is_shown_without_one(
    stream: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    with TrainingDisplay(stream) as display:
        for at in (10, 20, 30):
            event = step(at, steps=10, seconds=9.0)
            del event["phase_steps"]
            display(event)
    assert "loss 1 10 samples/s" in stream.getvalue() and "left" not in stream.getvalue()


def test_what_has_no_length_is_announced_without_a_number() -> None:
    start: Event = {
        "kind": "start",
        "name": "own",
        "strategy": "supervised",
        "parameters": 7,
        "images": None,
    }
    assert describe(start) == "own: supervised, 7 weights"


def test_samples_that_are_refused_are_in_the_line_with_the_reason() -> None:
    event = {**step(20, steps=1, seconds=1.0), "replicas": 2, "staleness": 1.0, "epoch": 0}
    assert "refused" not in figures(event)
    said = figures({**event, "samples_refused": 1200, "refusal_reasons": "not finite, too stale"})
    assert "staleness 1.0, 1,200 samples refused (not finite, too stale), 10 samples/s" in said
    said = figures({**event, "samples_torn": 320, "refusal_reasons": "not finite"})
    assert "staleness 1.0, 320 samples torn (not finite), 10 samples/s" in said


def test_a_stage_is_told_again_only_where_something_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = StringIO(), 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with show_stages(stream) as show:
        for number in (0, 0, 0, 7):
            now += terminal.LINE_SECONDS
            show("1 client", number)
    assert stream.getvalue() == "1 client\n1 client 7\n"


def test_a_place_of_the_samples_that_is_named_for_the_first_time_is_not_said_to_be_as_before() -> None:
    event = {"kind": "resumed", "step": 704, "overrides": ['data.source="new.npz"']}
    assert describe(event) == 'resumed after step 704 with data.source="new.npz", as saved in the run'
