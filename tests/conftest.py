"""What every test folder shares: a cache of kernels; `make fuzz` multiplies the examples of property tests.

Knows: the environment, hypothesis. Does not know: what is tested.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

FUZZ = int(os.environ.get("COTSWOLD_FUZZ", "1"))
"""How many times as many examples each property is tried on."""

# compiled kernels and choices of tests are kept apart from the user's own; every worker and child shares them
if "COTSWOLD_CACHE" not in os.environ:
    cache = Path(__file__).parents[1] / ".cotswold_cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    os.environ["COTSWOLD_CACHE"] = str(cache)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hypothesis keeps a test's settings on the function; profiles do not reach those that set their own."""
    if FUZZ == 1:
        return
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        chosen = getattr(function, "_hypothesis_internal_use_settings", None)
        if isinstance(chosen, settings):
            more = settings(chosen, max_examples=FUZZ * chosen.max_examples, deadline=None)
            function._hypothesis_internal_use_settings = more  # type: ignore[union-attr]  # it is a function
