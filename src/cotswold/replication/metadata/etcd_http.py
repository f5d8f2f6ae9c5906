"""Questions to etcd in JSON over HTTP, asked of one member after another until one answers.

Knows: members' addresses, certificates, connections, what errors of etcd mean for a transaction. Does not
know: keys, transactions.

    what happens                                     a question that can be      another
                                                     asked again
    no connection, or the member does not answer     the next member is asked    the same
      a greeting
    the question is out, and no answer comes, or     the next member is asked    `OutcomeUnknownError`
      none that can be read, or etcd has failed
    etcd refuses it as wrong or not allowed          `RefusedError`              the same

A greeting is a read that the member answers by itself, with the number of its cluster. After it a question
is only sent to etcd, of that one cluster, on a connection whose certificates both sides have accepted.
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
"""With these nothing was done. Others tell nothing: etcd carries out a transaction for which it finds no
space, and says afterwards that there was none."""


@dataclass(frozen=True)
class Tls:
    """Files in PEM with which connections are encrypted."""

    authority: Path
    """The certificate of who signed those of the members."""
    certificate: Path | None = None
    """Of this client, where etcd asks for one."""
    key: Path | None = None
    """To that certificate; None where it is in the same file."""


@dataclass(frozen=True)
class Etcd:
    """Where an etcd is. Raises ClusterError for endpoints that are none."""

    endpoints: tuple[str, ...]
    """HOST:PORT of its members, for clients."""
    tls: Tls | None = None
    prefix: str = ""
    """Before every key, so that several clusters can share an etcd."""
    timeout_seconds: float = 2.0
    """For which each member is waited for. etcd takes 1 to 2 s to replace a leader."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ClusterError("no endpoint of etcd is named; name HOST:PORT of each member")
        for each in self.endpoints:
            _place(each)
        if not self.timeout_seconds > 0:
            raise ClusterError(f"etcd is waited for {self.timeout_seconds} s; name a positive number")


class RefusedError(MachineError):
    """What etcd will not do, and has not done."""

    def __init__(self, endpoint: str, code: int, said: str) -> None:
        remedy = "look at its users and roles" if code in (_DENIED, _UNAUTHENTICATED) else "look at its log"
        super().__init__(f"etcd at {endpoint} refused a request: {said:.200}; {remedy}")
        self.is_compacted = code == _OUT_OF_RANGE
        """Whether it was asked for a moment that it no longer remembers."""


class _UnansweredError(Exception):
    """A member that did not answer, and why, in words."""


class Gateway:
    """The members of an etcd; a connection is kept to the one that answered last."""

    def __init__(self, etcd: Etcd, now: Callable[[], float] = time.monotonic) -> None:
        self._etcd, self._now = etcd, now
        self._context = None if etcd.tls is None else _context(etcd.tls)
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None
        self._cluster: str | None = None
        key = b64encode(etcd.prefix.encode() or b"\0").decode()  # which it may read, if it may read any
        self._greeting = {"key": key, "serializable": True, "count_only": True}

    def ask(self, path: str, question: Mapping[str, object], *, can_repeat: bool) -> JsonObject:
        """An answer. Raises OutcomeUnknownError where ``question`` may have been carried out and cannot be
        repeated, RefusedError, and MachineError where no member answers."""
        reasons = dict[str, str]()
        for _ in self._etcd.endpoints:
            endpoint = self._etcd.endpoints[self._at]
            deadline = self._now() + self._etcd.timeout_seconds
            try:
                connection = self._connected(endpoint, deadline)
            except _UnansweredError as error:
                reasons[endpoint] = str(error)
                self._next()
                continue
            try:
                return self._asked(connection, endpoint, path, question, deadline)
            except _UnansweredError as error:
                self._next()
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
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _next(self) -> None:
        self.close()
        self._at = (self._at + 1) % len(self._etcd.endpoints)

    def _connected(self, endpoint: str, deadline: float) -> http.client.HTTPConnection:
        """A connection that has been greeted. Raises _UnansweredError; nothing was done then."""
        if self._connection is not None and _is_open(self._connection):
            return self._connection
        self.close()
        host, port = _place(endpoint)
        seconds = self._etcd.timeout_seconds
        if self._context is None:
            connection = http.client.HTTPConnection(host, port, timeout=seconds)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=self._context)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise _UnansweredError(_why(error)) from error
            answer = self._asked(connection, endpoint, RANGE, self._greeting, deadline)
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
            raise _UnansweredError(f"answers as no etcd would ({error})") from error
        if self._cluster not in (None, cluster):
            raise MachineError(
                f"etcd at {endpoint} is of another cluster than {self._etcd.endpoints[0]} and the others; "
                "name members of one cluster"
            )
        self._cluster = cluster

    def _asked(
        self,
        connection: http.client.HTTPConnection,
        endpoint: str,
        path: str,
        question: Mapping[str, object],
        deadline: float,
    ) -> JsonObject:
        """One answer on one connection, which is good for nothing after _UnansweredError."""
        try:
            self._limit(connection, deadline)
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(question).encode(), headers)
            response = connection.getresponse()
            contents = self._contents(connection, response, deadline)
        except (OSError, http.client.HTTPException) as error:
            raise _UnansweredError(_why(error)) from error
        try:
            answer = parse_object(contents, bytes_max=ANSWER_BYTES_MAX)
        except MalformedError as error:
            raise _UnansweredError(f"answers with HTTP status {response.status}, which {error}") from error
        if response.status == http.client.OK and "error" not in answer:
            return answer
        code, said = answer.get("code"), str(answer.get("message") or answer.get("error") or "no reason")
        if isinstance(code, int) and code in _REFUSALS:
            raise RefusedError(endpoint, code, said)
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
                response.close()  # which `read1` leaves open; the connection is for the next question
                return b"".join(pieces)
            pieces.append(piece)
            count += len(piece)
            if count > ANSWER_BYTES_MAX:
                raise http.client.HTTPException(f"answers with more than {ANSWER_BYTES_MAX} bytes")

    def _limit(self, connection: http.client.HTTPConnection, deadline: float) -> None:
        left = deadline - self._now()
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
    raise OSError(None, "the key is encrypted, and nobody is asked for a password")


def _place(endpoint: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{endpoint}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or endpoint != parts.netloc or "@" in endpoint:
        raise ClusterError(f"{endpoint!r:.200} is no endpoint of etcd; name HOST:PORT")
    return host, port


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has neither hung up nor said what nobody asked for."""
    if connection.sock is None:
        return False
    with suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(connection.sock, select.POLLIN)
        return not poll.poll(0)
    return False


def _why(error: Exception) -> str:
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
    """A list in an answer; empty where the answer has none, as etcd leaves out what is empty."""
    return take(answer, name, list) if name in answer else ()
