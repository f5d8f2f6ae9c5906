"""Proof that a caller has the name that it says: by a key that the token does not give.

Knows: HMAC, how keys of pairs are made. Does not know: who made a key, who vouches for a name, sockets.

Every process of a cluster knows the token, and the token lets a caller choose its name. A process may have a
key of its own besides. Whoever knows that key vouches for the name: it gives another process the key of the
pair, which serves between these two alone. The caller proves the name once, in its `Hello`:

    key of the pair   HMAC(own key, name of the called process)
    proof             HMAC(key of the pair, nonce of the call, name and address of the caller)
"""

from __future__ import annotations

from cotswold.host import is_signed, sign


def pair_key(own_key: str, to: str) -> str:
    """The key by which the owner of ``own_key`` proves its name to the process called ``to``."""
    return sign(own_key.encode(), b"name towards", to.encode()).decode()


def proof(pair: str, nonce: str, name: str, address: str) -> str:
    """The proof for one call."""
    return sign(pair.encode(), *_parts(nonce, name, address)).decode()


def is_proof(pair: str, said: str, nonce: str, name: str, address: str) -> bool:
    """Whether a caller knows the key of the pair."""
    return is_signed(pair.encode(), said.encode(), *_parts(nonce, name, address))


def _parts(nonce: str, name: str, address: str) -> tuple[bytes, ...]:
    return b"name", nonce.encode(), name.encode(), address.encode()
