"""Programs of processes: each role names a function that exists."""

from __future__ import annotations

from importlib import import_module

import pytest

from cotswold.processes.programs import PROGRAMS


@pytest.mark.parametrize("role", PROGRAMS)
def test_a_role_names_a_function(role: str) -> None:
    module, _, name = PROGRAMS[role].partition(":")
    assert callable(getattr(import_module(module), name))
