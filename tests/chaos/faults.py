"""Mistakes that are planted in the machines, to see that the judges find them.

Knows: all of them by their names. Does not know: how each is found.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.control_faults import CONTROL_FAULTS
from tests.chaos.copy_faults import COPY_FAULTS
from tests.chaos.disk_faults import DISK_FAULTS
from tests.chaos.fault_injection import Fault
from tests.chaos.replica_faults import REPLICA_FAULTS

FAULTS: Mapping[str, Fault] = {**COPY_FAULTS, **CONTROL_FAULTS, **DISK_FAULTS, **REPLICA_FAULTS}
"""By name."""
