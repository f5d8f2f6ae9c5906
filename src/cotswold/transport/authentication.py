"""Who may connect: those who know a token of the ring.

Knows: ZeroMQ's mechanisms PLAIN and CURVE, its authentication protocol (ZAP, RFC 27), HMAC. Does not know:
messages, peers.

*hmac*: the caller signs the challenge of the endpoint that it calls, a text of its own by chance, and its
name; the token never travels, and a signature is taken once. The endpoint answers by signing the caller's
text (`welcome`) with the same token, before the caller sends anything else. *curve*: both have keys that are
derived from the token, so that each proves itself to the other, and all is encrypted. A stranger gets no
further than ZeroMQ's handshake: none of its messages is ever read.

By *hmac* a caller may use any token of the ring. By *curve* a socket has the keys of one token; which one, a
`Token.fingerprint` says.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from dataclasses import dataclass

import zmq
import zmq.utils.z85

from cotswold.host import Keyring, Token, is_signed, sign
from cotswold.transport.address import Mode

_ZAP = "inproc://zeromq.zap.01"
_NONCE_BYTES = 16
_SEEN = 1 << 16
"""Signatures that are remembered, the newest, so that none is taken twice."""


@dataclass(frozen=True)
class Keys:
    """What is derived from a token."""

    fingerprint: str
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
        return cls(token.fingerprint, token.derive("transport"), *pairs)


@dataclass(frozen=True)
class Ring:
    """The keys of all tokens in use; with the first an endpoint listens."""

    keys: tuple[Keys, ...]

    @classmethod
    def of(cls, given: Token | Keyring) -> Ring:
        """Those of a ring, or of a token alone."""
        return cls(tuple(map(Keys.of, Keyring.of(given).tokens)))

    @property
    def first(self) -> Keys:
        """With which others call."""
        return self.keys[0]

    def named(self, fingerprint: str) -> Keys | None:
        """Those of the token with a fingerprint; None where it is not in use."""
        return next((each for each in self.keys if each.fingerprint == fingerprint), None)

    def towards(self, fingerprint: str) -> list[Keys]:
        """With which an endpoint is called: those of the token by which it says that it is reached, then the
        others, for it may be reached otherwise by now."""
        return sorted(self.keys, key=lambda each: each.fingerprint != fingerprint)


def new_nonce() -> str:
    """A text that nobody has had before."""
    return secrets.token_hex(_NONCE_BYTES)


def serve_as(socket: zmq.Socket[bytes], keys: Keys, mode: Mode) -> None:
    """Before it is bound: whoever connects is asked."""
    if mode == "curve":
        socket.zap_domain = f"{mode} {keys.fingerprint}".encode()
        socket.curve_server = 1
        socket.curve_secretkey = keys.server_secret
    else:
        socket.zap_domain = mode.encode()
        socket.plain_server = 1


def call_as(socket: zmq.Socket[bytes], keys: Keys, mode: Mode, challenge: str, name: str, nonce: str) -> None:
    """Before it is connected: prove that this process knows the token."""
    if mode == "curve":
        socket.curve_serverkey = keys.server_public
        socket.curve_secretkey = keys.client_secret
        socket.curve_publickey = keys.client_public
        return
    who = signature_text(nonce, name).encode()
    socket.plain_username = who
    socket.plain_password = sign(keys.signing, b"caller", challenge.encode(), who)


def signature_text(nonce: str, name: str) -> str:
    """What a caller signs by *hmac*, besides the challenge."""
    return f"{nonce}:{name}"


def welcome(keys: Keys, nonce: str, name: str) -> bytes:
    """What the endpoint called ``name`` answers to a caller's text."""
    return sign(keys.signing, b"called", nonce.encode(), name.encode())


def is_welcome(keys: Keys, signature: bytes, nonce: str, name: str) -> bool:
    """Whether the endpoint called ``name`` answered."""
    return is_signed(keys.signing, signature, b"called", nonce.encode(), name.encode())


class Doorkeeper:
    """Answers ZeroMQ's questions about callers, in a thread: also while the process computes.

    It says by the fingerprint with which token a caller has come, and by *hmac* also what the caller has
    signed (ZeroMQ's *user id*): its text by chance and its name, which its `Hello` must repeat.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ring: Ring, challenge: str) -> None:
        self.ring = ring
        """With whose keys callers come in; it may be another one at any time."""
        self._challenge = challenge.encode()
        self._seen: set[bytes] = set()
        self._newest: deque[bytes] = deque()
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
                version, request, domain = asked[:3]
                keys = self._known(domain, asked[5], asked[6:])
                status = (b"400", b"no token of this run") if keys is None else (b"200", b"OK")
                user = b"" if keys is None else keys.fingerprint.encode() + self._signed(asked[5:])
                self._socket.send_multipart([version, request, *status, user, b""])
        except zmq.ContextTerminated:
            self._socket.close()

    @staticmethod
    def _signed(said: list[bytes]) -> bytes:
        """What a caller that is known has signed, after a blank; nothing by CURVE."""
        return b" " + said[1] if said[0] == b"PLAIN" else b""

    def _known(self, domain: bytes, mechanism: bytes, said: list[bytes]) -> Keys | None:
        """The keys of the token that the caller knows."""
        if mechanism == b"CURVE":
            keys = self.ring.named(domain.decode().rpartition(" ")[2])
            is_theirs = keys is not None and said == [zmq.utils.z85.decode(keys.client_public)]
            return keys if is_theirs else None
        if mechanism != b"PLAIN" or len(said) != 2:
            return None
        who, signature = said
        if who in self._seen:
            return None
        for keys in self.ring.keys:
            if is_signed(keys.signing, signature, b"caller", self._challenge, who):
                self._remember(who)
                return keys
        return None

    def _remember(self, who: bytes) -> None:
        self._seen.add(who)
        self._newest.append(who)
        if len(self._newest) > _SEEN:
            self._seen.remove(self._newest.popleft())
