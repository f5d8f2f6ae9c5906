"""Work of an update or an evaluation: networks as layers and stacks, divided among ranks."""
