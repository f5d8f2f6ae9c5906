"""Lists of numbers in arguments."""

from __future__ import annotations

import pytest
from tests.support.cli.command import cotswold

from cotswold.cli.support.number_lists import numbers_of
from cotswold.errors import UserError


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1,,2", "1,x", "²", "3..1", "1..", "..2", "1..2..3", "1..2,4"]
)
def test_other_texts_are_refused_with_the_requirement(text: str) -> None:
    with pytest.raises(UserError) as refused:
        numbers_of(text, "--ranks must be numbers")
    assert str(refused.value) == f"--ranks must be numbers; got {text}"


def test_a_power_is_no_number_of_threads() -> None:
    said = cotswold("bench", "kernels", "--threads", "²")
    assert said.status == 2 and "--threads must be numbers, as in 1,2; got ²" in said.error
