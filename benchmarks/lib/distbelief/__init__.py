"""Images by untied local filters: how runs are made and judged."""
