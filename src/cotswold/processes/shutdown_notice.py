"""A machine's shutdown notice to the processes that run on it.

Knows: a Unix socket in a folder of this user, its name in the environment. Does not know: Ray, processes.

The machine's supervisor listens. Processes connect and read: the end of the stream means that the machine
shuts down. A process disconnects once it and its children are done.
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


class ShutdownNotice:
    """The supervisor's end of the notice; must be closed."""

    def __init__(self) -> None:
        self._folder = short_folder()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._folder / "notice"))
        self._listener.listen()

    def environ(self) -> Mapping[str, str]:
        """Environment variables that processes on this machine must inherit."""
        return {VARIABLE: str(self._folder / "notice")}

    def send(self, seconds: float, hurry: socket.socket) -> None:
        """Give notice, and wait until all processes are done, for at most ``seconds``, or until ``hurry``
        is readable."""
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
        """Close the socket, and remove its folder."""
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def open_notice(environ: Mapping[str, str]) -> socket.socket | None:
    """Connect to the notice of this machine, if it has one; the connection ends when the machine shuts
    down."""
    path = environ.get(VARIABLE)
    if not path:
        return None
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.connect(path)
    except OSError:  # its supervisor has exited
        found.close()
        return None
    found.setblocking(False)
    os.set_inheritable(found.fileno(), False)
    return found
