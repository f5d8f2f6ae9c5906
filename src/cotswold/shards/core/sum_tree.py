"""Adding along the fixed binary tree over portions, so that every bit is the same whoever computed what.

Knows: nodes, which two make a third, an addition. Does not know: what is added.

The sum of a node is left + right where both have portions, else that of the one that has: whoever holds both
halves may add them, early or late, here or there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cotswold.wire import Node

Values = TypeVar("Values")


def parent(node: Node) -> Node:
    """The node that it is half of."""
    return Node(node.level + 1, node.index // 2)


def sibling(node: Node) -> Node:
    """The other half of its parent."""
    return Node(node.level, node.index ^ 1)


def covered(node: Node) -> range:
    """Its portions."""
    return range(node.index << node.level, (node.index + 1) << node.level)


@dataclass
class Tree(Generic[Values]):
    """Sums of nodes, none of which covers another's portions; siblings are added at once."""

    add: Callable[[Values, Values], Values]
    """The sum of the left and the right half; it may use the memory of either."""
    nodes: dict[Node, Values] = field(default_factory=dict)

    def put(self, node: Node, values: Values) -> Node:
        """One more sum of a complete node; the node that it became part of."""
        assert node not in self.nodes, f"{node} comes twice"
        while (other := self.nodes.pop(sibling(node), None)) is not None:
            values = self.add(values, other) if node.index % 2 == 0 else self.add(other, values)
            node = parent(node)
            assert node not in self.nodes, f"{node} and its halves were both put"
        self.nodes[node] = values
        return node

    def total(self) -> Values | None:
        """The root's sum, all portions that never came left out; None of nothing. Empties the tree."""
        nodes, self.nodes = self.nodes, {}
        level = min((node.level for node in nodes), default=0)
        while len(nodes) > 1:
            for node in sorted(each for each in nodes if each.level == level):
                values = nodes.pop(node, None)
                if values is None:
                    continue  # went up with its left half
                other = nodes.pop(sibling(node), None)
                assert parent(node) not in nodes, f"{parent(node)} and its halves were both put"
                nodes[parent(node)] = values if other is None else self.add(values, other)
            level += 1
        return next(iter(nodes.values()), None)
