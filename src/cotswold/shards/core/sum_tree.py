"""Addition along the fixed binary tree over portions: the result is bitwise independent of the workers.

Knows: nodes, pairs of siblings, an addition. Does not know: the values.

The sum of a node is left + right if both halves have portions, else that of the one that has. So any process
that holds both halves may add them, at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cotswold.wire import Node

Values = TypeVar("Values")


def parent(node: Node) -> Node:
    """Return the parent of a node."""
    return Node(node.level + 1, node.index // 2)


def sibling(node: Node) -> Node:
    """Return the other half of the node's parent."""
    return Node(node.level, node.index ^ 1)


def leaves_of(node: Node) -> range:
    """Return the portions of a node."""
    return range(node.index << node.level, (node.index + 1) << node.level)


@dataclass
class SumTree(Generic[Values]):
    """Sums of disjoint nodes; siblings are added at once."""

    add: Callable[[Values, Values], Values]
    """Returns the sum of the left and the right half; may use the memory of either."""
    nodes: dict[Node, Values] = field(default_factory=dict)

    def insert(self, node: Node, values: Values) -> Node:
        """Add the sum of a complete node; return the node that now contains it."""
        assert node not in self.nodes, f"{node} was added twice"
        while (other := self.nodes.pop(sibling(node), None)) is not None:
            values = self.add(values, other) if node.index % 2 == 0 else self.add(other, values)
            node = parent(node)
            assert node not in self.nodes, f"{node} and its halves were both added"
        self.nodes[node] = values
        return node

    def total(self) -> Values | None:
        """Return the sum of the root without missing portions; None for an empty tree. The tree is empty
        afterwards."""
        nodes, self.nodes = self.nodes, {}
        level = min((node.level for node in nodes), default=0)
        while len(nodes) > 1:
            for node in sorted(each for each in nodes if each.level == level):
                values = nodes.pop(node, None)
                if values is None:
                    continue  # merged with its left half
                other = nodes.pop(sibling(node), None)
                assert parent(node) not in nodes, f"{parent(node)} and its halves were both added"
                nodes[parent(node)] = values if other is None else self.add(values, other)
            level += 1
        return next(iter(nodes.values()), None)
