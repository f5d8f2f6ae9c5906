"""Message after a request to stop, which names the remaining work of the strategy."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from cotswold.api.signals import catch_sigint, graceful_exit, stop_message
from cotswold.run import Stop


@pytest.mark.parametrize("listening", [catch_sigint, graceful_exit])
@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("supervised", "stopping after this step; press again to stop at once without saving"),
        ("batch", "stopping after this portion; press again to stop at once without saving"),
        ("downpour", "stopping: replicas push their pending gradients, then a checkpoint is saved;"),
    ],
)
def test_the_words_are_those_of_the_strategy(
    strategy: str,
    said: str,
    listening: Callable[[Stop, str], AbstractContextManager[None]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    stop = Stop()
    with listening(stop, stop_message(strategy)):
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.signal == signal.SIGINT
    assert capfd.readouterr().err.startswith(f"\n{said}")
