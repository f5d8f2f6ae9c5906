"""Processes of replicated parameter servers: servers, controllers, the supervisor of a host."""
