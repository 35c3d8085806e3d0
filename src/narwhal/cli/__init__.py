"""The command line: parse arguments, read files, build objects, run, exit codes.

Exit codes: 0 all went well, 1 it could not be done (the reason is on stderr), 2 wrong usage.
"""

from narwhal.cli.main import main

__all__ = ["main"]
