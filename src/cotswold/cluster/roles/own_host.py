"""Where others reach this process's machine.

Knows: the coordinator's host. Does not know: endpoints.
"""

from __future__ import annotations

from cotswold.errors import MachineError
from cotswold.host import address_towards


def own_host(towards: str | None) -> str | None:
    """The address of this machine as the host ``towards`` sees it; None where all is on one host.

    Raises MachineError where that host cannot be reached.
    """
    if towards is None:
        return None
    found = address_towards(towards)
    if found is None:
        raise MachineError(
            f"this machine has no way to {towards}, where the coordinator is; see to its network"
        )
    return found
