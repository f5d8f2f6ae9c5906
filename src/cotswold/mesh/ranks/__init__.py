"""The ranks of a job as a grid: membership, consistency checks, collectives."""
