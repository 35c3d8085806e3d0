"""Lists of keys, as an environment variable or a file holds them. Pure; nothing here prints one."""

from __future__ import annotations

import re

# What an HTTP header takes as one token (RFC 9110, section 5.5), without blanks and tabs.
HEADER_SAFE = re.compile(r"[\x21-\x7e]+")
SHORT_KEY_CHARS = 16
"""Keys of fewer characters are warned of: 16 random letters and digits are 95 bits, which nobody
guesses over a network; shorter ones tend to be words."""

_SEPARATORS = re.compile(r"[,\r\n]")


def split_keys(text: str) -> tuple[str, ...]:
    """The keys in `text`, separated by commas or line breaks, each once.

    Blanks around a key do not count, and what begins with `#` is a note. Raises `ValueError`,
    with a text to be read after "which" that repeats nothing of what `text` holds.
    """
    parts = (part.strip() for part in _SEPARATORS.split(text))
    keys = tuple(dict.fromkeys(part for part in parts if part and not part.startswith("#")))
    if not keys:
        raise ValueError("holds no key")
    if not all(HEADER_SAFE.fullmatch(key) for key in keys):
        raise ValueError(
            "holds a key with blanks or other characters in it that a key in an HTTP header "
            "cannot have; separate keys with commas or line breaks"
        )
    return keys
