"""Live status of replicas and servers, and of the servers that delay a requested stop.

Knows: intervals, names of fields, the reasons of complete runs. Does not know: the readers, when a run saves
or ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from cotswold.replicas.replicas import Replicas
from cotswold.run import Recorder

SHOW_SECONDS = 0.5
_TELL_SECONDS = 30.0
"""Seconds between reports of the servers that delay a stop."""
_ACTIVITIES = {
    "warming": "warm start: one replica trains, the others wait",
    "running": "training",
    "ending": "ending: finishing samples in flight",
    "over": "ended",
}


class StatusReporter:
    """Show the event ``replicas`` several times a second; the log does not keep it."""

    def __init__(self, replicas: Replicas, recorder: Recorder, epochs: int) -> None:
        self._replicas, self._recorder, self._epochs = replicas, recorder, epochs
        self._activity: str | None = None
        self._shown = self._reported_at = float("-inf")
        replicas.call_on_tick(self._update)

    @contextmanager
    def activity(self, activity: str) -> Iterator[None]:
        """Show this activity instead of the replicas' state while the context is open."""
        self._activity = activity
        self._show()
        try:
            yield
        finally:
            self._activity = None

    def _update(self) -> None:
        if time.monotonic() - self._shown >= SHOW_SECONDS:
            self._show()
            self._report_stop_delay()

    def _report_stop_delay(self) -> None:
        """Report the servers that a requested stop waits for and that cannot save."""
        stop, now = self._recorder.stop, time.monotonic()
        is_asked = stop.signal is not None or stop.is_limited
        if (
            not is_asked
            or now - self._reported_at < _TELL_SECONDS
            or not (unheard := self._replicas.silence_text())
        ):
            return
        self._reported_at = now
        # The first signal requests a stop, even if a limit already has.
        more = "again" if stop.signal is not None else "twice, a moment apart"
        sentence = (
            f"the stop waits until the servers have saved: {unheard}; the run ends without saving after "
            f"{self._replicas.server_timeout:g} s, or at once on Ctrl-C or SIGTERM {more}; then "
            "--resume continues from the last checkpoint"
        )
        self._recorder.event("cluster_waiting", name="stop", sentence=sentence)

    def _show(self) -> None:
        self._shown = time.monotonic()
        now = self._replicas.status()
        self._recorder.show(
            "replicas",
            activity=self._activity or _ACTIVITIES[now.state],
            epoch=now.epoch,
            epochs=self._epochs,
            samples=asdict(now.account),
            samples_in_flight=now.samples_in_flight,
            epoch_samples=self._replicas.samples,
            connected_replicas=now.connected_replicas,
            replicas=[asdict(each) for each in now.replicas],
            servers=[asdict(each) for each in now.servers],
            evaluators=[] if now.evaluator is None else [asdict(now.evaluator)],
            sent_bytes=now.sent_bytes,
            received_bytes=now.received_bytes,
        )


def reason_if_complete(asked: int, had: int, is_finished: bool, ended: str | None) -> str | None:
    """Return the reason why nothing is left to train; None if the run can continue.

    The run has ``had`` of the ``asked`` epochs; ``ended`` is the reason for an earlier end.
    """
    if ended is not None:
        return f"the run has ended ({ended}); set more training.epochs or another training.patience"
    if not is_finished and had < asked:
        return None
    if had == asked:
        return f"the run has finished its {had} epochs; set more training.epochs"
    return (
        f"the run has finished {had} epochs, but training.epochs is {asked}; set more than {had}, or omit it"
    )
