"""Authentication of callers: a caller must know a token of the ring.

Knows: ZeroMQ's mechanisms PLAIN and CURVE, its authentication protocol (ZAP, RFC 27), HMAC. Does not know:
messages, peers.

*hmac*: the caller signs the challenge of the endpoint that it calls, a random text (its nonce) and its name.
The token never travels, and each signature is accepted once. The endpoint signs the caller's text with the
same token (`welcome`) before the caller sends anything else. *curve*: both ends derive keys from the token,
authenticate each other, and encrypt everything. A stranger fails in ZeroMQ's handshake: none of its messages
is ever read.

With *hmac* a caller may use any token of the ring. With *curve* a socket has the keys of one token, which
`Token.fingerprint` identifies.
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
_MAX_SEEN = 1 << 16
"""Number of recent signatures that are remembered, so that none is accepted twice."""


@dataclass(frozen=True)
class Keys:
    """Keys derived from a token."""

    fingerprint: str
    signing_key: bytes
    server_secret: bytes
    server_public: bytes
    client_secret: bytes
    client_public: bytes

    @classmethod
    def of(cls, token: Token) -> Keys:
        """Derive the keys of a token."""
        pairs = []
        for side in ("server", "client"):
            secret = zmq.utils.z85.encode(token.derive(f"transport {side}"))
            pairs += [secret, zmq.curve_public(secret)]
        return cls(token.fingerprint, token.derive("transport"), *pairs)


@dataclass(frozen=True)
class KeySet:
    """The keys of all tokens in use; an endpoint listens with the first."""

    keys: tuple[Keys, ...]

    @classmethod
    def of(cls, given: Token | Keyring) -> KeySet:
        """The keys of a keyring, or of a single token."""
        return cls(tuple(map(Keys.of, Keyring.of(given).tokens)))

    @property
    def first(self) -> Keys:
        """The keys that callers use."""
        return self.keys[0]

    def named(self, fingerprint: str) -> Keys | None:
        """The keys of the token with a fingerprint; None if the token is not in use."""
        return next((each for each in self.keys if each.fingerprint == fingerprint), None)

    def for_fingerprint(self, fingerprint: str) -> list[Keys]:
        """The keys to try when calling an endpoint: first those of the token in its address, then the
        others, since the endpoint may have changed its token."""
        return sorted(self.keys, key=lambda each: each.fingerprint != fingerprint)


def new_nonce() -> str:
    """A random text that has never been used before."""
    return secrets.token_hex(_NONCE_BYTES)


def serve_as(socket: zmq.Socket[bytes], keys: Keys, mode: Mode) -> None:
    """Require authentication from callers; call before the socket is bound."""
    if mode == "curve":
        socket.zap_domain = f"{mode} {keys.fingerprint}".encode()
        socket.curve_server = 1
        socket.curve_secretkey = keys.server_secret
    else:
        socket.zap_domain = mode.encode()
        socket.plain_server = 1


def call_as(socket: zmq.Socket[bytes], keys: Keys, mode: Mode, challenge: str, name: str, nonce: str) -> None:
    """Prove that this process knows the token; call before the socket is connected."""
    if mode == "curve":
        socket.curve_serverkey = keys.server_public
        socket.curve_secretkey = keys.client_secret
        socket.curve_publickey = keys.client_public
        return
    who = signature_text(nonce, name).encode()
    socket.plain_username = who
    socket.plain_password = sign(keys.signing_key, b"caller", challenge.encode(), who)


def signature_text(nonce: str, name: str) -> str:
    """The text that a caller signs with *hmac*, together with the challenge."""
    return f"{nonce}:{name}"


def welcome_signature(keys: Keys, nonce: str, name: str) -> bytes:
    """The answer by which the endpoint called ``name`` proves itself to a caller."""
    return sign(keys.signing_key, b"called", nonce.encode(), name.encode())


def is_welcome(keys: Keys, signature: bytes, nonce: str, name: str) -> bool:
    """True if the endpoint called ``name`` signed the answer."""
    return is_signed(keys.signing_key, signature, b"called", nonce.encode(), name.encode())


class Authenticator:
    """Answers ZeroMQ's authentication requests in a thread, so also while the process computes.

    For each caller it returns ZeroMQ's *user id*: the fingerprint of the caller's token and, with *hmac*,
    the text that the caller signed. That text holds the nonce and the name, which the caller's `Hello` must
    repeat.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ring: KeySet, challenge: str) -> None:
        self.ring = ring
        """Keys that callers may use; may be replaced at any time."""
        self._challenge = challenge.encode()
        self._seen_nonces: set[bytes] = set()
        self._newest: deque[bytes] = deque()
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP)
        self._thread = threading.Thread(target=self._answer, name="cotswold-authenticator", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, after the context was terminated."""
        self._thread.join()

    def _answer(self) -> None:
        try:
            while True:
                asked = self._socket.recv_multipart()
                version, request, domain = asked[:3]
                keys = self._verified_keys(domain, asked[5], asked[6:])
                status = (b"400", b"no token of this run") if keys is None else (b"200", b"OK")
                user = b"" if keys is None else keys.fingerprint.encode() + self._signed_name(asked[5:])
                self._socket.send_multipart([version, request, *status, user, b""])
        except zmq.ContextTerminated:
            self._socket.close()

    @staticmethod
    def _signed_name(frames: list[bytes]) -> bytes:
        """The text that an accepted caller signed, after a space; empty with CURVE."""
        return b" " + frames[1] if frames[0] == b"PLAIN" else b""

    def _verified_keys(self, domain: bytes, mechanism: bytes, said: list[bytes]) -> Keys | None:
        """The keys of the token that the caller knows."""
        if mechanism == b"CURVE":
            keys = self.ring.named(domain.decode().rpartition(" ")[2])
            is_theirs = keys is not None and said == [zmq.utils.z85.decode(keys.client_public)]
            return keys if is_theirs else None
        if mechanism != b"PLAIN" or len(said) != 2:
            return None
        who, signature = said
        if who in self._seen_nonces:
            return None
        for keys in self.ring.keys:
            if is_signed(keys.signing_key, signature, b"caller", self._challenge, who):
                self._remember(who)
                return keys
        return None

    def _remember(self, nonce: bytes) -> None:
        self._seen_nonces.add(nonce)
        self._newest.append(nonce)
        if len(self._newest) > _MAX_SEEN:
            self._seen_nonces.remove(self._newest.popleft())
