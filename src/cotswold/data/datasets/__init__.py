"""Data sets that the package makes or reads by name: the demo, spoken digits, CIFAR, printed Japanese."""
