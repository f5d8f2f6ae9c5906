"""Processes of data servers, and the client of a training process."""
