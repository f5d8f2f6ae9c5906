"""A stranger's writes into the store do not count; a store of torch in memory, no process."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]  # documented, not in __all__

from cotswold.host import Token
from cotswold.launch.signed_store import SignedStore

KEY = Token.new().derive("this start")
OTHER = Token.new().derive("another start")
NAME = "member/1"


@pytest.fixture
def raw() -> Store:
    return HashStore()


@pytest.fixture
def warned() -> list[str]:
    return []


@pytest.fixture
def store(raw: Store, warned: list[str]) -> SignedStore:
    signed = SignedStore(raw, KEY, warned.append)
    signed.prepare([NAME, "end"])
    return signed


def test_what_is_signed_is_read_and_nothing_is_there_before(store: SignedStore, warned: list[str]) -> None:
    assert store.read([NAME, "end"]) == [None, None]
    store.write(NAME, "I am rank 1")
    assert store.read([NAME, "end"]) == ["I am rank 1", None]
    assert not warned


@pytest.mark.parametrize("forged", ["I am rank 1", "0" * 64 + " I am rank 1", "\xff\xfe", " ", '["a"'])
def test_what_a_stranger_writes_does_not_count(
    store: SignedStore, raw: Store, warned: list[str], forged: str
) -> None:
    raw.set(NAME, forged)
    assert store.read([NAME]) == [None]
    assert warned == [NAME]


def test_what_was_signed_under_another_name_does_not_count(
    store: SignedStore, raw: Store, warned: list[str]
) -> None:
    store.write(NAME, "rank 1 has died")
    raw.set("end", raw.get(NAME).decode())
    assert store.read(["end"]) == [None]
    assert warned == ["end"]


def test_what_was_signed_at_another_start_does_not_count(store: SignedStore, raw: Store) -> None:
    SignedStore(raw, OTHER, lambda name: None).write(NAME, "I was rank 1")
    assert store.read([NAME]) == [None]


def test_the_first_who_has_the_key_is_believed(store: SignedStore, raw: Store, warned: list[str]) -> None:
    assert store.write_if_absent("end", "rank 1 has died") == "rank 1 has died"
    assert SignedStore(raw, KEY, warned.append).write_if_absent("end", "rank 2 has died") == "rank 1 has died"
    assert not warned


def test_a_stranger_cannot_be_first(store: SignedStore, raw: Store) -> None:
    raw.set("end", "all is well")
    assert store.write_if_absent("end", "rank 1 has died") == "rank 1 has died"
    assert store.read(["end"]) == ["rank 1 has died"]
