"""Requests to etcd in JSON over HTTP, to one member after another until one replies.

Knows: members' addresses, certificates, connections, the meaning of etcd's errors for a transaction. Does not
know: keys, transactions.

    event                                            repeatable request          other request

    no connection, or no reply to the greeting       ask the next member         the same
    the request is sent, and no readable reply       ask the next member         `OutcomeUnknownError`
      comes, or etcd has failed
    etcd refuses it as malformed or forbidden        `RejectedRequestError`              the same

A greeting is a read that the member answers by itself, with the number of its cluster. After it, a request is
sent only to etcd, of that one cluster, on a connection whose certificates both sides have accepted.
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cotswold.errors import ClusterError, MachineError
from cotswold.files.untrusted_json import JsonObject, MalformedError, parse_object, take
from cotswold.replication.metadata.interface import OutcomeUnknownError

ANSWER_BYTES_MAX = 32 << 20
_PIECE_BYTES = 64 << 10
RANGE = "/v3/kv/range"
_INVALID, _NOT_FOUND, _DENIED, _OUT_OF_RANGE, _UNIMPLEMENTED, _UNAUTHENTICATED = 3, 5, 7, 11, 12, 16
"""Codes of gRPC."""
_REFUSALS = (_INVALID, _NOT_FOUND, _DENIED, _OUT_OF_RANGE, _UNIMPLEMENTED, _UNAUTHENTICATED)
"""Errors that guarantee that nothing was done. Others do not: etcd may execute a transaction for which it
finds no space and report the lack afterwards."""


@dataclass(frozen=True)
class Tls:
    """PEM files for encrypted connections."""

    authority: Path
    """Certificate of the authority that signed those of the members."""
    certificate: Path | None = None
    """Certificate of this client, if etcd requires one."""
    key: Path | None = None
    """Key of that certificate; None if it is in the same file."""


@dataclass(frozen=True)
class Etcd:
    """Location of an etcd. Raises ClusterError for malformed endpoints."""

    endpoints: tuple[str, ...]
    """HOST:PORT of its members, for clients."""
    tls: Tls | None = None
    prefix: str = ""
    """Prefix of every key, so that several clusters can share an etcd."""
    timeout_seconds: float = 2.0
    """Timeout for each member, in seconds. etcd takes 1 to 2 s to replace a leader."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ClusterError("etcd has no endpoint; name HOST:PORT of each member")
        for each in self.endpoints:
            _host_and_port(each)
        if not self.timeout_seconds > 0:
            raise ClusterError(f"the timeout of etcd must be positive, got {self.timeout_seconds} s")


class RejectedRequestError(MachineError):
    """Error: etcd refused a request and did nothing."""

    def __init__(self, endpoint: str, code: int, said: str) -> None:
        remedy = "check its users and roles" if code in (_DENIED, _UNAUTHENTICATED) else "check its log"
        super().__init__(f"etcd at {endpoint} refused a request: {said:.200}; {remedy}")
        self.is_compacted = code == _OUT_OF_RANGE
        """True if the requested revision was compacted."""


class _UnansweredError(Exception):
    """Error: a member did not reply; the message says why."""


