"""What the terminal and a notebook show: progress, tables, sentences about processes."""
