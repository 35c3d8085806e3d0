"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("narwhal", deadline=None)
settings.load_profile("narwhal")

# Shells have their background jobs ignore it, and the commands that tests start would inherit that:
# no Ctrl-C would end them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
