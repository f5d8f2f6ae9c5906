"""Configuration of Ray: with a token, without usage reports, without a dashboard.

Knows: Ray's variables and versions, the tokens. Does not know: processes.

Ray only lists machines and carries commands; data travel elsewhere. Ray unpickles what arrives at its ports.
They belong on a trusted network, and callers must know Ray's token. That token is derived from the run's
token and reveals nothing about it, unless the user has given Ray its own token.
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
CONNECT_SECONDS = 5.0
_MIN_VERSION = (2, 52)
"""The first release of Ray with tokens."""
_OWN_TOKEN = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_HEADLESS_SECONDS = 24 * 3600
"""Seconds that a machine keeps running without Ray's head (Ray's default: 60); processes do not depend on
it."""


def require_ray() -> None:
    """Raise MissingExtraError if Ray is not installed, or its release has no tokens."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(
            f"Ray, which connects machines, is not installed; run {install('cluster')}, or leave "
            "--address out to use this machine only"
        )
    version = importlib.metadata.version("ray")
    if tuple(int(part) for part in version.split(".")[:2]) < _MIN_VERSION:
        raise MissingExtraError(
            f"Ray {version} has no tokens, and accepts every caller; run {install('cluster')}, "
            f"which installs ray>={_MIN_VERSION[0]}.{_MIN_VERSION[1]}"
        )


def check_joinable(address: str) -> None:
    """Raise MissingExtraError or UserError if machines at an address certainly cannot be joined."""
    require_ray()
    reachable(address)
    secret_of_machines()


def secret_of_machines(environ: Mapping[str, str] = os.environ) -> Token:
    """The secret that authenticates this machine at an address; raise UserError if there is none."""
    found = token_of(environ)
    if found is None:
        raise UserError(
            f"the machines at an address require their token; set {VARIABLE} to the token with which "
            "'cotswold worker' was started there"
        )
    return found


def ray_environ(token: Token, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables for Ray; raise UserError if ``environ`` turns off its token."""
    mode = environ.get("RAY_AUTH_MODE", "token")
    if mode.lower() != "token":
        raise UserError(
            f"RAY_AUTH_MODE is {mode!r}, with which Ray accepts every caller; unset it, or set it to 'token'"
        )
    settings = {
        "RAY_NUM_REDIS_GET_RETRIES": "3",  # seconds until a head that was seen to listen counts as refusing
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_HEADLESS_SECONDS),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # GPUs stay visible
    }
    if not any(environ.get(name) for name in _OWN_TOKEN):
        settings["RAY_AUTH_TOKEN"] = token.derive("Ray").hex()
    return settings


def fingerprint(token: Token | None) -> str:
    """Identifier of a token that reveals nothing about it; "" for none."""
    return "" if token is None else token.derive("fingerprint").hex()[:16]


def reachable(address: str, seconds: float = CONNECT_SECONDS) -> str:
    """Check that a process listens at ``HOST:PORT`` (default port: Ray's) and return the address; raise
    UserError if not."""
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(DEFAULT_PORT))
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UserError(f"{address!r} is not an address; give HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError as error:
        raise UserError(
            f"no process answers at {address} ({error.strerror or error}); check that 'cotswold worker "
            "--head' runs there, and that the network lets this machine through"
        ) from error
    return f"{host}:{port}"
