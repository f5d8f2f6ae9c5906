"""Distributed tensors, of which each rank holds a part, and the halo exchanges between the parts."""
