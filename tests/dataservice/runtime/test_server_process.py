"""A data server with a fake trainer: refusals, recoverable errors, and batches that it need not make."""

from __future__ import annotations

import select
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from cotswold.dataservice.runtime import server_process as data_server
from cotswold.dataservice.runtime.server_process import DataServer
from cotswold.errors import MachineError, UserError
from cotswold.transport import Ready
from cotswold.wire import POOL, BatchRejected, BatchReply, BatchRequest, DataServerReport, Message, Shutdown
from cotswold.wire.lifecycle import StopProcess
from cotswold.wire.messenger import Messenger, Received


class Talk:
    """A messenger that receives messages of one trainer and the head in turn."""

    def __init__(self, said: list[tuple[str, Any]], answers: int) -> None:
        self._said, self._answers = said, answers
        self.sent: list[Message] = []
        self.waiting = 0
        self.endpoint = SimpleNamespace(
            address="here",
            message_bytes=1 << 30,
            max_unread_bytes=1 << 30,
            unread_bytes=lambda peer: self.waiting,
            watch=self._watch,
            reserve=self._reserve,
            release=lambda peer, memory: self.released.append(memory),
        )
        self.reserved: list[memoryview] = []
        self.released: list[memoryview] = []

    def _reserve(self, peer: str, count: int) -> memoryview:
        self.reserved.append(memoryview(bytearray(count)))
        return self.reserved[-1]

    def _watch(self, descriptor: int) -> None:
        self._woken = descriptor

    def send(self, to: str, message: Message) -> bool:
        if not isinstance(message, DataServerReport):
            assert to == "trainer"
            self.sent.append(message)
        return True

    def receive(self, timeout: float) -> object:
        if self._said:
            return Received(*self._said.pop(0))
        if len(self.sent) >= self._answers:
            return Received(POOL, StopProcess())
        found, _, _ = select.select([self._woken], [], [], 20.0)
        assert found, "no answer in time"
        return Ready(self._woken)


class Work:
    """Makes batches of (1, 1, 1) samples, or runs a given action."""

    terms = "{}"
    cache = SimpleNamespace(hits=0, misses=0, bytes=0, peak_bytes=0)

    def __init__(self, make: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._make = make
        self.made: list[int] = []
        self.given: list[memoryview | None] = []

    def batches(
        self, view: str, epoch: int, rows: Any, out: memoryview | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.made.append(epoch)
        self.given.append(out)
        samples, labels = self._make(rows.size)
        return samples[None], labels[None]


def plain(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(1, 1, 1, count).permute(3, 2, 0, 1), torch.zeros(count, dtype=torch.int64)


def ask(number: int, samples: int = 2) -> tuple[str, BatchRequest]:
    return "trainer", BatchRequest(number, "", number, samples, (np.arange(samples).tobytes(),))


def answers(work: Work, talk: Talk, threads: int = 1) -> list[Message]:
    server = DataServer("s", work, cast(Messenger, talk), threads, 0.2)
    try:
        server.serve()
    finally:
        server.close()
    return talk.sent


def test_a_batch_that_is_too_long_to_send_is_refused_and_the_next_one_made() -> None:
    def make(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        if count == 5:
            return torch.zeros(1).expand(1, 1, 1, 1 << 28).permute(3, 2, 0, 1), torch.zeros(1)
        return plain(count)

    refused, made = answers(Work(make), Talk([ask(1, 5), ask(2)], 2))
    assert isinstance(refused, BatchRejected) and "is too long for a message" in refused.why
    assert isinstance(made, BatchReply) and made.number == 2


def test_every_batch_but_the_first_of_a_view_is_made_in_memory_for_its_trainer() -> None:
    work, talk = Work(plain), Talk([ask(1, 3)], 1)
    answers(work, talk)
    assert work.given == [None] and not talk.reserved
    many = Work(plain)
    server = DataServer("s", many, cast(Messenger, talk := Talk([ask(1, 3)], 3)), 1, 0.2)
    answered = talk.send

    def send(to: str, message: Message) -> bool:  # the next request follows the answer
        if isinstance(message, BatchReply) and message.number < 3:
            talk._said.append(ask(message.number + 1, 3))
        return answered(to, message)

    talk.send = send  # type: ignore[method-assign]  # of this messenger alone
    try:
        server.serve()
    finally:
        server.close()
    assert len(talk.sent) == 3
    assert many.given == [None, *talk.reserved] and len(talk.reserved) == 2
    assert [each.nbytes for each in talk.reserved] == [3 * (4 + 8) + 64] * 2
    assert talk.released == talk.reserved


def test_memory_that_a_batch_has_reserved_is_not_counted_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_server, "_QUEUED_BYTES", 120)  # a batch has 36 bytes and reserves 100
    talk = Talk([ask(1, 3)], 2)
    talk.endpoint.unread_bytes = lambda peer: sum(each.nbytes for each in talk.reserved)
    answered = talk.send

    def send(to: str, message: Message) -> bool:
        if isinstance(message, BatchReply) and message.number == 1:
            talk._said.append(ask(2, 3))
        return answered(to, message)

    talk.send = send  # type: ignore[method-assign]  # of this messenger alone
    first, second = answers(Work(plain), talk)
    assert talk.reserved and isinstance(first, BatchReply) and isinstance(second, BatchReply)


@pytest.mark.parametrize("batches", [-1, 0, 4, 1 << 40])
def test_batches_that_cannot_be_are_refused_and_the_next_ones_made(batches: int) -> None:
    odd = replace(ask(1, 6)[1], batches=batches)
    refused, made = answers(Work(plain), Talk([("trainer", odd), ask(2)], 2))
    assert isinstance(refused, BatchRejected) and f"6 in {batches} batches" in refused.why
    assert isinstance(made, BatchReply) and made.number == 2


@pytest.mark.parametrize(
    ("error", "why"),
    [(SystemExit(3), "SystemExit"), (RuntimeError("odd"), "odd"), (UserError("no such row"), "no such row")],
)
def test_whatever_ends_a_transform_does_not_end_the_server(error: BaseException, why: str) -> None:
    def make(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        if count == 5:
            raise error
        return plain(count)

    refused, made = answers(Work(make), Talk([ask(1, 5), ask(2)], 2))
    assert isinstance(refused, BatchRejected) and why in refused.why
    assert isinstance(made, BatchReply)


def test_what_a_trainer_would_not_take_is_not_even_made() -> None:
    work, talk = Work(plain), Talk([ask(1)], 1)
    talk.waiting = data_server._QUEUED_BYTES + 1
    (answer,) = answers(work, talk)
    assert answer == BatchRejected("s", 1, "") and not work.made


def test_a_trainer_that_has_as_much_as_one_asks_ahead_is_served() -> None:
    talk = Talk([ask(1)], 1)
    talk.waiting = 2 << 30
    (answer,) = answers(Work(plain), talk)
    assert isinstance(answer, BatchReply)


def test_a_server_that_is_not_wanted_says_why() -> None:
    talk = Talk([(POOL, Shutdown(0, "the others serve something else"))], 1)
    with pytest.raises(MachineError, match="rejected by its pool: the others serve something else"):
        answers(Work(plain), talk)
