"""The status page `/narwhal/ui`: six files, the same for every router, with nothing of it in them.

What the page shows it asks of `/narwhal/state`, with the reader's own rights.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narwhal.app.pages import Answer
    from narwhal.app.types import Headers

NOT_MODIFIED = 304
_ELSEWHERE = 307
_FOLDER = Path(__file__).with_name("ui")
# The page runs its own script and asks its own router; nothing else can be had from it, also if
# an engine's name or a model's should be markup after all.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Headers = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # Kept, and asked about each time: another version of the router has other files.
    (b"cache-control", b"no-cache"),
]


@attrs.frozen
class StaticPage:
    """One file."""

    body: bytes
    content_type: bytes
    tag: bytes
    """Its ETag: the same for the same bytes, in every process."""

    def answer(self, request: Iterable[tuple[bytes, bytes]]) -> Answer:
        """The file, or nothing but 304 for a client whose `request` headers say that it has it."""
        headers = [(b"etag", self.tag), *_HEADERS]
        if any(name == b"if-none-match" and self._is_in(value) for name, value in request):
            return NOT_MODIFIED, b"", headers
        return 200, self.body, [(b"content-type", self.content_type), *headers]

    def _is_in(self, value: bytes) -> bool:
        tags = [tag.strip().removeprefix(b"W/") for tag in value.split(b",")]
        return self.tag in tags or tags == [b"*"]


@attrs.frozen
class Signpost:
    """Where a page is that was asked for at another address."""

    location: bytes

    def answer(self, _request: Iterable[tuple[bytes, bytes]]) -> Answer:
        """The way there."""
        return _ELSEWHERE, b"", [(b"location", self.location), *_HEADERS]


def _load() -> Mapping[str, StaticPage]:
    kinds = {
        "/narwhal/ui": ("ui.html", b"text/html; charset=utf-8"),
        "/narwhal/ui.js": ("ui.js", b"text/javascript; charset=utf-8"),
        "/narwhal/ui-parts.js": ("ui-parts.js", b"text/javascript; charset=utf-8"),
        "/narwhal/ui-tools.js": ("ui-tools.js", b"text/javascript; charset=utf-8"),
        "/narwhal/ui.css": ("ui.css", b"text/css; charset=utf-8"),
        "/narwhal/ui.svg": ("ui.svg", b"image/svg+xml"),
    }
    return {path: _page(name, kind) for path, (name, kind) in kinds.items()}


def _page(name: str, kind: bytes) -> StaticPage:
    body = (_FOLDER / name).read_bytes()
    tag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
    return StaticPage(body, kind, tag)


UI_PAGES = _load()
"""By path; read once, as the program starts: some thirty kilobytes."""

# Relative, as the page's own links are: whatever a proxy has put in front of the path stays.
UI_SIGNPOSTS: Mapping[str, Signpost] = {"/narwhal/ui/": Signpost(b"../ui")}
"""Addresses that people write who mean one of the pages."""
