"""Shared by all test folders: a cache of kernels, the number of examples, allowed skips.

Knows: the environment, hypothesis, pytest's reports. Does not know: the tests.

`make fuzz` multiplies the examples of property tests (``COTSWOLD_FUZZ=20``). A test that lacks a program or a
package is skipped with its reason. With ``COTSWOLD_SKIPS=hardware``, as in CI, only missing hardware is
accepted.

Tests with the mark ``soak`` run for many seconds. `make test` leaves them out, `make soak` runs them alone:
``--soak all``, or ``--soak 3/10`` for the third of ten equal parts.
"""

from __future__ import annotations

import os
import subprocess
import zlib
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests import warm
from tests.support.fork_server import fork_server as fork_server

from cotswold.transport.address import this_host

# on a busy machine the slowest example says nothing about the code, nor does one that compiles a kernel
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
FUZZ = int(os.environ.get("COTSWOLD_FUZZ", "1"))
"""Factor of the number of examples of each property."""

# compiled kernels and choices of tests are kept apart from the user's own; every worker and child shares them
if "COTSWOLD_CACHE" not in os.environ:
    cache = Path(__file__).parents[1] / ".cotswold_cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    os.environ["COTSWOLD_CACHE"] = str(cache)


HARDWARE = ("no CUDA device", "set COTSWOLD_DATA")
"""Prefixes of reasons for a skip that no installation can remove: hardware, and data that nobody may copy."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail, if requested, because of a skip that an installation would avoid."""
    reporter: pytest.TerminalReporter | None = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("COTSWOLD_SKIPS") != "hardware" or reporter is None:
        return
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in reporter.stats.get("skipped", [])]
    unwanted = sorted({reason for reason in reasons if not reason.startswith(HARDWARE)})
    if unwanted and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"tests were skipped that should have run: {'; '.join(unwanted)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--soak``."""
    parser.addoption("--soak", type=soak_part, help="run the long tests alone: all, or PART/PARTS, as 3/10")


def soak_part(text: str) -> tuple[int, int]:
    """Read ``all`` or ``PART/PARTS``: the part, from 1 on, and the number of parts."""
    if text == "all":
        return 1, 1
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ArgumentTypeError(f"--soak must be all, or PART/PARTS such as 3/10, got {text!r}")
    return int(part), int(parts)


def is_selected(name: str, soak: bool, part: tuple[int, int] | None) -> bool:
    """Decide whether a test runs: without ``--soak`` the short ones, otherwise the long ones of one part."""
    if part is None or not soak:
        return soak == (part is not None)
    number, parts = part
    return zlib.crc32(name.encode()) % parts == number - 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what ``--soak`` does not ask for; multiply the examples of property tests."""
    part = config.getoption("soak")
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        soak = item.get_closest_marker("soak") is not None
        (kept if is_selected(item.nodeid, soak, part) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = kept
    multiply_examples(items)


def multiply_examples(items: list[pytest.Item]) -> None:
    """Multiply the examples on each function: Hypothesis keeps settings there, and profiles do not override
    them."""
    if FUZZ == 1:
        return
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        chosen = getattr(function, "_hypothesis_internal_use_settings", None)
        if isinstance(chosen, settings):
            more = settings(chosen, max_examples=FUZZ * chosen.max_examples, deadline=None)
            function._hypothesis_internal_use_settings = more  # type: ignore[union-attr]  # it is a function


@pytest.fixture(scope="session", autouse=True)
def interpreters() -> Iterator[None]:
    """Fork the interpreters of all tests of this worker from one process.

    A process remembers its host name, so read it before a test enters another network namespace.
    """
    this_host()
    with warm.warm_interpreters():
        yield


@pytest.fixture
def cold_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every interpreter as a new process."""
    monkeypatch.setattr(warm, "is_cold", True)


@pytest.fixture
def template() -> None:
    """Start the template and wait until it serves, before a test lists the children of this process."""
    subprocess.run([*warm.PYTHON, "-c", ""], check=True)
