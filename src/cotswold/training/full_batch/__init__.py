"""Full-batch training: objectives, evaluated locally or by workers (strategy `batch`)."""
