"""Shards in memory, within a bound: those that were used last stay.

Knows: arrays by key, their bytes, threads. Does not know: stores, what is in a shard.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


class ShardCache:
    """At most ``bound_bytes`` of arrays; several threads may use it.

    Room is made before an array is loaded, so the bound holds at every time. What is larger than the bound is
    loaded and not kept. An array that several threads want is loaded once.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.bytes = self.bytes_most = 0
        """What is kept, or loaded to be kept; the most there ever was."""
        self.hits = self.misses = 0
        self._kept: OrderedDict[Hashable, Array] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._loading: dict[Hashable, threading.Event] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, size_bytes: int, load: Callable[[], Array]) -> Array:
        """The array of a key, which is not to be written to; raises what ``load`` raises."""
        while True:
            with self._lock:
                found = self._kept.get(key)
                if found is not None:
                    self.hits += 1
                    self._kept.move_to_end(key)
                    return found
                loading = self._loading.get(key)
                if loading is None:
                    self.misses += 1
                    is_kept = self._make_room(size_bytes)
                    if is_kept:
                        self._loading[key] = threading.Event()
                        self._sizes[key] = size_bytes
                    break
            loading.wait()  # and look again: it may have failed, or be gone already
        if not is_kept:
            return load()
        try:
            array = load()
            assert array.nbytes <= size_bytes, f"{array.nbytes} bytes where {size_bytes} were announced"
            array.flags.writeable = False
            with self._lock:
                self._kept[key] = array
        except BaseException:
            with self._lock:
                self.bytes -= self._sizes.pop(key)
            raise
        finally:
            with self._lock:
                self._loading.pop(key).set()
        return array

    def _make_room(self, size_bytes: int) -> bool:
        """Let go of what was used longest ago, until so much more fits; False where it never would."""
        if size_bytes > self.bound_bytes:
            return False
        while self.bytes + size_bytes > self.bound_bytes and self._kept:
            key, _ = self._kept.popitem(last=False)
            self.bytes -= self._sizes.pop(key)
        if self.bytes + size_bytes > self.bound_bytes:  # the rest is being loaded
            return False
        self.bytes += size_bytes
        self.bytes_most = max(self.bytes_most, self.bytes)
        return True
