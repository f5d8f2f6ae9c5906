"""A worker or replica that is a group of ranks, each with a part of the network."""
