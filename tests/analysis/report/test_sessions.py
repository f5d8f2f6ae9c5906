"""Report of a resumed run."""

from __future__ import annotations

import re

from cotswold.analysis.report.build import section_html
from cotswold.analysis.report.training import speed, totals_section
from cotswold.analysis.run_history import History
from cotswold.phrases import counted
from cotswold.run import Event


def step(at: int, seconds: float, training_seconds: float) -> Event:
    return {
        "kind": "step",
        "phase": "layers",
        "phase_step": at,
        "seconds": seconds,
        "training_seconds": training_seconds,
        "loss": 1.0,
        "gflops": 3.0,
    }


def end(**more: object) -> Event:
    return {"kind": "end", "status": "finished", **more}


def test_a_pause_is_a_gap_and_what_came_again_counts_once() -> None:
    first = [step(at, 8.0 + at, float(at)) for at in range(1, 11)]
    resumed = {"kind": "resumed", "step": 8, "seconds": 60.0}
    again = [step(at, 54.0 + at, float(at)) for at in range(9, 21)]
    history = History.from_events([*first, resumed, *again])
    sessions = history.phases[0].rates["gflops"]
    assert [curve.steps for curve in sessions.values()] == [
        [1000 * at for at in range(1, 9)],
        [1000 * at for at in range(9, 21)],
    ]
    section = speed(history, "samples")
    assert section is not None
    html = section_html(section)
    (path,) = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none; stroke: var\(--s1\)', html) or [""]
    assert path.count("M") == 2, "two lines, with a gap between them"


def test_what_was_lost_is_told_and_is_in_no_curve() -> None:
    lost = [step(at, 8.0 + at, float(at)) for at in range(1, 11)]
    anew = {"kind": "restarted", "seconds": 27.0, "lost_seconds": 25.16}
    resumed = {"kind": "resumed", "step": 1, "seconds": 40.0}
    history = History.from_events(
        [*lost, end(), anew, step(1, 30.0, 1.0), end(), resumed, resumed, end(samples=3)]
    )
    assert history.phases[0].training["loss"].steps == [1]
    html = section_html(totals_section(history, "runs/x", []))
    assert "3 times" in html
    assert "the first 25.2\u202fs of training, which ended before the first checkpoint" in html


def test_one_is_no_plural() -> None:
    assert (counted(1, "server"), counted(2, "worker")) == ("1 server", "2 workers")
