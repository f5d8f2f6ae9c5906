"""Names of clients on servers that serve several runs.

Knows: the name of a run's client on the servers of a cluster. Does not know: messages, buckets.

Each run has a coordinator and numbered replicas. So on the endpoints of servers that serve several runs a
client is named NAME.RUN. For buckets of that run it is NAME; for those of other runs it is a stranger.
"""

from __future__ import annotations


def scoped(name: str, run: str) -> str:
    """Return the name of a run's client on shared servers."""
    return f"{name}.{run}"


class ClientNames:
    """Clients that have sent messages to a server."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        """Endpoint names by (run, name), where they differ from the name."""

    def name(self, sender: str, run: str) -> str:
        """Return the name of a sender for the buckets of a run."""
        name = sender.removesuffix(f".{run}")
        if name != sender:
            self._names[run, name] = sender
        return name

    def peer(self, name: str, run: str) -> str:
        """Return the name of a client on the endpoint."""
        return self._names.get((run, name), name)

    def forget(self, run: str) -> None:
        """Forget the clients of a run."""
        self._names = {key: sender for key, sender in self._names.items() if key[0] != run}
