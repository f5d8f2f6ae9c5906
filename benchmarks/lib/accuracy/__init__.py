"""The accuracy experiments of Chilimbi et al. 2014: cells of simulated replicas, their comparison, and a
page."""
