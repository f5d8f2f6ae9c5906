"""The tables and figures of four papers, reproduced and compared with the stated figures."""
