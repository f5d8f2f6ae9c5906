"""Work whose processes, all from one fork server with this import, drop peers early: for models of a MB.

Knows: the limit of a peer's queue there. Does not know: the training.
"""

from __future__ import annotations

from tests.support.replicas.works import Tally

from cotswold.transport import Endpoint

MODEL_BYTES = 1 << 20
defaults = Endpoint.__init__.__kwdefaults__
assert defaults is not None
defaults["waiting_bytes"] = MODEL_BYTES * 64 // 25


def tally(*, seconds: float = 0.0) -> Tally:
    return Tally(MODEL_BYTES // 16, seconds)
