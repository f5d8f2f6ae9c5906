"""The ranks' store, in which only texts signed with the run's token count.

Knows: stores, signatures. Does not know: the texts' meaning, how the store was created.

A torch store asks for no password: any process that reaches its port can write into it. So each text is
signed together with its name, with a key that is valid for one start of the ranks. Texts written by
strangers, or replayed from another name or an earlier start, are ignored. Overwriting or deleting texts
cannot be prevented here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cotswold.host.token import is_signed, sign

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # documented, not in __all__

_EMPTY = ""
"""Text of a name that is not written yet; torch's `get` waits for a name that is missing."""


class SignedStore:
    """Signed texts by name in ``store``.

    Texts are signed with ``key``; ``warn`` receives the name of each text that is not.
    """

    def __init__(self, store: Store, key: bytes, warn: Callable[[str], None]) -> None:
        self._store, self._key, self._warn = store, key, warn

    def prepare(self, names: Sequence[str]) -> None:
        """Create names so that `read` does not wait for them."""
        for name in names:
            self._store.set(name, _EMPTY)

    def has(self, name: str) -> bool:
        """True if any text is stored under a name, signed or not."""
        return bool(self._store.check([name]))

    def write(self, name: str, text: str) -> None:
        """Store a signed text under ``name``."""
        self._store.set(name, self._sign(name, text))

    def write_if_absent(self, name: str, text: str) -> str:
        """Store a signed text under ``name`` unless there is one; return the stored text."""
        ours = self._sign(name, text)
        there = self._store.compare_set(name, _EMPTY, ours)
        if there == ours.encode():
            return text
        said = self._verify(name, there)
        if said is None:
            self._store.set(name, ours)
            return text
        return said

    def read(self, names: Sequence[str]) -> list[str | None]:
        """Return the text of each name, None if it is not signed. Waits for names that are missing."""
        values = self._store.multi_get(list(names))
        return [self._verify(name, value) for name, value in zip(names, values, strict=True)]

    def _sign(self, name: str, text: str) -> str:
        return f"{sign(self._key, name.encode(), text.encode()).decode()} {text}"

    def _verify(self, name: str, value: bytes) -> str | None:
        if value == _EMPTY.encode():
            return None
        signature, _, content = value.partition(b" ")
        if not is_signed(self._key, signature, name.encode(), content):
            self._warn(name)
            return None
        return content.decode()
