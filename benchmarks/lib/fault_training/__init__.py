"""Faults of every kind during training on several hosts, and the audit afterwards."""
