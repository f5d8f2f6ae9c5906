"""The ranks' store, in which only what a holder of the run's token has written counts.

Knows: stores, signatures. Does not know: what the texts mean, how the store came about.

Whoever reaches the port can write into a store of torch: it asks for no password. So each text is signed
together with its name, by a key that holds for one start of the ranks: what a stranger writes, or repeats
from another name or another start, is ignored. That somebody overwrites or deletes a text cannot be prevented
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cotswold.host.token import is_signed, sign

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # documented, not in __all__

_EMPTY = ""
"""What stands for a name of which nobody has said anything yet: reading a name that is not there waits."""


class SignedStore:
    """Texts by name in ``store``, signed with ``key``; ``warn`` hears the names under which others write."""

    def __init__(self, store: Store, key: bytes, warn: Callable[[str], None]) -> None:
        self._store, self._key, self._warn = store, key, warn

    def prepare(self, names: Sequence[str]) -> None:
        """Make names so that `read` does not wait for them."""
        for name in names:
            self._store.set(name, _EMPTY)

    def has(self, name: str) -> bool:
        """Whether anything is there under a name, by whomever."""
        return bool(self._store.check([name]))

    def write(self, name: str, text: str) -> None:
        """Have ``name`` say this."""
        self._store.set(name, self._signed(name, text))

    def write_first(self, name: str, text: str) -> str:
        """Have ``name`` say this unless somebody with the key has said something; returns what it says."""
        ours = self._signed(name, text)
        there = self._store.compare_set(name, _EMPTY, ours)
        if there == ours.encode():
            return text
        said = self._verified(name, there)
        if said is None:
            self._store.set(name, ours)
            return text
        return said

    def read(self, names: Sequence[str]) -> list[str | None]:
        """What each name says; None where nothing does that is signed. Waits for names that are not there."""
        values = self._store.multi_get(list(names))
        return [self._verified(name, value) for name, value in zip(names, values, strict=True)]

    def _signed(self, name: str, text: str) -> str:
        return f"{sign(self._key, name.encode(), text.encode()).decode()} {text}"

    def _verified(self, name: str, value: bytes) -> str | None:
        if value == _EMPTY.encode():
            return None
        signature, _, content = value.partition(b" ")
        if not is_signed(self._key, signature, name.encode(), content):
            self._warn(name)
            return None
        return content.decode()
