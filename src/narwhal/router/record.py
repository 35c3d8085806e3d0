"""What one request has come to, kept while it lives and written down when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.telemetry import AttemptRow, RequestRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.model import Failure, Limit, Outcome, Phase, Route
    from narwhal.placement import Choice, Why
    from narwhal.router.attempt import AttemptTimes
    from narwhal.telemetry import AttemptResult
    from narwhal.wire.decode import Usage
    from narwhal.wire.openai import CompletionRequest


@attrs.define
class Record:
    """The facts of one request, in seconds where they are times."""

    client_id: str | None = None
    request: CompletionRequest | None = None
    prompt_exact: bool = False
    tokenize_fallback: bool = False
    limits: list[Limit] = attrs.field(factory=list)
    attempts: list[AttemptRow] = attrs.field(factory=list)
    prefill_ttft_s: float | None = None
    first_token_ttft_s: float | None = None
    projected_ttft_s: float | None = None
    projected_tpot_s: float | None = None
    ttft_s: float | None = None
    first_token_at: float | None = None
    tpot_s: float | None = None
    tokens_counted: int = 0
    completion_tokens: int = 0

    def fired(self, limit: Limit) -> None:
        """Note that a limit fired."""
        self.limits.append(limit)

    def attempted(
        self, times: AttemptTimes, result: AttemptResult, failure: Failure | None
    ) -> None:
        """Note how an attempt ended."""
        if failure is not None and failure.limit is not None:
            self.fired(failure.limit)
        self.attempts.append(
            AttemptRow(
                n=times.n,
                prefill=times.prefill,
                prefill_why=_why(times.prefill_choice),
                prefill_runner_up=_runner_up(times.prefill_choice),
                decode=times.decode,
                decode_why=_why(times.decode_choice),
                decode_runner_up=_runner_up(times.decode_choice),
                result=result,
                code=failure.code if failure else None,
                phase=failure.phase if failure else None,
                engine=failure.engine if failure else None,
                failure=failure.failure if failure else None,
                limit=failure.limit if failure else None,
                engine_status=failure.engine_status if failure else None,
                prefill_s=times.prefill_s,
                handoff_age_s=times.handoff_age_s,
                first_token_s=times.first_token_s,
            )
        )

    def finished(self, now: float, tokens: int, usage: Usage | None) -> None:
        """Note the end of the engine's output: its own count of tokens is the exact one."""
        self.completion_tokens = usage.completion_tokens if usage else tokens
        if self.completion_tokens > 1 and self.first_token_at is not None:
            self.tpot_s = (now - self.first_token_at) / (self.completion_tokens - 1)

    def row(
        self,
        outcome: Outcome,
        *,
        request_id: str,
        route: Route,
        arrival: float,
        spent: Mapping[Phase, float],
        ts: float,
        prompt_tokens: int,
        committed: bool,
    ) -> RequestRow:
        """The journal's row."""
        request = self.request
        if outcome.limit is not None and outcome.limit not in self.limits:
            self.fired(outcome.limit)
        return RequestRow(
            ts=ts,
            arrival=arrival,
            request_id=request_id,
            client_request_id=self.client_id,
            route=route,
            stream=request.stream if request else False,
            terminal=outcome.terminal,
            status=200 if committed else outcome.status,
            code=outcome.code,
            limit=outcome.limit,
            limits_fired=tuple(self.limits),
            prompt_tokens=prompt_tokens if request else None,
            prompt_exact=self.prompt_exact,
            max_tokens=request.max_tokens if request else None,
            completion_tokens=max(self.completion_tokens, self.tokens_counted),
            tokens_counted=self.tokens_counted,
            attempts=tuple(self.attempts),
            spent=spent,
            ttft_s=self.ttft_s,
            prefill_ttft_s=self.prefill_ttft_s,
            first_token_ttft_s=self.first_token_ttft_s,
            projected_ttft_s=self.projected_ttft_s,
            tpot_s=self.tpot_s,
            projected_tpot_s=self.projected_tpot_s,
            tokenize_fallback=self.tokenize_fallback,
        )


def _why(choice: Choice | None) -> Why | None:
    return None if choice is None else choice.why


def _runner_up(choice: Choice | None) -> str | None:
    return None if choice is None else choice.runner_up
