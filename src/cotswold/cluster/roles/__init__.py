"""What the processes of a cluster do: workers and parameter servers.

Knows: messages, endpoints, clocks, threads. Does not know: networks, who started the process.
"""
