"""A thread that makes a few things ready before they are wanted.

Knows: an iterator, a bound. Does not know: what is made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

T = TypeVar("T")


class Ahead(Iterator[T]):
    """The same things, made in a thread of its own, with what goes wrong there; one thread takes them.

    Whoever takes what is ready neither waits for a lock nor wakes the other thread, but where half of what
    may wait is taken: then it is made again, up to ``most``. A queue of the standard library takes twice as
    long.
    """

    def __init__(
        self, made: Generator[T, None, None], most: int, stop: Callable[[], None] = lambda: None
    ) -> None:
        """``stop`` ends the waiting of ``made`` in another thread."""
        self._made, self._most, self._stop_waiting = made, most, stop
        self._ready: deque[T | Exception] = deque()
        self._changed = threading.Condition()
        # each is told of in `_changed` before what it waits for is looked at, so that no change is missed
        self._is_taker_waiting = self._is_maker_waiting = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How much is ready."""
        return len(self._ready)

    def __next__(self) -> T:
        """What comes next; raises what ``made`` raised, after which nothing comes, as after `close`."""
        if not self._ready:
            with self._changed:
                self._is_taker_waiting = True
                self._changed.wait_for(lambda: self._ready or self._is_over)
                self._is_taker_waiting = False
            if not self._ready:
                raise StopIteration
        found = self._ready.popleft()
        if self._is_maker_waiting and self._has_room:
            with self._changed:
                self._changed.notify_all()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self, *, wait: bool = True) -> None:
        """Have the thread end; ``wait`` until it has."""
        self._end()
        self._stop_waiting()
        if wait:
            self._thread.join()

    @property
    def _has_room(self) -> bool:
        return len(self._ready) <= self._most // 2

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            for each in self._made:
                if self._is_over:
                    return
                self._put(each)
        except Exception as error:  # raised again where the next one was wanted
            self._put(error)
        finally:
            self._made.close()
            self._end()

    def _put(self, item: T | Exception) -> None:
        self._ready.append(item)
        if self._is_taker_waiting:
            with self._changed:
                self._changed.notify_all()
        if len(self._ready) >= self._most:
            with self._changed:
                self._is_maker_waiting = True
                self._changed.wait_for(lambda: self._has_room or self._is_over)
                self._is_maker_waiting = False
