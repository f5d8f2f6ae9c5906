"""Fuzzing of a parameter server, a controller and an endpoint with invalid messages."""
