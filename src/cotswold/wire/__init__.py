"""Messages between the coordinator, workers, replicas, parameter servers, controllers and data servers.

Knows: the fields. Does not know: encoding, sockets, the meaning of buffers.

The type of a field is int, float, str, bool, None, a tuple of these, or a class in `PARTS`. Large data are in
a field named ``buffers`` and are passed on without a copy. Messages may arrive late, twice, out of order or
never. Each message names the session, the evaluation and the number that make a duplicate harmless. A sender
that needs a reply repeats its request until the reply arrives.

Glossary:

- *session*: the time from a worker's join to its end, identified by a number that is never reused. If a
  worker was silent for too long, its session is void when it wakes up, and it joins again.
- *evaluation*: a number that only grows.
- *portion*: a range of positions in the permuted order of the samples (`shards.core.permutation`).
- *sum*: the sum of some portions on one worker, named by (session, number). It counts completely or not at
  all.
- *node* (level, index) of the binary tree over portions: [index · 2**level, (index + 1) · 2**level).
- *round*: one message to each server, and its reply.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
