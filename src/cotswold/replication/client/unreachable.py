"""Why controllers that were called have not answered, in words, with what is to be looked at.

Knows: what became of the last call of each, who leads none. Does not know: who called, how long was waited.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cotswold.transport import End, Lost

_SAID = {
    End.REFUSED: (
        "at {} somebody listens and refuses this token: give the cluster's own (--token-file, "
        "COTSWOLD_CLUSTER_TOKEN_FILE or COTSWOLD_CLUSTER_TOKEN), or the port of its controller"
    ),
    End.STRANGER: (
        "at {} a process answers that knows the token and is called otherwise: name the controller as its "
        "own host does, in --controllers of cotswold cluster start"
    ),
    End.ABSENT: (
        "at {} nobody listens: see whether cotswold cluster start runs there, and with which --controllers"
    ),
    End.SILENT: "from {} nothing is heard: the process there is stopped, or the network lets nothing pass",
}


@dataclass
class Calls:
    """What became of the calls of controllers."""

    following: dict[str, None] = field(default_factory=dict)
    """Those that have said that they do not lead since one that leads answered, and are there."""
    lost: dict[str, Lost] = field(default_factory=dict)
    """How the last call ended of those of which nothing was heard since."""

    def heard(self, controller: str, *, leads: bool) -> None:
        """One has answered."""
        self.lost.pop(controller, None)
        if leads:
            self.following.clear()
        else:
            self.following[controller] = None

    def ended(self, lost: Lost) -> None:
        """A call has ended."""
        self.lost[lost.peer] = lost
        self.following.pop(lost.peer, None)


def why_unreached(places: Mapping[str, str], lost: Mapping[str, Lost]) -> str:
    """``places``: HOST:PORT of each, by name; ``lost``: how the last call of each ended that did.

    >>> why_unreached({"a": "10.0.0.1:7400"}, {})
    'from 10.0.0.1:7400 nothing is heard: the process there is stopped, or the network lets nothing pass'
    >>> why_unreached({"a": "10.0.0.1:7400"}, {"a": Lost("a", "it dropped this process")})
    'the call of 10.0.0.1:7400 has ended: it dropped this process'
    """
    found: dict[str, list[str]] = {each: [] for each in _SAID.values()}
    for name, place in places.items():
        end = lost[name].end if name in lost else End.SILENT
        said = _SAID.get(end) or f"the call of {{}} has ended: {lost[name].why}"
        found.setdefault(said, []).append(place)
    return "; ".join(said.replace("{}", ", ".join(some), 1) for said, some in found.items() if some)


def why_others(places: Mapping[str, str], lost: Mapping[str, Lost], following: Collection[str]) -> str:
    """The same of those that have not answered, where these have, to be said behind that; empty for none.

    >>> why_others({"a": "10.0.0.1:7400"}, {}, ["a"])
    ''
    """
    others = {name: place for name, place in places.items() if name not in following}
    return f"; {why_unreached(others, lost)}" if others else ""


def why_none_leads(places: Mapping[str, str], lost: Mapping[str, Lost], following: Collection[str]) -> str:
    """The same where ``following`` have answered, and lead no others.

    >>> why_none_leads({"a": "10.0.0.1:7400"}, {}, ["a"]).partition(":")[0]
    'a answered, and does not lead'
    """
    if len(places) == 1:
        return (
            f"{', '.join(following)} answered, and does not lead: its host says why (its state.sqlite is "
            "gone, or its disk is full; with etcd, most of its members are gone); if there are other "
            "controllers, name them all"
        )
    return (
        f"{', '.join(following)} answered, and none leads: name all controllers that there are; if these "
        "are all, their state is not reached (most of etcd's members are gone, or a disk is full), as their "
        f"hosts say{why_others(places, lost, following)}"
    )
