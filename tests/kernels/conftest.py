"""Fixtures of the tests of kernels.

Knows: pytest. Does not know: the tests.
"""

from __future__ import annotations

import pytest

from cotswold.kernels.compile import jobs
from cotswold.kernels.machine import execution
from cotswold.kernels.products import run as kernels


@pytest.fixture(autouse=True)
def _nothing_prepared() -> None:
    """Clear prepared jobs, so that a test's changes take effect."""
    kernels.READY.clear()
    jobs.READY.clear()


@pytest.fixture(scope="module")
def any_work_is_worth_threads() -> object:
    """Use several threads even for a product that one thread would finish sooner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "FLOPS_A_THREAD", 1.0)
        yield
