"""Tensors of which each rank has a part, and the exchanges by which they get what others have."""
