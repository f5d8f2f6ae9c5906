"""Who may connect: those who know the run's token.

Knows: ZeroMQ's mechanisms PLAIN and CURVE, its authentication protocol (ZAP, RFC 27), HMAC. Does not know:
messages, peers.

*hmac*: the caller signs the challenge of the endpoint that it calls, a text of its own by chance, and its
name; the token never travels, and a signature is taken once. The endpoint answers by signing the caller's
text (`welcome`), before the caller sends anything else. *curve*: both have keys that are derived from the
token, so that each proves itself to the other, and all is encrypted. A stranger gets no further than
ZeroMQ's handshake: none of its messages is ever read.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass

import zmq
import zmq.utils.z85

from cotswold.cluster.transport.address import Mode
from cotswold.host import Token, is_signed, sign

_ZAP = "inproc://zeromq.zap.01"
_NONCE_BYTES = 16


@dataclass(frozen=True)
class Keys:
    """What is derived from the token."""

    signing: bytes
    server_secret: bytes
    server_public: bytes
    client_secret: bytes
    client_public: bytes

    @classmethod
    def of(cls, token: Token) -> Keys:
        """The keys of a run."""
        pairs = []
        for side in ("server", "client"):
            secret = zmq.utils.z85.encode(token.derive(f"transport {side}"))
            pairs += [secret, zmq.curve_public(secret)]
        return cls(token.derive("transport"), *pairs)


def new_nonce() -> str:
    """A text that nobody has had before."""
    return secrets.token_hex(_NONCE_BYTES)


def serve_as(socket: zmq.Socket[bytes], keys: Keys, mode: Mode) -> None:
    """Before it is bound: whoever connects is asked."""
    socket.zap_domain = mode.encode()
    if mode == "curve":
        socket.curve_server = 1
        socket.curve_secretkey = keys.server_secret
    else:
        socket.plain_server = 1


def call_as(socket: zmq.Socket[bytes], keys: Keys, mode: Mode, challenge: str, name: str, nonce: str) -> None:
    """Before it is connected: prove that this process knows the token."""
    if mode == "curve":
        socket.curve_serverkey = keys.server_public
        socket.curve_secretkey = keys.client_secret
        socket.curve_publickey = keys.client_public
        return
    who = f"{nonce}:{name}".encode()
    socket.plain_username = who
    socket.plain_password = sign(keys.signing, b"caller", challenge.encode(), who)


def welcome(keys: Keys, nonce: str, name: str) -> bytes:
    """What the endpoint called ``name`` answers to a caller's text."""
    return sign(keys.signing, b"called", nonce.encode(), name.encode())


def is_welcome(keys: Keys, signature: bytes, nonce: str, name: str) -> bool:
    """Whether the endpoint called ``name`` answered."""
    return is_signed(keys.signing, signature, b"called", nonce.encode(), name.encode())


class Doorkeeper:
    """Answers ZeroMQ's questions about callers, in a thread: also while the process computes."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, challenge: str) -> None:
        self._keys, self._challenge = keys, challenge.encode()
        self._seen: set[bytes] = set()
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP)
        self._thread = threading.Thread(target=self._answer, name="cotswold-doorkeeper", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end, after the context was told to end."""
        self._thread.join()

    def _answer(self) -> None:
        try:
            while True:
                asked = self._socket.recv_multipart()
                version, request = asked[0], asked[1]
                known = self._knows(asked[5], asked[6:])
                status = (b"200", b"OK") if known else (b"400", b"no token of this run")
                self._socket.send_multipart([version, request, *status, b"", b""])
        except zmq.ContextTerminated:
            self._socket.close()

    def _knows(self, mechanism: bytes, said: list[bytes]) -> bool:
        """Whether the caller knows the token."""
        if mechanism == b"CURVE":
            return said == [zmq.utils.z85.decode(self._keys.client_public)]
        if mechanism != b"PLAIN" or len(said) != 2:
            return False
        who, signature = said
        if who in self._seen or not is_signed(self._keys.signing, signature, b"caller", self._challenge, who):
            return False
        self._seen.add(who)
        return True
