"""Images by untied local filters: training and evaluation of runs."""
