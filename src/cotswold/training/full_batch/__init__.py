"""Full-batch training: objectives, local and on workers (strategy `batch`)."""
