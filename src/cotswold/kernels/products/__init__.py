"""The three heavy products of a block-local layer: their plans, their tiles, and how they are run."""
