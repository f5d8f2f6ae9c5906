"""The token of Ray's heads that tests join from their own process.

Knows: a process joins Ray with one token for all tests. Does not know: Ray.
"""

from cotswold.host import Token

RAY_TOKEN = Token("0123456789abcdef" * 4)
