"""A thread that prefetches items from a generator.

Knows: an iterator, a bound. Does not know: the type of the items.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

T = TypeVar("T")


class Prefetcher(Iterator[T]):
    """Iterate over ``made`` in a background thread that keeps up to ``most`` items ready, for one consumer.

    Exceptions of the generator are raised again in the consumer. Taking a ready item neither acquires a
    lock nor wakes the thread, except when the queue is down to half of ``most``: the thread then refills
    it. `queue.Queue` takes twice as long.
    """

    def __init__(
        self, made: Generator[T, None, None], most: int, stop: Callable[[], None] = lambda: None
    ) -> None:
        """Start the thread; ``stop`` interrupts a wait inside ``made`` from another thread."""
        self._iterator, self._most, self._stop_waiting = made, most, stop
        self._ready: deque[T | Exception] = deque()
        self._changed = threading.Condition()
        # each flag is set under `_changed` before its owner checks its condition, so no change is missed
        self._is_consumer_waiting = self._is_producer_waiting = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of ready items."""
        return len(self._ready)

    def __next__(self) -> T:
        """Return the next item, or raise the exception of ``made``, which ends the iteration like `close`."""
        if not self._ready:
            with self._changed:
                self._is_consumer_waiting = True
                self._changed.wait_for(lambda: self._ready or self._is_over)
                self._is_consumer_waiting = False
            if not self._ready:
                raise StopIteration
        found = self._ready.popleft()
        if self._is_producer_waiting and self._has_room:
            with self._changed:
                self._changed.notify_all()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self, *, wait: bool = True) -> None:
        """Stop the thread; with ``wait``, join it."""
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
            for each in self._iterator:
                if self._is_over:
                    return
                self._put(each)
        except Exception as error:  # raised again in the consumer by __next__
            self._put(error)
        finally:
            self._iterator.close()
            self._end()

    def _put(self, item: T | Exception) -> None:
        self._ready.append(item)
        if self._is_consumer_waiting:
            with self._changed:
                self._changed.notify_all()
        if len(self._ready) >= self._most:
            with self._changed:
                self._is_producer_waiting = True
                self._changed.wait_for(lambda: self._has_room or self._is_over)
                self._is_producer_waiting = False
