"""What a caller says first: who it is, where it is reached, whom it wants.

Knows: the fields, how they are written. Does not know: sockets, whether the caller may.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cotswold.errors import ClusterError
from cotswold.transport.address import Address
from cotswold.transport.frames import MalformedError, pack, unpack
from cotswold.transport.names import is_proof

_LONGEST = 1024
_NAME = re.compile(r"[A-Za-z0-9._/-]{1,64}")


def is_name(text: str) -> bool:
    """Whether an endpoint can be called so."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Hello:
    """The first message of a connection; the version that its frame bears is the newest that the caller
    speaks."""

    name: str
    address: Address
    nonce: str
    """A text by chance, which the endpoint that is called signs."""
    to: str
    """The name of the endpoint that is wanted."""
    probe: int
    """The descriptor of a block that the other may try to map."""
    oldest: int = 0
    """The oldest version of the protocol that the caller speaks."""
    answers: str = ""
    """The `nonce` of the call that this one answers; empty where it answers none."""
    proof: str = ""
    """Proves the name to a process that knows the key of the pair (`names.proof`); empty without a key."""

    @property
    def packed(self) -> bytes:
        """As it travels."""
        return pack({**vars(self), "address": str(self.address)})

    @classmethod
    def read(cls, data: bytes | memoryview) -> Hello:
        """The inverse of `packed`, whatever fields there are besides; raises MalformedError for anything
        else."""
        said = unpack(data)
        if not isinstance(said, dict):
            raise MalformedError("no hello")
        words = [said.get(key) for key in ("name", "address", "nonce", "to", "answers", "proof")]
        probe, oldest = said.get("probe"), said.get("oldest")
        are_texts = all(isinstance(one, str) and len(one) <= _LONGEST for one in words)
        if not are_texts or type(probe) is not int or type(oldest) is not int:
            raise MalformedError("no hello")
        name, text, nonce, to, answers, proof = map(str, words)
        if not is_name(name):
            raise MalformedError("no name")
        try:
            address = Address.parsed(text)
        except ClusterError as error:
            raise MalformedError("no address") from error
        return cls(name, address, nonce, to, probe, oldest, answers, proof)

    def is_proved(self, pair: str) -> bool:
        """Whether the caller knows the key of the pair, and so has this name."""
        return is_proof(pair, self.proof, self.nonce, self.name, str(self.address))
