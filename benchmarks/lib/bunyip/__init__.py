"""The Bunyip experiment: training, evaluation and one page."""
