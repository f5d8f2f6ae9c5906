"""Errors as other ranks receive them."""

from __future__ import annotations

import pytest
from torch.distributed import DistNetworkError

from cotswold.errors import RecipeError
from cotswold.launch.watch.failure import describe_error, is_peer_lost

GLOO = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:41250")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RecipeError("no such field"), "no such field"),
        (ValueError("two\nlines"), "ValueError: two lines"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (MemoryError(), "it ran out of memory (MemoryError)"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"),
            "it ran out of memory (DefaultCPUAllocator: can't allocate memory: you tried 8 bytes)",
        ),
    ],
)
def test_an_error_is_one_line_that_says_what_went_wrong(error: BaseException, sentence: str) -> None:
    assert describe_error(error) == sentence


def test_an_exchange_that_broke_off_is_known_also_behind_another_error() -> None:
    outer = RecipeError("the exchange failed")
    outer.__cause__ = GLOO
    assert is_peer_lost(GLOO) and is_peer_lost(outer) and is_peer_lost(DistNetworkError("failed to recv"))
    assert not is_peer_lost(ValueError("Connection closed by peer")) and not is_peer_lost(
        RuntimeError("too large")
    )
