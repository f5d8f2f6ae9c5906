"""Whose message it is where clients of several runs come to one server.

Knows: how a client of a run is called on the servers of a cluster. Does not know: messages, buckets.

Each run has a coordinator, and replicas with numbers: so on the endpoints of servers that serve several runs
a client is called NAME.RUN. To the machines it is NAME, if its message is for a bucket of its own run; to
those of another run it is a stranger."""

from __future__ import annotations


def scoped(name: str, run: str) -> str:
    """What a client of a run is called where several runs come."""
    return f"{name}.{run}"


class Clients:
    """Those that have said something to a server."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        """(run, name) of those who are called otherwise on the endpoint: how."""

    def name(self, sender: str, run: str) -> str:
        """Who a sender is to the buckets of a run."""
        name = sender.removesuffix(f".{run}")
        if name != sender:
            self._names[run, name] = sender
        return name

    def peer(self, name: str, run: str) -> str:
        """What somebody is called on the endpoint."""
        return self._names.get((run, name), name)

    def forget(self, run: str) -> None:
        """A run is over."""
        self._names = {key: sender for key, sender in self._names.items() if key[0] != run}
