"""Judge of the parameters that replicas compute from, based on messages of servers.

Knows: each reply that a replica installs, starts of steps, sent versions and numbers. Does not know: a
replica's requests, its reasons to accept a reply.

    a replica                                  requirement
    installs a shard                           its version does not go back within a session; its numbers are
                                               those that servers sent for that version
    starts a step without late messages        it has everything sent before the last step but one: the
                                               pull after each step arrives during the next step
"""

from __future__ import annotations

from collections import deque

from tests.chaos.invariants import BrokenError, InvariantChecker

from cotswold.paramserver.core.replica_session import StepTask


class InstalledShards:
    """Installed parameters of all replicas."""

    def __init__(self, judge: InvariantChecker, *, is_prompt: bool) -> None:
        """``is_prompt``: True if replies to requests before a step arrive before its end."""
        self._judge, self._is_prompt = judge, is_prompt
        self._has: dict[tuple[str, int], dict[tuple[str, int], int]] = {}
        """Installed versions by replica and session, and by bucket and shard."""
        self._said: dict[tuple[str, int], deque[dict[tuple[str, int], int]]] = {}
        """Versions sent by servers when each replica started its newest steps."""

    def begins(self, replica: str, task: StepTask) -> None:
        """Check the start of a replica's step. Raises BrokenError."""
        key = replica, task.pull[0]
        has = self._has.setdefault(key, {})
        for pulled in task.installs:
            for shard, version, buffer in zip(pulled.shards, pulled.versions, pulled.buffers, strict=True):
                of = pulled.server, shard
                if version < has.get(of, -1):
                    raise BrokenError(f"{replica} puts version {version} of shard {shard} over {has[of]}")
                if self._judge.numbers.get((*of, version)) != buffer:
                    raise BrokenError(f"{replica} has {buffer} for version {version} of shard {shard}")
                has[of] = version
        said = self._said.setdefault(key, deque(maxlen=2))
        for of, version in said[0].items() if self._is_prompt and len(said) == 2 else ():
            if has[of] < version:
                raise BrokenError(
                    f"{replica} begins a step from version {has[of]} of shard {of[1]}, and {version} was "
                    "said two steps before"
                )
        said.append(dict(self._judge.versions))
