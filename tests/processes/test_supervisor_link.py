"""The connection of a process to its supervisor."""

from __future__ import annotations

from cotswold.processes.supervisor_link import SupervisorLink


def test_whoever_loses_what_started_it_says_what_to_start_again_with_a_run_and_without() -> None:
    said = str(SupervisorLink("an address", None).closed_error("server-0", "it ended"))
    assert said.startswith("server-0 lost its supervisor (it ended)")
    assert "resume the run, or start its host's 'cotswold cluster' again" in said
