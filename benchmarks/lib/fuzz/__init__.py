"""What a parameter server, a controller and an endpoint do with messages that are wrong."""
