"""A thread that makes a few things ready before they are wanted.

Knows: an iterator, a bound. Does not know: what is made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Hands out what an endless iterator makes in a thread of its own, and what goes wrong in it; one thread
    takes.

    Whoever takes what is ready neither waits for a lock nor wakes the other thread, but where half of what
    may wait is taken: then it is made again, up to ``most``.
    """

    def __init__(self, made: Generator[T, None, None], stop: Callable[[], None], most: int) -> None:
        """``stop`` ends the waiting of ``made`` in another thread."""
        self._made, self._stop_waiting, self._most = made, stop, most
        self._ready: deque[T | Exception] = deque()
        self._changed = threading.Condition()
        # each is told of in `_changed` before what it waits for is looked at, so that no change is missed
        self._is_taker_waiting = self._is_maker_waiting = self._is_stopped = self._is_ended = False
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How much is ready."""
        return len(self._ready)

    def get(self) -> T:
        """What comes next; raises what the iterator raised, and EOFError where nothing comes any more."""
        if not self._ready:
            with self._changed:
                self._is_taker_waiting = True
                self._changed.wait_for(lambda: self._ready or self._is_ended)
                self._is_taker_waiting = False
            if not self._ready:
                raise EOFError("nothing more is made")
        found = self._ready.popleft()
        if self._is_maker_waiting and self._has_room:
            with self._changed:
                self._changed.notify_all()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._stop_waiting()
        self._thread.join()
        self._made.close()

    @property
    def _has_room(self) -> bool:
        return len(self._ready) <= self._most // 2

    def _run(self) -> None:
        try:
            for each in self._made:
                if self._is_stopped:
                    return
                self._put(each)
        except Exception as error:  # raised again where the next one was wanted
            self._put(error)
        finally:
            with self._changed:
                self._is_ended = True
                self._changed.notify_all()

    def _put(self, item: T | Exception) -> None:
        self._ready.append(item)
        if self._is_taker_waiting:
            with self._changed:
                self._changed.notify_all()
        if len(self._ready) >= self._most:
            with self._changed:
                self._is_maker_waiting = True
                self._changed.wait_for(lambda: self._has_room or self._is_stopped)
                self._is_maker_waiting = False
