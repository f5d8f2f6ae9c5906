"""Runners: what drives a strategy, one a kind of time: steps in common, later evaluations and replicas."""
