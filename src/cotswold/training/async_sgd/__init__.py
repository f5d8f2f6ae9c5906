"""Asynchronous SGD: what a replica computes and sends (strategy `downpour`)."""
