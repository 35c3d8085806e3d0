"""Keys that a request may carry, and the file that they come from."""

from __future__ import annotations

import logging
import secrets
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING

import trio

from narwhal.config.document import read_bytes
from narwhal.config.faults import Faults
from narwhal.config.keys import SHORT_KEY_CHARS, split_keys
from narwhal.model import ConfigError
from narwhal.telemetry import Denial

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narwhal.app.types import Headers

logger = logging.getLogger("narwhal.app")

LOOK_EVERY_S = 5.0
"""How often the file of keys is looked at: soon enough for a person who waits for a key to work,
or to stop working, and next to no work."""

_SCHEME = b"bearer "


class KeyRing:
    """A set of keys, of which it can say whether a request carries one.

    It keeps no key: only what a hash with a secret of this object makes of it. A comparison looks
    at every key to its end, so the time it takes tells neither which key was nearly right nor how
    long the keys are.
    """

    def __init__(self, lasting: Iterable[str], others: Iterable[str] = ()) -> None:
        """`lasting` keys stay, `others` are there until they are replaced."""
        self._secret = secrets.token_bytes(32)
        self._lasting = self._digests(lasting)
        self._all = self._lasting + self._digests(others)

    def replace(self, others: Iterable[str]) -> None:
        """Have these keys, beside those that stay, and no others from now on."""
        self._all = self._lasting + self._digests(others)

    def denial(self, headers: Headers) -> Denial | None:
        """Why a request with these headers is not let in; `None` if one of the keys is there.

        Header names are in lower case. A request with two `authorization` headers carries none:
        whoever passed it on may have looked at the other one.
        """
        found = [value for name, value in headers if name == b"authorization"]
        if len(found) != 1 or found[0][: len(_SCHEME)].lower() != _SCHEME:
            return Denial.NO_KEY
        carried = self._digest(found[0][len(_SCHEME) :].strip())
        fits = [compare_digest(carried, digest) for digest in self._all]
        return None if any(fits) else Denial.WRONG_KEY

    def _digests(self, keys: Iterable[str]) -> tuple[bytes, ...]:
        return tuple(self._digest(key.encode("ascii")) for key in keys)

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._secret, digest_size=32).digest()


class KeyFile:
    """`serving.api_keys_file`: read once at the start, and again whenever it changes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._content: bytes | None = None

    def read(self) -> tuple[str, ...] | None:
        """The keys in the file; `None` if it is as it was. Blocks while it reads.

        Raises `ConfigError`, once for each content, with a line that repeats nothing of it.
        """
        try:
            content = read_bytes(self._path, "file of keys")
        except Faults as faults:
            content = b""
            problem = faults.faults[0].text
        else:
            problem = ""
        if content == self._content:
            return None
        self._content = content
        try:
            if not problem:
                return split_keys(content.decode("ascii"))
        except UnicodeDecodeError:
            problem = "holds characters that a key in an HTTP header cannot have"
        except ValueError as wrong:
            problem = str(wrong)
        raise ConfigError([f"serving.api_keys_file: {self._path}: {problem}"])

    async def follow(
        self, ring: KeyRing, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Give `ring` what the file holds whenever that changes, until cancelled.

        A file that cannot be used is logged, and changes nothing.
        """
        task_status.started()
        while True:
            await trio.sleep(LOOK_EVERY_S)
            try:
                keys = await trio.to_thread.run_sync(self.read, abandon_on_cancel=True)
            except ConfigError as error:
                logger.error("%s; the keys of before stay", error.problems[0])  # noqa: TRY400
                continue
            if keys is not None:
                ring.replace(keys)
                warn_of_short_keys("serving.api_keys_file", keys)
                logger.info("serving.api_keys_file has changed and holds %d keys", len(keys))


def warn_of_short_keys(setting: str, keys: Iterable[str]) -> None:
    """Log that some keys are short, if they are; never which."""
    if short := sum(len(key) < SHORT_KEY_CHARS for key in keys):
        logger.warning(
            "%s: %d of its keys have fewer than %d characters and may be guessed; use longer ones",
            setting,
            short,
            SHORT_KEY_CHARS,
        )
