"""How Ray is used: with a token, without reports of usage, without a dashboard.

Knows: Ray's variables and versions, which token is whose. Does not know: processes.

Ray says which machines are there and carries commands; data go elsewhere. It unpickles what comes to its own
ports: they belong on a network that is trusted, and whoever connects must know its token. That is made from
the run's token, from which nothing can be learnt of it, unless the user has given Ray one.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import socket
from collections.abc import Mapping

from cotswold.errors import MissingExtraError, UserError, install
from cotswold.host import Token, token_of
from cotswold.host.token import VARIABLE

DEFAULT_PORT = 6379
REACHED_SECONDS = 5.0
_LEAST = (2, 52)
"""The first Ray that knows tokens."""
_OWN_TOKEN = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_HEADLESS_SECONDS = 24 * 3600
"""For this long a machine goes on without Ray's head (its own: 60): processes do not live by it."""


def require_ray() -> None:
    """Raise MissingExtraError where there is no Ray, or one that knows no token."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(
            f"machines are joined by Ray, which is not installed; run {install('cluster')}, or leave "
            "--address away to use this machine alone"
        )
    version = importlib.metadata.version("ray")
    if tuple(int(part) for part in version.split(".")[:2]) < _LEAST:
        raise MissingExtraError(
            f"Ray {version} knows no token, and lets everybody in; install ray>={_LEAST[0]}.{_LEAST[1]}"
        )


def check_joinable(address: str) -> None:
    """Raise MissingExtraError or UserError where it is clear beforehand that no machine at an address can be
    joined."""
    require_ray()
    reachable(address)
    secret_of_machines()


def secret_of_machines(environ: Mapping[str, str] = os.environ) -> Token:
    """The secret by which the machines at an address know this one; raises UserError where there is none."""
    found = token_of(environ)
    if found is None:
        raise UserError(
            f"the machines at an address let in who knows their secret; set {VARIABLE} to that with which "
            "'cotswold worker' was started there"
        )
    return found


def ray_environ(token: Token, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that Ray is to find; raises UserError where ``environ`` turns its token off."""
    mode = environ.get("RAY_AUTH_MODE", "token")
    if mode.lower() != "token":
        raise UserError(
            f"RAY_AUTH_MODE is {mode!r}, with which Ray lets everybody in; unset it, or set it to 'token'"
        )
    settings = {
        "RAY_NUM_REDIS_GET_RETRIES": "3",  # seconds in which a head refuses: it has been seen to listen
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_HEADLESS_SECONDS),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # GPUs stay to be seen
    }
    if not any(environ.get(name) for name in _OWN_TOKEN):
        settings["RAY_AUTH_TOKEN"] = token.derive("Ray").hex()
    return settings


def fingerprint(token: Token | None) -> str:
    """Tells two tokens apart; nothing about them can be learnt from it. "" for none."""
    return "" if token is None else token.derive("fingerprint").hex()[:16]


def reachable(address: str, seconds: float = REACHED_SECONDS) -> str:
    """An address ``HOST:PORT`` (by default Ray's port) at which somebody listens; else UserError."""
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(DEFAULT_PORT))
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UserError(f"{address!r} is no address; write HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError as error:
        raise UserError(
            f"nobody answers at {address} ({error.strerror or error}); is 'cotswold worker --head' running "
            "there, and does the network let this machine through?"
        ) from error
    return f"{host}:{port}"
