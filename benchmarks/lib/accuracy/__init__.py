"""The experiments on accuracy of Chilimbi et al. 2014: cells of simulated replicas, compared, and a page."""
