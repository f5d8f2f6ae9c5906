"""What every test folder shares: a cache of kernels, the number of examples, which skips are allowed.

Knows: the environment, hypothesis, pytest's reports. Does not know: what is tested.

`make fuzz` multiplies the examples of property tests (``COTSWOLD_FUZZ=20``). A test that lacks a program or a
package is skipped with its reason; where ``COTSWOLD_SKIPS=hardware``, as in CI, only for want of hardware.
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


HARDWARE = ("no CUDA device", "this processor does not multiply pairs of bfloat16")
"""Reasons for a skip that no installation mends, as they begin."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where a test was skipped that an installation would have let run, if that is asked for."""
    reporter: pytest.TerminalReporter | None = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("COTSWOLD_SKIPS") != "hardware" or reporter is None:
        return
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in reporter.stats.get("skipped", [])]
    unwanted = sorted({reason for reason in reasons if not reason.startswith(HARDWARE)})
    if unwanted and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"tests were skipped that should have run: {'; '.join(unwanted)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
