"""What coordinator, workers, replicas and parameter servers say to each other: every message, as a value.

Knows: the fields. Does not know: how they are written down, sockets, what a buffer holds.

Of a field's type there are: int, float, str, bool, None, tuples of these, and the classes of `PARTS`;
whatever is large is in a field named ``buffers`` and is handed on as it is. All may come late, twice, in
another order, or never: each message names the session, the evaluation and the number that make a second one
harmless, and whoever waits for an answer asks again.

Glossary:

- *session*: a worker between its joining and its end, a number that is never given again. A worker that was
  silent too long and wakes up has a session that is void, and joins anew.
- *evaluation*: a number that only grows.
- *portion*: a run of places in the dealt order of the patterns (`dealing`).
- *sum*: what portions add up to on one worker, named by (session, number). It counts whole or not at all.
- *node* (level, index) of the binary tree over portions: [index · 2**level, (index + 1) · 2**level).
- *round*: one message to each server, and its answer.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
