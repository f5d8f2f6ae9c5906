"""Replicas of several processes that share one copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cotswold.host import Call, ForkServer
from cotswold.host.shared_memory import is_supported
from cotswold.testing.processes import ended

pytestmark = pytest.mark.skipif(not is_supported(), reason="no shared memory without a name")
LEADERS = "tests.training.hosts"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    found = ForkServer(["torch", LEADERS])
    yield found
    found.close()


@pytest.mark.parametrize(
    "what",
    [
        "steps_of_one_process_are_plain_sgd",
        "without_a_rate_all_batches_are_of_the_same_parameters",
        "every_sample_is_computed_once_and_all_learn",
    ],
)
def test_what_processes_compute_together(what: str, server: ForkServer) -> None:
    process = server.start(Call("leader", f"{LEADERS}:{what}"))
    assert ended(process) == 0, process.why()


@pytest.mark.parametrize(
    ("bad", "code", "said"),
    [("killed", 1, "was killed by SIGKILL"), ("error", 2, "sample 7 cannot be read")],
)
def test_a_process_that_ends_is_named_and_ends_its_host(
    bad: str, code: int, said: str, server: ForkServer
) -> None:
    process = server.start(Call("leader", f"{LEADERS}:learn_until_it_ends", {"bad": bad}))
    assert ended(process) == code
    assert "of the replica" in process.why() and said in process.why(), process.why()
