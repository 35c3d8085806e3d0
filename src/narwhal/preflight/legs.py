"""The legs of a preflight: bodies as the router sends them, and what came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import msgspec
import trio

from narwhal.engine import Correlation, HeldHandoff, text_request
from narwhal.model import EngineProtocolError, Route
from narwhal.preflight.asking import Bound, Trouble, ask
from narwhal.wire import openai, vllm
from narwhal.wire.assembly import Assembler

if TYPE_CHECKING:
    from random import Random

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient
    from narwhal.wire.openai import CompletionRequest
    from narwhal.wire.vllm import Handoff

TOKENS = 8
"""Of an answer: enough that wrong KV shows, few enough for `engine.first_token_timeout_s`."""
# Long enough for two blocks of KV cache on any engine: a block has up to 128 tokens.
_SENTENCE = "Nine ships of the old line lay at anchor in the bay, and none of them was ready. "
_SENTENCES = 14


@attrs.frozen(kw_only=True)
class Answer:
    """What a decode leg answered."""

    text: str
    first_token_s: float
    """From before the connection was asked for to the first token."""
    interval_s: float | None
    """Between two tokens after the first; None if there was but one."""
    prompt_tokens: int | None
    """As the engine counted them."""
    created: float | None
    """When the engine says it answered, Unix time."""


@attrs.frozen(kw_only=True)
class Produced:
    """What a prefill leg handed over."""

    handoff: Handoff
    prompt_tokens: int | None
    answered: float
    """When its head had come: Trio's clock."""


class _Choice(msgspec.Struct):
    text: str = ""


class _Whole(msgspec.Struct):
    choices: list[_Choice]
    created: float | None = None


_whole = msgspec.json.Decoder(_Whole)


class Legs:
    """Runs legs, each within `engine.first_token_timeout_s` unless another bound is given.

    Nothing that an engine does is raised: it comes back as `Trouble`. A cancel closes the
    connections; who holds a handoff releases it.
    """

    def __init__(self, config: FleetConfig, rng: Random) -> None:
        self.config = config
        self._rng = rng
        self.bound = Bound(config.engine.first_token_timeout_s, "engine.first_token_timeout_s")

    def correlation(self) -> Correlation:
        """An id for a request, so that it is found in the engine's log."""
        return Correlation(f"check-{self._rng.getrandbits(64):016x}")

    def request(self) -> CompletionRequest:
        """A request whose prompt no cache knows, from its first token on."""
        return self._request(f"{self._rng.getrandbits(64):016x} {_SENTENCE * _SENTENCES}")

    def afresh(self, request: CompletionRequest) -> CompletionRequest:
        """The same, for an engine that is not to look into its prefix cache."""
        fields = {name: msgspec.json.decode(raw) for name, raw in request.fields.items()}
        return self._parse({**fields, "cache_salt": f"{self._rng.getrandbits(64):016x}"})

    def _request(self, prompt: str) -> CompletionRequest:
        body = {
            "model": self.config.model,
            "prompt": prompt,
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        return self._parse(body)

    def _parse(self, body: dict[str, object]) -> CompletionRequest:
        text = msgspec.json.encode(body)
        return openai.parse_request(Route.COMPLETIONS, text, model=self.config.model)

    async def token_ids(self, client: EngineClient) -> tuple[int, ...] | Trouble:
        """Token ids that the engine knows, as it makes them of a text."""
        body = vllm.tokenize_body(text_request(self.config.model, _SENTENCE))
        bound = Bound(self.config.engine.tokenize_timeout_s, "engine.tokenize_timeout_s")
        counted = await ask(lambda: client.token_ids(body), bound, "/tokenize")
        return counted if isinstance(counted, Trouble) else counted.tokens

    def held(self, decoder: EngineClient) -> HeldHandoff:
        """A place for a handoff that `decoder` is to pull, or to release."""
        return HeldHandoff(decoder, self.config.model, self.correlation)

    async def produce(
        self,
        producer: EngineClient,
        request: CompletionRequest,
        held: HeldHandoff,
        *,
        bound: Bound | None = None,
    ) -> Produced | Trouble:
        """Run a prefill leg; what it handed over is in `held` as well, whatever else comes."""

        async def run() -> Produced:
            reply = await producer.prefill(
                Route.COMPLETIONS,
                vllm.prefill_body(request),
                self.correlation(),
                on_answer=lambda _at: None,
                on_late=held.learn_late,
            )
            answer = vllm.parse_prefill(reply.body, whole=False)
            held.handoff = answer.handoff
            return Produced(
                handoff=answer.handoff,
                prompt_tokens=answer.prompt_tokens,
                answered=reply.answered,
            )

        return await ask(run, bound or self.bound, "prefill leg")

    async def decode(
        self,
        decoder: EngineClient,
        request: CompletionRequest,
        held: HeldHandoff | None = None,
        *,
        bound: Bound | None = None,
    ) -> Answer | Trouble:
        """Run a decode leg that pulls what is `held`, or a plain one; to its end."""
        handoff = None if held is None else held.handoff
        body = vllm.decode_body(request, handoff)
        what = "plain leg" if held is None else "decode leg"

        async def run() -> Answer:
            began = trio.current_time()
            leg = await decoder.dispatch_decode(
                Route.COMPLETIONS,
                body,
                self.correlation(),
                on_slot=lambda: None,
                before_write=(lambda: None) if held is None else held.pulled,
            )
            answer = Assembler(
                route=Route.COMPLETIONS,
                template=None,
                max_bytes=self.config.serving.max_response_bytes,
            )
            marks: list[tuple[int, float]] = []
            with leg:
                await leg.head()
                while not answer.done and (data := await leg.read()):
                    answer.feed(data)
                    if answer.tokens > (marks[-1][0] if marks else 0):
                        marks.append((answer.tokens, trio.current_time()))
            return _answer(answer, marks, began)

        return await ask(run, bound or self.bound, what)


def _answer(answer: Assembler, marks: list[tuple[int, float]], began: float) -> Answer:
    try:
        whole = _whole.decode(answer.finish())
        text = whole.choices[0].text
    except (msgspec.MsgspecError, IndexError) as error:
        raise EngineProtocolError(f"an answer without a text: {error}") from None
    (fewest, first), (most, last) = marks[0], marks[-1]
    return Answer(
        text=text,
        first_token_s=first - began,
        interval_s=(last - first) / (most - fewest) if most > fewest else None,
        prompt_tokens=None if answer.usage is None else answer.usage.prompt_tokens,
        created=whole.created,
    )
