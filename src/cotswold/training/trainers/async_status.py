"""What replicas and servers do, shown while they do it; and for whom a run waits that is asked to stop.

Knows: how often, under which names. Does not know: who looks on, when a run saves or ends.
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
"""How often it is said for whom a stop waits."""
_DOING = {
    "warming": "warm start: one replica learns, the others wait",
    "running": "training",
    "ending": "ending: what is in hand is finished",
    "over": "ended",
}


class Showing:
    """Shows an event ``replicas`` some times a second, which the log does not keep."""

    def __init__(self, replicas: Replicas, recorder: Recorder, epochs: int) -> None:
        self._replicas, self._recorder, self._epochs = replicas, recorder, epochs
        self._instead: str | None = None
        self._shown = self._told = float("-inf")
        replicas.watch(self._look)

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """What the run does meanwhile, where it does not simply train."""
        self._instead = doing
        self._show()
        try:
            yield
        finally:
            self._instead = None

    def _look(self) -> None:
        if time.monotonic() - self._shown >= SHOW_SECONDS:
            self._show()
            self._tell_stopping()

    def _tell_stopping(self) -> None:
        """Say for whom a run waits that was asked to stop, and cannot save."""
        stop, now = self._recorder.stop, time.monotonic()
        is_asked = stop.signal is not None or stop.limited
        if not is_asked or now - self._told < _TELL_SECONDS or not (unheard := self._replicas.unheard()):
            return
        self._told = now
        # the first signal asks for a stop, also where a limit has
        more = "once more" if stop.signal is not None else "twice, a moment apart"
        sentence = (
            f"it waits for its servers to save before it stops: {unheard}; it ends unsaved after "
            f"{self._replicas.servers_patience:g} s of that, and at once by Ctrl-C or SIGTERM {more}: then "
            "--resume goes on from the last checkpoint"
        )
        self._recorder.event("cluster_waiting", name="stop", sentence=sentence)

    def _show(self) -> None:
        self._shown = time.monotonic()
        now = self._replicas.status()
        self._recorder.show(
            "replicas",
            doing=self._instead or _DOING[now.state],
            epoch=now.epoch,
            epochs=self._epochs,
            samples=asdict(now.account),
            open=now.open,
            epoch_samples=self._replicas.samples,
            replicas=now.replicas,
            each=[asdict(each) for each in now.each],
            servers=[asdict(each) for each in now.servers],
            evaluators=[] if now.evaluator is None else [asdict(now.evaluator)],
            sent_bytes=now.sent_bytes,
            received_bytes=now.received_bytes,
        )
