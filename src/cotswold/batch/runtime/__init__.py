"""Processes of whole-set gradients: the coordinator, the workers, how vectors travel."""
