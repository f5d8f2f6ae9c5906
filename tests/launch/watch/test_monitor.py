"""The threads around a detector, with a store in memory that hangs, fails or answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented, not in __all__

from cotswold.host import Token
from cotswold.launch.signed_store import SignedStore
from cotswold.launch.watch.abort_reason import AbortReason
from cotswold.launch.watch.monitor import ABORT_KEY, Monitor, beat_key
from cotswold.launch.watch.role import Role

TIMEOUT = 0.5
LIMIT_SECONDS = 10.0


class Store(SignedStore):
    """A store that treats its callers according to ``mood``."""

    def __init__(self) -> None:
        super().__init__(HashStore(), Token.new().derive("a test"), lambda name: None)
        self.mood = "answers"
        self.over = threading.Event()
        self.prepare([beat_key(0), beat_key(1), ABORT_KEY])

    def read(self, names: Sequence[str]) -> list[str | None]:
        if self.mood == "hangs":
            self.over.wait(LIMIT_SECONDS)
        if self.mood == "breaks":
            raise RuntimeError("Connection reset by peer")
        return super().read(names)


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.over.set()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[AbortReason]:
    """Return the reasons for which the process would have ended; instead, the watchdog thread ends."""
    verdicts: list[AbortReason] = []

    def end(self: Monitor, reason: AbortReason) -> None:
        verdicts.append(reason)
        self._stop.set()

    monkeypatch.setattr(Monitor, "_abort", end)
    return verdicts


def monitor(store: Store, size: int = 1) -> Monitor:
    started = Monitor(store, Role(0, size, None, TIMEOUT, 1000.0), parent=None, note="")
    started.start()
    return started


@pytest.mark.parametrize(
    ("mood", "said"),
    [("hangs", "the launcher's store has been silent"), ("breaks", "the connection to it broke")],
)
def test_a_store_that_hangs_or_breaks_ends_the_process(
    store: Store, ends: list[AbortReason], mood: str, said: str
) -> None:
    store.mood = mood
    assert monitor(store)._stop.wait(LIMIT_SECONDS)
    assert said in ends[0].sentence


def test_a_rank_whose_store_hangs_fails_without_waiting_for_it(store: Store, ends: list[AbortReason]) -> None:
    store.mood = "hangs"
    begun = time.monotonic()
    monitor(store).fail("ValueError", peer_lost=False)
    assert time.monotonic() - begun < LIMIT_SECONDS / 2 and not ends


def test_the_last_to_leave_leaves_and_its_threads_end(store: Store, ends: list[AbortReason]) -> None:
    started = monitor(store)
    with started.mark_exchange():
        assert started.absent_ranks() in ([], [0])
    started.leave()
    assert not ends and not any(thread.is_alive() for thread in started._threads)


@pytest.mark.parametrize("how", ["leave", "fail"])
def test_ctrl_c_while_a_rank_waits_for_the_others_leaves_no_thread_behind(
    store: Store, ends: list[AbortReason], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    started = monitor(store, size=2)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        started.leave() if how == "leave" else started.fail("ValueError", peer_lost=True)
    assert not ends and not any(thread.is_alive() for thread in started._threads)


def test_what_a_failing_rank_says_is_in_the_store(store: Store, ends: list[AbortReason]) -> None:
    monitor(store).fail("ValueError: too hard", peer_lost=False)
    (end,) = store.read([ABORT_KEY])
    assert end is not None and AbortReason.loads(end).sentence == "rank 0 failed: ValueError: too hard"
    assert not ends