class Gateway:
    """Members of an etcd; the connection to the last one that replied is kept."""

    def __init__(self, etcd: Etcd, now: Callable[[], float] = time.monotonic) -> None:
        self._etcd, self._clock = etcd, now
        self._context = None if etcd.tls is None else _context(etcd.tls)
        self._endpoint_index = 0
        self._connection: http.client.HTTPConnection | None = None
        self._cluster: str | None = None
        key = b64encode(etcd.prefix.encode() or b"\0").decode()  # a key it may read, if any
        self._greeting = {"key": key, "serializable": True, "count_only": True}

    def request(self, path: str, body: Mapping[str, object], *, can_repeat: bool) -> JsonObject:
        """Return a reply. Raises OutcomeUnknownError if ``body`` may have been executed and cannot be
        repeated, RejectedRequestError, and MachineError if no member replies."""
        reasons = dict[str, str]()
        for _ in self._etcd.endpoints:
            endpoint = self._etcd.endpoints[self._endpoint_index]
            deadline = self._clock() + self._etcd.timeout_seconds
            try:
                connection = self._connected(endpoint, deadline)
            except _UnansweredError as error:
                reasons[endpoint] = str(error)
                self._next_endpoint()
                continue
            try:
                return self._post(connection, endpoint, path, body, deadline)
            except _UnansweredError as error:
                self._next_endpoint()
                if not can_repeat:
                    raise OutcomeUnknownError(
                        f"etcd at {endpoint} was asked for a transaction and {error}; whether it is done "
                        "shows when the state is read again"
                    ) from error
                reasons[endpoint] = str(error)
        said = "; ".join(f"{endpoint} {reason}" for endpoint, reason in reasons.items())
        raise MachineError(
            f"no member of etcd can answer: {said}; have most of its members run, or name other endpoints"
        )

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _next_endpoint(self) -> None:
        self.close()
        self._endpoint_index = (self._endpoint_index + 1) % len(self._etcd.endpoints)

    def _connected(self, endpoint: str, deadline: float) -> http.client.HTTPConnection:
        """Return a connection after its greeting. Raises _UnansweredError; then nothing was done."""
        if self._connection is not None and _is_open(self._connection):
            return self._connection
        self.close()
        host, port = _host_and_port(endpoint)
        seconds = self._etcd.timeout_seconds
        if self._context is None:
            connection = http.client.HTTPConnection(host, port, timeout=seconds)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=self._context)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise _UnansweredError(_error_text(error)) from error
            answer = self._post(connection, endpoint, RANGE, self._greeting, deadline)
            self._check_cluster(endpoint, answer)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _check_cluster(self, endpoint: str, answer: JsonObject) -> None:
        try:
            cluster = take(take(answer, "header", dict), "cluster_id", str)
        except MalformedError as error:
            raise _UnansweredError(f"does not answer like etcd ({error})") from error
        if self._cluster not in (None, cluster):
            raise MachineError(
                f"etcd at {endpoint} is of another cluster than {self._etcd.endpoints[0]} and the others; "
                "name members of one cluster"
            )
        self._cluster = cluster

    def _post(
        self,
        connection: http.client.HTTPConnection,
        endpoint: str,
        path: str,
        question: Mapping[str, object],
        deadline: float,
    ) -> JsonObject:
        """Return the reply on a connection, which is unusable after _UnansweredError."""
        try:
            self._limit(connection, deadline)
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(question).encode(), headers)
            response = connection.getresponse()
            contents = self._contents(connection, response, deadline)
        except (OSError, http.client.HTTPException) as error:
            raise _UnansweredError(_error_text(error)) from error
        try:
            answer = parse_object(contents, bytes_max=ANSWER_BYTES_MAX)
        except MalformedError as error:
            raise _UnansweredError(f"answers with HTTP status {response.status}, which {error}") from error
        if response.status == http.client.OK and "error" not in answer:
            return answer
        code, said = answer.get("code"), str(answer.get("message") or answer.get("error") or "no reason")
        if isinstance(code, int) and code in _REFUSALS:
            raise RejectedRequestError(endpoint, code, said)
        raise _UnansweredError(f"says {said!r:.200}")

    def _contents(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float
    ) -> bytes:
        pieces, count = list[bytes](), 0
        while True:
            self._limit(connection, deadline)
            piece = response.read1(_PIECE_BYTES)
            if not piece:
                if response.length:
                    raise http.client.IncompleteRead(b"", response.length)
                response.close()  # `read1` leaves it open; the connection is kept
                return b"".join(pieces)
            pieces.append(piece)
            count += len(piece)
            if count > ANSWER_BYTES_MAX:
                raise http.client.HTTPException(f"answers with more than {ANSWER_BYTES_MAX} bytes")

    def _limit(self, connection: http.client.HTTPConnection, deadline: float) -> None:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left)


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.authority)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(str(each) for each in (tls.authority, tls.certificate, tls.key) if each)
        raise MachineError(
            f"certificates for etcd cannot be read from {files}: {error.strerror or error}; "
            "name files in PEM, the key of the certificate among them"
        ) from error
    return context


def _no_password() -> str:
    raise OSError(None, "the key is encrypted, and passwords are not supported")


def _host_and_port(endpoint: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{endpoint}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or endpoint != parts.netloc or "@" in endpoint:
        raise ClusterError(f"{endpoint!r:.200} is not an endpoint of etcd; name HOST:PORT")
    return host, port


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """True if the other side has neither disconnected nor sent unrequested data."""
    if connection.sock is None:
        return False
    with suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(connection.sock, select.POLLIN)
        return not poll.poll(0)
    return False


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    if isinstance(error, ssl.SSLError):
        return f"and this client do not trust each other ({error.reason or error})"
    if isinstance(error, ConnectionError):
        return "cannot be reached" if isinstance(error, ConnectionRefusedError) else "hung up"
    if isinstance(error, OSError):
        return f"cannot be reached ({error.strerror or error})"
    return str(error) or type(error).__name__


def strings(answer: Mapping[str, object], name: str) -> Sequence[object]:
    """Return a list in a reply; empty if missing, as etcd omits empty lists."""
    return take(answer, name, list) if name in answer else ()
