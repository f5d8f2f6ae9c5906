"""Processes of whole-set gradients: the coordinator, the workers, the transfer of vectors."""
