"""Faults of every kind while a network is trained on several hosts, and what is audited afterwards."""
