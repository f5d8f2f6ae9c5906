"""A trainer's pass over an epoch that it draws together with others.

Knows: which batches it was dealt, which are made, taken and handed to its loop. Does not know: what a batch
is, who deals, clocks.

    batch     what happens                                             next
    none      `Dealt` lists it                                         asked of data servers
    asked     `Dealt` lists it no more                                 none: another trainer has it
    asked     it is made, and one of the next ones to hand over        `take` is said of it, again and again
    asked     `Dealt` says that it is taken                            taken
    taken     it is made, and the first                                handed to the loop; `handed` is said
    handed    `Dealt` has heard of it                                  none

A batch is handed over only once it is taken: no other trainer gets it then. One more than the loop has is
taken ahead, so that the loop does not wait for the head's answer.

    pass      what happens                                             next
    on        `Dealt`: the epoch is over, and nothing is left          left
    on        the loop ends earlier                                    left
    on        `Dealt`: the session has ended, this trainer was silent  on, in a new session
    on        `Dealt` turns it away                                    an error
    left      `Dealt`: the session has ended                           done
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cotswold.dataservice.core.request_scheduler import Requests
from cotswold.wire import POOL, Ask, Dealt, Draw, Send, Supplied

AHEAD = 2
"""Batches that are taken before the loop has had them: one that it waits for, and one more."""
_Range = tuple[int, int]
AskOf = Callable[[int, int, _Range], Ask]
"""The request of a number for a batch of an epoch."""


@dataclass(frozen=True)
class Drawing:
    """What a trainer draws."""

    stream: str
    what: tuple[tuple[str, str], ...]
    """The samples and their order: names and values. All trainers of a stream say the same."""
    samples: int
    """That an epoch has."""
    want: int
    """Samples of a batch, at most."""
    most: int = 6
    """Batches that it has at a time, at most."""
    at_least_once: bool = False


class EpochPass:
    """One pass."""

    def __init__(
        self,
        name: str,
        drawing: Drawing,
        epoch: int,
        session: Callable[[], int],
        requests: Requests,
        now: float,
        beat_seconds: float,
    ) -> None:
        """``name``: the trainer's; ``epoch``: -1 for the one that is on; ``session`` gives new numbers."""
        self.epoch = epoch
        self.error = ""
        self.is_left = self.is_done = False
        """Whether it wants nothing any more, and whether the head knows that."""
        self._name, self._drawing, self._sessions, self._requests = name, drawing, session, requests
        self._session, self._number, self._heard = session(), 0, 0
        self._ask_of: AskOf | None = None
        self._numbers: dict[_Range, int] = {}
        """Of the requests, by batch, in the order in which they are handed over."""
        self._dealt: tuple[_Range, ...] = ()
        self._taken: set[_Range] = set()
        self._handed: dict[_Range, int] = {}
        """The first `Draw` that said so; 0 for none yet."""
        self._last: _Range | None = None
        """What the loop has now, where it is not said to be handed before the loop comes back."""
        self._saying: set[_Range] = set()
        self._is_over = False
        self._beat_seconds, self._said = beat_seconds, float("-inf")
        self._answered = self._served = now
        """When the head answered last, and when a data server was there last."""

    @property
    def is_over(self) -> bool:
        """Whether the loop has had everything."""
        return self._is_over and not self._numbers and all(each in self._handed for each in self._dealt)

    def begin(self, ask_of: AskOf, now: float) -> list[Send]:
        """The epoch is known: ask for batches in this way."""
        self._ask_of = ask_of
        return self._ask(now)

    def next(self, pool: str, now: float) -> tuple[Supplied | None, list[Send]]:
        """The next batch, once it is made and taken."""
        if self._last is not None:
            self._handed[self._last], self._last = 0, None
        found = None
        first = next(iter(self._numbers), None)
        if first is not None and self._may_hand(first):
            found = self._requests.pick(self._numbers.pop(first))
            self._taken.discard(first)
            if self._drawing.at_least_once:
                self._last = first
            else:
                self._handed[first] = 0
        return found, self._say_news(pool, now)

    def leave(self, pool: str, now: float) -> list[Send]:
        """The loop wants nothing any more."""
        if self._last is not None:
            self._handed[self._last], self._last = 0, None
        sends = self._cancel(list(self._numbers))
        self.is_left = True
        return [*sends, self._say(pool, now)]

    def receive(self, dealt: Dealt, now: float) -> list[Send]:
        """How it stands with the head."""
        if (dealt.stream, dealt.session) != (self._drawing.stream, self._session):
            return []
        if dealt.is_ended:
            return self._ended(dealt, now)
        if dealt.number <= self._heard:
            return []
        self._heard, self._answered, self.epoch = dealt.number, now, dealt.epoch
        self._handed = {each: at for each, at in self._handed.items() if not 0 < at <= dealt.heard}
        if self.is_left:
            return []
        self._dealt, self._is_over = dealt.batches, dealt.is_over
        self._taken |= set(dealt.taken) & set(self._numbers)
        lost = [each for each in self._numbers if each not in dealt.batches and each not in self._taken]
        return self._cancel(lost) + self._ask(now)

    def tick(self, pool: str, now: float) -> list[Send]:
        """Time has passed."""
        if self.is_done or self.error:
            return []
        if self._requests.servers:
            self._served = now
        sends = self._ask(now)
        if now - self._said >= self._beat_seconds:
            return [*sends, self._say(pool, now)]
        return sends + self._say_news(pool, now)

    def forgive(self, seconds: float) -> None:
        """The trainer stood still for so long."""
        self._answered += seconds
        self._served += seconds

    def trouble(self, now: float) -> str:
        """Why nothing goes on; empty where it does."""
        lonely = self._requests.asking.lonely_seconds
        if self.error or self.is_left or self.is_over:
            return self.error
        if now - self._answered > lonely:
            return f"the head of the pool of data servers answered nothing for {lonely:g} s"
        if now - self._served > lonely:
            return f"no data server has been there for {lonely:g} s"
        return ""

    # --- what it says ---

    def _say_news(self, pool: str, now: float) -> list[Send]:
        is_news = 0 in self._handed.values() or set(self._takes()) - self._saying
        return [self._say(pool, now)] if is_news and not self.is_done else []

    def _say(self, pool: str, now: float) -> Send:
        self._number, self._said = self._number + 1, now
        takes = () if self.is_left else self._takes()
        self._saying = set(takes)
        for each, at in self._handed.items():
            self._handed[each] = at or self._number
        drawing = self._drawing
        said = Draw(
            self._name,
            pool,
            drawing.stream,
            drawing.what,
            drawing.samples,
            drawing.at_least_once,
            self.epoch,
            self._session,
            self._number,
            drawing.want,
            drawing.most,
            takes,
            tuple(self._handed),
            self.is_left,
        )
        return Send(POOL, said)

    def _takes(self) -> tuple[_Range, ...]:
        """What is to be handed over next, and is not taken."""
        first = list(self._numbers)[:AHEAD]
        return tuple(
            each for each in first if each not in self._taken and self._requests.made(self._numbers[each])
        )

    def _may_hand(self, batch: _Range) -> bool:
        return batch in self._taken and self._requests.made(self._numbers[batch])

    # --- what it asks for ---

    def _ask(self, now: float) -> list[Send]:
        if self._ask_of is None or self.is_left:
            return []
        sends: list[Send] = []
        for batch in self._dealt:
            is_new = batch not in self._numbers and batch not in self._handed and batch != self._last
            if is_new and self._requests.room:
                self._numbers[batch] = self._requests.fresh()
                sends += self._requests.ask(self._ask_of(self._numbers[batch], self.epoch, batch), now)
        return sends

    def _cancel(self, batches: list[_Range]) -> list[Send]:
        return self._requests.cancel([self._numbers.pop(each) for each in batches]) if batches else []

    def _ended(self, dealt: Dealt, now: float) -> list[Send]:
        """The head knows this session no more."""
        self._answered = now
        if dealt.why:
            self.error = dealt.why
        if dealt.why or self.is_left:
            self.is_done = True
            return []
        self._session, self._number, self._heard = self._sessions(), 0, 0
        self._dealt, self._is_over, self._handed, self._said = (), False, {}, float("-inf")
        return self._cancel([each for each in self._numbers if each not in self._taken])
