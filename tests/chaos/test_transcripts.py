"""A failover step by step in readable form: `transcripts/failover.txt`.

After an intended change, ``python -m tests.chaos.test_transcripts`` rewrites the file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.chaos.trace import Trace
from tests.chaos.worlds import WORLDS

from cotswold.wire import BucketEnvelope, Prepare, Send, Update

PATH = Path(__file__).parent / "transcripts" / "failover.txt"
SINCE, BEFORE, AFTER = 3.0, 0.3, 1.2
"""Seconds: earliest death of the primary, and the window of the transcript before and after it."""


def failover() -> str:
    """Return the transcript: one bucket on three servers, one replica; the primary dies after sending an
    update."""
    one = replace(WORLDS["quiet"], servers=3, buckets=1, replicas=1, speeds=(0.2,), epochs=2)
    told = Trace(1, replace(one, waits_seconds=3.5))
    cast = told.life.cast
    pushed: list[Send] = []

    def watch(sender: str, send: Send) -> None:
        if isinstance(send.message, BucketEnvelope) and isinstance(send.message.message, Update):
            pushed.append(send)
        elif isinstance(send.message, Prepare) and send.message.change is not None and pushed:
            victim = cast.server(sender)
            assert victim is not None, "it speaks"
            told.life.network.on_send = None
            cast.loop.schedule(0.0, lambda: cast.kill(victim, seen_after=0.05, again_after=0.6))

    def begin() -> None:
        told.life.network.on_send = watch

    cast.loop.schedule(SINCE, begin)
    told.life.live()
    died = next(float(each.split()[0]) for each in told.transcript if "is killed" in each)
    lines = [each for each in told.transcript if -BEFORE <= float(each.split()[0]) - died <= AFTER]
    return "\n".join(lines) + "\n"


def test_a_failover_is_what_is_written_there() -> None:
    assert failover() == PATH.read_text()


def test_the_update_that_was_on_its_way_counts_once() -> None:
    lines = PATH.read_text().splitlines()
    died = next(place for place, each in enumerate(lines) if "is killed" in each)
    pushed = [each for each in lines[:died] if "samples" in each][-1].split(": ")[-1].split(", samples")[0]
    assert not any(f"{pushed} is applied" in each for each in lines[:died])
    assert sum(f"{pushed} is applied" in each for each in lines[died:]) == 1


if __name__ == "__main__":
    PATH.write_text(failover())
