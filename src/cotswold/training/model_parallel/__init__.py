"""Model-parallel workers and replicas: a group of ranks, each with a part of the network."""
