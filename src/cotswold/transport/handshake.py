"""The first message of a caller: its name, its address, and the endpoint that it wants.

Knows: the fields and their encoding. Does not know: sockets, authorization.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cotswold.errors import ClusterError
from cotswold.transport.address import Address
from cotswold.transport.frames import MalformedFrameError, pack, unpack
from cotswold.transport.names import is_proof

_LONGEST = 1024
_NAME = re.compile(r"[A-Za-z0-9._/-]{1,64}")


def is_name(text: str) -> bool:
    """True if a text can name an endpoint."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Hello:
    """The first message of a connection. The version in its frame is the newest that the caller speaks."""

    name: str
    address: Address
    nonce: str
    """Random text that the called endpoint signs."""
    to: str
    """Name of the endpoint that the caller wants."""
    probe: int
    """Descriptor of a block that the called endpoint may try to map."""
    oldest: int = 0
    """The oldest version of the protocol that the caller speaks."""
    answers: str = ""
    """The `nonce` of the call that this one answers; empty if it answers none."""
    proof: str = ""
    """Proof of the name, for a process that has the pair key (`transport.names.proof`); empty without a
    key."""

    @property
    def packed(self) -> bytes:
        """The encoded message."""
        return pack({**vars(self), "address": str(self.address)})

    @classmethod
    def read(cls, data: bytes | memoryview) -> Hello:
        """Decode a message, ignoring unknown fields; raise MalformedFrameError for anything else."""
        said = unpack(data)
        if not isinstance(said, dict):
            raise MalformedFrameError("no hello")
        words = [said.get(key) for key in ("name", "address", "nonce", "to", "answers", "proof")]
        probe, oldest = said.get("probe"), said.get("oldest")
        are_texts = all(isinstance(one, str) and len(one) <= _LONGEST for one in words)
        if not are_texts or type(probe) is not int or type(oldest) is not int:
            raise MalformedFrameError("no hello")
        name, text, nonce, to, answers, proof = map(str, words)
        if not is_name(name):
            raise MalformedFrameError("no name")
        try:
            address = Address.parsed(text)
        except ClusterError as error:
            raise MalformedFrameError("no address") from error
        return cls(name, address, nonce, to, probe, oldest, answers, proof)

    def is_proved(self, pair: str) -> bool:
        """True if the caller knows the pair key, and so owns this name."""
        return is_proof(pair, self.proof, self.nonce, self.name, str(self.address))
