"""The connection of this program to a Ray cluster.

Knows: Ray's environment, signal handlers, log lines. Does not know: machines, processes.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cotswold.errors import UserError
from cotswold.host import Token, token
from cotswold.processes.ray.settings import ray_environ

_MAX_MESSAGE_CHARS = 160


@contextmanager
def _default_signals() -> Iterator[None]:
    """Keep this program's signal handlers; Ray installs its own handler of SIGTERM when it connects."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        with suppress(ValueError):  # in other threads Ray leaves them alone, too
            signal.signal(number, handler)


_found: dict[str, str] = {}
"""Ray's variables in the environment when it was imported here; they may have been removed since."""


def connect_ray(address: str, given: Token) -> tuple[Any, bool]:
    """Return the module `ray`, connected, and True if this call connected it."""
    settings = ray_environ(given)
    found = _found or os.environ
    if "ray" in sys.modules and any(found.get(name) != text for name, text in settings.items()):
        raise UserError(
            "this program has imported ray before its token was set; import it later, or leave --address out"
        )
    os.environ.update(settings)
    _found.update(settings)
    import ray
    import ray.util.scheduling_strategies

    if ray.is_initialized():
        if not _is_same(address, ray.get_runtime_context().gcs_address):
            raise UserError(
                f"this program uses Ray at another address than {address}; call ray.shutdown() first"
            )
        return ray, False
    said: list[str] = []
    try:
        with _default_signals(), _captured_ray_log(said):
            ray.init(address=address, namespace="cotswold", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError) as error:
        if any(_WRONG_TOKEN in each for each in (*said, str(error))):
            raise UserError(
                f"the machines at {address} have another token than this program; set {token.VARIABLE} to "
                "the contents of the token file of 'cotswold worker' there (sha256sum shows whether two "
                "files are the same)"
            ) from error
        raise UserError(
            f"this machine has not joined those at {address}: {short_message(error)}; run "
            f"'cotswold worker --address {address}' here, with the same token"
        ) from error
    _stop_ray_listener(ray)
    return ray, True


def _stop_ray_listener(ray: Any) -> None:
    """Stop Ray's thread for error messages at the next message, or when the head exits. Otherwise it polls
    a lost head without a pause (`ray._private.worker.listen_error_messages`), which uses a whole core."""
    with suppress(AttributeError):  # other releases of Ray may lack this
        ray._private.worker.global_worker.threads_stopped.set()


_WRONG_TOKEN = "InvalidAuthToken"
"""Ray's name of the error, which appears only in its log."""
_RAY_LINE = re.compile(r"\[\d{4}-\d\d-\d\d [^]]*\] ?\S+\.cc:\d+: ")
"""A line of Ray's log, which its C++ writes to standard error."""


@contextmanager
def _captured_ray_log(said: list[str]) -> Iterator[None]:
    """Keep the lines of Ray's log from the terminal, and append them to ``said``."""
    with tempfile.TemporaryFile() as caught:
        sys.stderr.flush()
        before = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            caught.seek(0)
            for line in caught.read().decode(errors="replace").splitlines(keepends=True):
                if _RAY_LINE.match(line):
                    said.append(line)
                else:  # not from Ray
                    os.write(2, line.encode())


def _is_same(address: str, other: str) -> bool:
    """True if two addresses are the same; the second has a numeric host."""
    (host, _, port), (other_host, _, other_port) = address.rpartition(":"), other.rpartition(":")
    found = socket.gethostbyname(host)
    return port == other_port and (found == other_host or found.startswith("127."))


def short_message(error: BaseException) -> str:
    """The first line of Ray's message, shortened."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return textwrap.shorten(line, _MAX_MESSAGE_CHARS)
