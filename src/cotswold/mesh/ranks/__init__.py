"""The ranks of a job as a grid: who is in it, what they compare, sums over all of them."""
