"""Proof of a caller's name, by a key that the token does not reveal.

Knows: HMAC, the derivation of pair keys. Does not know: who made a key, who vouches for a name, sockets.

Every process of a cluster knows the token, and the token lets a caller choose its name. A process may also
have its own key. A third process that knows this key can vouch for the name: it sends another process the
pair key, which is valid between these two only. The caller proves its name once, in its `Hello`:

    pair key   HMAC(own key, name of the called process)
    proof      HMAC(pair key, nonce of the call, name and address of the caller)
"""

from __future__ import annotations

from cotswold.host import is_signed, sign


def pair_key(own_key: str, to: str) -> str:
    """The key by which the owner of ``own_key`` proves its name to the process called ``to``."""
    return sign(own_key.encode(), b"name towards", to.encode()).decode()


def proof(pair: str, nonce: str, name: str, address: str) -> str:
    """The proof for one call."""
    return sign(pair.encode(), *_signed_bytes(nonce, name, address)).decode()


def is_proof(pair: str, said: str, nonce: str, name: str, address: str) -> bool:
    """True if a caller knows the pair key."""
    return is_signed(pair.encode(), said.encode(), *_signed_bytes(nonce, name, address))


def _signed_bytes(nonce: str, name: str, address: str) -> tuple[bytes, ...]:
    return b"name", nonce.encode(), name.encode(), address.encode()
