"""What tests of kernels share.

Knows: pytest. Does not know: what is tested.
"""

from __future__ import annotations

import pytest

from cotswold.kernels.maps import tasks
from cotswold.kernels.products import run as kernels


@pytest.fixture(autouse=True)
def _nothing_prepared() -> None:
    """What a test changes must not meet what was prepared before."""
    kernels.READY.clear()
    tasks.READY.clear()


@pytest.fixture(scope="module")
def any_work_is_worth_threads() -> object:
    """Several threads take even a product that one would finish sooner alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FLOPS_A_THREAD", 1.0)
        yield
