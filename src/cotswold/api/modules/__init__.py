"""Training of a user's module: the request, the processes, the training."""
