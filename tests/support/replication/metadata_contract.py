"""Contract of every metadata store: derive from `StateContract`, and provide a place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from tests.support.replication.metadata_clients import Place, opened, played

from cotswold.replication.metadata import MetadataStore
from cotswold.replication.metadata.interface import KEY_BYTES_MAX, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX


class StateContract:
    """Tests of a store; ``place`` is a fixture that gives an empty one to each."""

    TIMES = 2000
    """Number of counts by each of two processes."""

    @pytest.fixture
    def state(self, place: Place) -> Iterator[MetadataStore]:
        with closing(opened(place)) as state:
            yield state

    def test_what_is_put_is_read_by_whoever_opens_it(self, state: MetadataStore, place: Place) -> None:
        assert state.transact([], [("a", "1"), ("ä/√", "ü\n\0"), ("b", "")])
        with closing(opened(place)) as other:
            for each in (state, other):
                assert each.read("") == {"a": "1", "b": "", "ä/√": "ü\n\0"}
                assert each.read("ä") == {"ä/√": "ü\n\0"} and each.read("c") == {}

    def test_a_key_is_put_where_it_is_absent_and_only_there(self, state: MetadataStore) -> None:
        assert state.transact([("a", None)], [("a", "1")])
        assert not state.transact([("a", None)], [("a", "2")])
        assert state.read("") == {"a": "1"}

    def test_a_key_is_put_where_its_value_is_the_one_compared(self, state: MetadataStore) -> None:
        state.transact([], [("a", "1")])
        assert not state.transact([("a", "2")], [("a", "3")])
        assert state.transact([("a", "1")], [("a", "3")])
        assert state.read("") == {"a": "3"}

    @pytest.mark.parametrize("value", ["", "1"])
    def test_an_absent_key_has_no_value(self, state: MetadataStore, value: str) -> None:
        assert not state.transact([("a", value)], [("b", "1")])
        assert state.transact([], [("a", "")]) and not state.transact([("a", None)], [])
        assert state.read("") == {"a": ""}

    def test_a_key_is_deleted_and_is_absent_then(self, state: MetadataStore) -> None:
        state.transact([], [("a", "1"), ("aa", "2")])
        assert state.transact([("a", "1")], [("a", None), ("c", None)])
        assert state.read("") == {"aa": "2"}
        assert state.transact([("a", None), ("c", None)], [("a", "3")])

    def test_nothing_is_put_where_one_comparison_of_many_fails(self, state: MetadataStore) -> None:
        state.transact([], [("a", "1"), ("b", "1")])
        assert not state.transact(
            [("a", "1"), ("b", "2"), ("c", None)], [("a", "5"), ("b", None), ("c", "5")]
        )
        assert state.read("") == {"a": "1", "b": "1"}

    def test_a_transaction_may_only_compare(self, state: MetadataStore) -> None:
        assert state.transact([], []) and state.transact([("a", None)], [])
        assert not state.transact([("a", "1")], [])

    def test_64_comparisons_and_puts_are_done_and_65_are_refused(self, state: MetadataStore) -> None:
        compare = [(f"key/{at}", None) for at in range(65)]
        put = [(f"key/{at}", str(at)) for at in range(65)]
        for many in ((compare, put[:1]), (compare[:1], put)):
            with pytest.raises(ValueError, match=r"at most 64 .*, got 65"):
                state.transact(*many)
        assert state.read("") == {}
        assert state.transact(compare[:64], put[:64])
        assert state.read("") == dict(sorted(put[:64]))

    def test_keys_and_values_that_etcd_would_not_take_are_refused_everywhere(
        self, state: MetadataStore
    ) -> None:
        whole = [
            (f"{at:064}", "x" * VALUE_BYTES_MAX) for at in range(TRANSACTION_BYTES_MAX // VALUE_BYTES_MAX)
        ]
        for put in ([("", "1")], [("é" * (KEY_BYTES_MAX // 2) + "x", "1")], whole):
            with pytest.raises(ValueError, match=r"has 1 to 512 bytes|has at most"):
                state.transact([], put)
        with pytest.raises(ValueError, match="has at most"):
            state.transact([("a", "x" * (VALUE_BYTES_MAX + 1))], [])
        with pytest.raises(ValueError, match="put a key only once"):
            state.transact([], [("a", "1"), ("a", None)])
        assert state.transact([], whole[:-1]) and state.read("") == dict(whole[:-1])

    def test_a_prefix_is_read_whole_however_many_keys_it_has(self, state: MetadataStore) -> None:
        many = [(f"key/{at:05}", str(at)) for at in range(2100)]
        for at in range(0, len(many), 60):
            assert state.transact([], many[at : at + 60])
        state.transact([], [("key", "no"), ("key0", "no")])
        assert list(state.read("key/").items()) == many
        assert list(state.read("key/", "key/00998", 700).items()) == many[999:1699]
        assert list(state.read("key/", "", 3).items()) == many[:3]
        assert state.read("key/", "key/02099") == {} == state.read("key/", "z", 5)
        assert list(state.read("", "", 2)) == ["key", "key/00000"]
        assert list(state.read("", "key/02098", 2)) == ["key/02099", "key0"]

    def test_two_processes_that_count_lose_nothing_and_nobody_sees_half_a_transaction(
        self, place: Place
    ) -> None:
        with ExitStack() as stack:
            both = [stack.enter_context(played("count", str(self.TIMES), *place)) for _ in range(2)]
            state = stack.enter_context(closing(opened(place)))
            for each in both:
                assert each.stdout is not None and each.stdout.readline() == "ready\n"
            for each in both:
                assert each.stdin is not None
                each.stdin.write("go\n")
                each.stdin.flush()
            seen = 0
            while any(each.poll() is None for each in both):
                found = state.read("count/")
                assert found.get("count/a") == found.get("count/b")
                assert seen <= (seen := int(found.get("count/a", 0)))
            lost = [int(each.communicate(timeout=10)[0]) for each in both]
            assert state.read("count/") == dict.fromkeys(("count/a", "count/b"), str(2 * self.TIMES))
        assert sum(lost) > 0  # they did compete
