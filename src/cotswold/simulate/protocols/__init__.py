"""Simulated processes and networks that run the protocols of servers, replicas and workers."""
