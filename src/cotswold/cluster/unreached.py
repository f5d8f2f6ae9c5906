"""Why controllers that were called have not answered, in words, with what is to be looked at.

Knows: what became of the last call of each. Does not know: who called, for how long it was waited.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotswold.cluster.transport import Lost


def why_unreached(places: Mapping[str, str], lost: Mapping[str, Lost]) -> str:
    """``places``: HOST:PORT of each, by name; ``lost``: how the last call of each ended that did.

    >>> why_unreached({"a": "10.0.0.1:7400"}, {})
    'from 10.0.0.1:7400 nothing is heard: the process there is stopped, or the network lets nothing pass'
    """
    refused, absent, silent = list[str](), list[str](), list[str]()
    for name, place in places.items():
        of = silent if name not in lost else refused if lost[name].is_refused else absent
        of.append(place)
    found = []
    if refused:
        found.append(
            f"at {', '.join(refused)} somebody listens and refuses this token: give the cluster's own "
            "(--token-file, COTSWOLD_CLUSTER_TOKEN_FILE or COTSWOLD_CLUSTER_TOKEN), or the port of its "
            "controller"
        )
    if absent:
        found.append(
            f"at {', '.join(absent)} nobody listens: see whether cotswold cluster start runs there, and with "
            "which --controllers"
        )
    if silent:
        found.append(
            f"from {', '.join(silent)} nothing is heard: the process there is stopped, or the network lets "
            "nothing pass"
        )
    return "; ".join(found)
