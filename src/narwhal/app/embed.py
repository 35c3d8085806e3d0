"""A router inside an application."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING

import trio

from narwhal.app.access import Access
from narwhal.app.asgi import App
from narwhal.net import connect_tcp
from narwhal.router import Router, leave_nursery

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from opentelemetry.sdk.trace.export import SpanExporter

    from narwhal.config import FleetConfig
    from narwhal.monitor import SavedState, StateStore
    from narwhal.net import Connect
    from narwhal.profiles import Profile
    from narwhal.telemetry import JournalFile


class open_router:  # noqa: N801 - used as a function, as `trio.open_nursery` is
    """Open a router for the length of an `async with` block.

    The block's value is the `Router`: its `app` is the ASGI application, and `stream` and
    `complete` serve requests of the application's own. `data_app` and `control_app` are the
    application in two parts, for listeners of their own. The router's background tasks run in a
    nursery of this block, under the caller's cancel scopes. Leaving the block ends what is
    still being served, at once; for a gentle end call `router.drain(grace)` first.

    Raises `ConfigError` on entry for a fleet that cannot be served as it is configured.
    """

    def __init__(
        self,
        config: FleetConfig,
        *,
        environ: Mapping[str, str] | None = None,
        connect: Connect = connect_tcp,
        rng: random.Random | None = None,
        wall_clock: Callable[[], float] = time.time,
        journal_file: JournalFile | None = None,
        profiles: Mapping[str, Profile] | None = None,
        state_store: StateStore | None = None,
        resume: SavedState | None = None,
        span_exporter: SpanExporter | None = None,
    ) -> None:
        self._config = config
        self._environ = os.environ if environ is None else environ
        self._make = partial(
            Router,
            config,
            environ=self._environ,
            connect=connect,
            rng=rng,
            wall_clock=wall_clock,
            journal_file=journal_file,
            profiles=profiles,
            state_store=state_store,
            resume=resume,
            span_exporter=span_exporter,
        )

    async def __aenter__(self) -> Router:
        access = Access.of(self._config, self._environ)
        self._router = router = self._make()
        router.app = App(router, access)
        router.data_app = App(router, access, control=False)
        router.control_app = App(router, access, data=False)
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        try:
            await self._nursery.start(router.run)
            if access.key_file is not None and access.clients is not None:
                await self._nursery.start(access.key_file.follow, access.clients)
        except BaseException as error:
            # Nobody will leave a block that was not entered.
            await self._manager.__aexit__(type(error), error, error.__traceback__)
            raise
        return router

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._router.end()
        finally:
            self._nursery.cancel_scope.cancel(reason="the router's block was left")
            await leave_nursery(self._manager, exc)
