"""An external loop: it draws a shared epoch, and records the received samples.

``python -m tests.support.dataservice.draw_loop ADDRESS FILE SECONDS EPOCH``, the token in COTSWOLD_TOKEN.
"""

from __future__ import annotations

import sys
import time
from hashlib import sha256
from pathlib import Path

from torch import Tensor

import cotswold.data


def names(batch: Tensor) -> list[str]:
    """Return identifiers of the samples of a batch."""
    return [sha256(each.contiguous().numpy().tobytes()).hexdigest() for each in batch]


def main(address: str, file: str, seconds: str, epoch: str) -> None:
    """Write a line per batch before the next request."""
    with (
        cotswold.data.connect(address, stream="epochs", batch_size=4) as batches,
        Path(file).open("w") as had,
    ):
        batches.set_epoch(int(epoch))
        for samples, _ in batches:
            print(*names(samples), file=had, flush=True)
            time.sleep(float(seconds))  # what it learns


if __name__ == "__main__":
    main(*sys.argv[1:])
