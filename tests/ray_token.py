"""The token of Ray's heads that tests join from their own process.

Knows: that a process joins Ray with one token, whichever tests it runs. Does not know: Ray.
"""

from cotswold.host import Token

RAY_TOKEN = Token("0123456789abcdef" * 4)
