"""What people are told of samples that are lost."""

from __future__ import annotations

from cotswold.server.losses import loss


def test_samples_are_named_by_epoch_and_place_with_what_becomes_of_them() -> None:
    event = loss(((2003, 2050), (2060, 2061)), samples=1000, epoch=2, of="that counted")
    assert event.sentence == (
        "48 samples that counted are in no memory any more: epoch 3: 3 to 49; epoch 3: 60; "
        "they are handed out again"
    )
    assert (event.kind, event.places) == ("recalled", ((2003, 2050), (2060, 2061)))


def test_of_many_ranges_a_sentence_has_some_and_the_event_all() -> None:
    lost = tuple((10 * number, 10 * number + 2) for number in range(9))
    event = loss(lost, samples=1000, epoch=0, of="that replica-1 had in hand")
    assert "epoch 1: 50 to 51; and 3 ranges more; they" in event.sentence
    assert event.places == lost


def test_where_nothing_is_lost_it_is_said() -> None:
    assert loss((), 1000, 0, "that counted").sentence == (
        "0 samples that counted are in no memory any more: none; nothing is handed out again"
    )


def test_samples_of_an_epoch_that_is_over_are_left_out() -> None:
    assert loss(((3, 7),), 10, 1, "that counted").sentence.endswith("; 4 of epochs before are left out")
