"""Events about lost samples."""

from __future__ import annotations

from cotswold.paramserver.core.dispatcher_state import lost_samples_event


def test_samples_are_named_by_epoch_and_place() -> None:
    event = lost_samples_event(((2003, 2050), (2060, 2061)), samples=1000, of="that counted")
    assert event.sentence == (
        "48 samples that counted were lost by a server and are handed out again: epoch 3: 3 to 49; "
        "epoch 3: 60"
    )
    assert (event.kind, event.places) == ("samples_lost", ((2003, 2050), (2060, 2061)))


def test_a_range_over_the_end_of_an_epoch_is_named_in_both() -> None:
    assert lost_samples_event(((8, 12),), 10, "that counted").sentence.endswith(
        ": epoch 1: 8 to 9; epoch 2: 0 to 1"
    )


def test_of_many_ranges_a_sentence_has_some_and_the_event_all() -> None:
    lost = tuple((10 * number, 10 * number + 2) for number in range(9))
    event = lost_samples_event(lost, samples=1000, of="that replica-1 had in hand")
    assert event.sentence.endswith("epoch 1: 50 to 51; and 3 more ranges")
    assert event.places == lost


def test_where_nothing_is_lost_it_is_said() -> None:
    assert lost_samples_event((), 1000, "that counted").sentence == "no samples that counted are lost"
