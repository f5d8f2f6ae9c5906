"""Selectivity of neurons: scores, histograms, optimal stimuli, baselines."""
