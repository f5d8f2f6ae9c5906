"""What the scripts of benchmarks/ measure, and what they share."""
