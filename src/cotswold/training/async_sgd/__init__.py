"""Asynchronous SGD: the computation and the pushes of a replica (strategy `downpour`)."""
