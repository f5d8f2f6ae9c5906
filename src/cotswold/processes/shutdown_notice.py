"""A machine's notice that it will go: from whoever lends it to what runs on it.

Knows: a Unix socket in a folder of this user's, its name in the environment. Does not know: Ray, processes.

Whoever lends the machine listens. What runs there connects, and reads: an end means that the machine goes. It
hangs up once nothing of it runs there any more.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import time
from collections.abc import Mapping

from cotswold.transport.socket_folder import short_folder

VARIABLE = "COTSWOLD_NOTICE"


class Notice:
    """Where the lender of a machine is asked; to be closed."""

    def __init__(self) -> None:
        self._folder = short_folder()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._folder / "notice"))
        self._listener.listen()

    def environ(self) -> Mapping[str, str]:
        """What those who run on this machine must inherit."""
        return {VARIABLE: str(self._folder / "notice")}

    def give(self, seconds: float, hurry: socket.socket) -> None:
        """Tell all that the machine goes, and wait until they are done, for so many seconds at most, or until
        ``hurry`` can be read."""
        deadline = time.monotonic() + seconds
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except BlockingIOError:
                    break
                connection.shutdown(socket.SHUT_WR)
                selector.register(connection, selectors.EVENT_READ)
            waiting = len(selector.get_map())
            selector.register(hurry, selectors.EVENT_READ)
            while waiting and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj is hurry:
                        return
                    if not key.fileobj.recv(1):
                        waiting -= 1
                        selector.unregister(key.fileobj)
                        key.fileobj.close()

    def close(self) -> None:
        """Nobody is asked any more."""
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def notice_of(environ: Mapping[str, str]) -> socket.socket | None:
    """A connection that ends when this machine is to go; None where nobody says so."""
    path = environ.get(VARIABLE)
    if not path:
        return None
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.connect(path)
    except OSError:  # whoever lent it is gone
        found.close()
        return None
    found.setblocking(False)
    os.set_inheritable(found.fileno(), False)
    return found
