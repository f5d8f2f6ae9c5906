"""The Bunyip experiment: cells that are trained, judged and shown on one page."""
