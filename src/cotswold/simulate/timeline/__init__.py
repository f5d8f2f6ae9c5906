"""Execution of the programs of all ranks in virtual time: computations, messages, waits."""
