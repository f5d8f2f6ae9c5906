"""What a host says when it ends."""

from __future__ import annotations

import pytest

from cotswold.api.standing import _drained
from cotswold.cluster.station import Drained


@pytest.mark.parametrize(
    ("found", "has_disks", "sentence"),
    [
        (Drained(0), True, "nothing is left here"),
        (Drained(3), True, "3 copies were not taken over by others; what servers have is written"),
        (Drained(3), False, "3 copies were not taken over by others; it ends with these servers"),
        (Drained(0, ("server-a-0",)), True, "no controller has said what others took over of server-a-0"),
    ],
)
def test_what_is_left_is_said_and_where_it_is_not_known_that(
    found: Drained, has_disks: bool, sentence: str
) -> None:
    assert _drained(found, has_disks=has_disks).startswith(sentence)
