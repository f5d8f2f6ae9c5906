"""A service in a background thread that runs until it is closed.

Knows: the thread, its errors, the ``with`` statement. Does not know: the service.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class BackgroundService(ABC):
    """A service in a background thread; use it in a ``with`` statement, or call `close`."""

    def __init__(self, name: str) -> None:
        self._error: BaseException | None = None
        self._ready, self._stop, self._done = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _serve(self) -> None:
        """Serve in the thread until `_stop` is set; set `_ready` when clients may connect."""

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the service.

        Args:
            seconds: Timeout in seconds.

        Returns:
            True if the service has ended.

        Raises:
            MachineError: if a server is lost.
        """
        over = self._done.wait(seconds)
        self._raise_error()
        return over

    def close(self) -> None:
        """End all sessions and processes."""
        self._stop.set()
        self._thread.join()
        self._raise_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        self._stop.set()
        self._thread.join()

    def _begin(self) -> None:
        """Start the thread and wait until it is ready. Raises its error if it fails to start."""
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C while processes start
            self._stop.set()
            raise
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()
            self._ready.set()
