"""Sentences about controllers that have not replied, each with a remedy.

Knows: how the last connection to each controller ended, which ones do not lead. Does not know: the caller,
the time waited.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cotswold.transport import LossCause, Lost

_CAUSE_TEXT = {
    LossCause.REFUSED: (
        "at {} a process refuses this token: give the cluster's own (--token-file, "
        "COTSWOLD_CLUSTER_TOKEN_FILE or COTSWOLD_CLUSTER_TOKEN), or the port of its controller"
    ),
    LossCause.UNAUTHENTICATED: (
        "at {} a process knows the token and has another name: name the controller as its "
        "own host does, in --controllers of cotswold cluster start"
    ),
    LossCause.ABSENT: (
        "at {} no process listens: check that cotswold cluster start runs there, and its --controllers"
    ),
    LossCause.SILENT: "from {} no reply arrives: the process there is stopped, or the network blocks it",
}


@dataclass
class ConnectionResults:
    """Results of the connections to controllers."""

    followers: dict[str, None] = field(default_factory=dict)
    """Reachable controllers that have replied that they do not lead, since a leader last replied."""
    lost: dict[str, Lost] = field(default_factory=dict)
    """Ends of the last connections, of controllers that have not replied since."""

    def on_reply(self, controller: str, *, is_leader: bool) -> None:
        """Record a reply."""
        self.lost.pop(controller, None)
        if is_leader:
            self.followers.clear()
        else:
            self.followers[controller] = None

    def on_lost(self, lost: Lost) -> None:
        """Record the end of a connection."""
        self.lost[lost.peer] = lost
        self.followers.pop(lost.peer, None)


def unreachable_text(addresses: Mapping[str, str], lost: Mapping[str, Lost]) -> str:
    """Return why controllers are unreachable. ``addresses``: HOST:PORT by name; ``lost``: end of the last
    connection.

    >>> unreachable_text({"a": "10.0.0.1:7400"}, {})
    'from 10.0.0.1:7400 no reply arrives: the process there is stopped, or the network blocks it'
    >>> unreachable_text({"a": "10.0.0.1:7400"}, {"a": Lost("a", "it dropped this process")})
    'the connection to 10.0.0.1:7400 has ended: it dropped this process'
    """
    found: dict[str, list[str]] = {each: [] for each in _CAUSE_TEXT.values()}
    for name, place in addresses.items():
        end = lost[name].end if name in lost else LossCause.SILENT
        said = _CAUSE_TEXT.get(end) or f"the connection to {{}} has ended: {lost[name].why}"
        found.setdefault(said, []).append(place)
    return "; ".join(said.replace("{}", ", ".join(some), 1) for said, some in found.items() if some)


def other_controllers_text(
    addresses: Mapping[str, str], lost: Mapping[str, Lost], followers: Collection[str]
) -> str:
    """Return the same about the controllers that have not replied, as the end of a sentence; empty if there
    are none.

    >>> other_controllers_text({"a": "10.0.0.1:7400"}, {}, ["a"])
    ''
    """
    others = {name: place for name, place in addresses.items() if name not in followers}
    return f"; {unreachable_text(others, lost)}" if others else ""


def no_leader_text(addresses: Mapping[str, str], lost: Mapping[str, Lost], followers: Collection[str]) -> str:
    """Return the same if the controllers ``followers`` have replied and do not lead.

    >>> no_leader_text({"a": "10.0.0.1:7400"}, {}, ["a"]).partition(":")[0]
    'a answered, and does not lead'
    """
    if len(addresses) == 1:
        return (
            f"{', '.join(followers)} answered, and does not lead: its host says why (its state.sqlite is "
            "lost, or its disk is full; with etcd, most of its members are down); if there are other "
            "controllers, name them all"
        )
    return (
        f"{', '.join(followers)} answered, and none leads: name all controllers of the cluster; if these "
        "are all, their state is unreachable (most of etcd's members are down, or a disk is full), as their "
        f"hosts say{other_controllers_text(addresses, lost, followers)}"
    )
