"""Gates that one engine gets through by what it says: reach, auth, identity, contract, model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.engine import Process
from narwhal.fleet import contract
from narwhal.monitor import reported_facts
from narwhal.preflight.agreement import odd_ones
from narwhal.preflight.asking import NOT_ALLOWED, Bound, Kind, Trouble, ask
from narwhal.preflight.gates import Gate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from narwhal.config import FleetConfig
    from narwhal.preflight.gates import Finding
    from narwhal.preflight.view import View

_OK = 200
# Between two looks at an engine that still boots.
_LOOK_AGAIN_S = 0.5
_CONNECT_ADVICE = {
    Kind.UNREACHABLE: "start it, or mend its url; while it boots, --wait SECONDS waits for it",
    Kind.SILENT: "it takes connections and does not answer: restart it, or look what it does",
}


def health_bound(config: FleetConfig) -> Bound:
    """For what an engine answers at once if it is well."""
    return Bound(config.engine.health_timeout_s, "engine.health_timeout_s")


async def reach(config: FleetConfig, view: View, *, wait_s: float) -> Finding:
    """Whether `/health` answers 200; asked again and again for `wait_s` seconds."""
    began = trio.current_time()
    while True:
        found = await ask(view.client.health_status, health_bound(config), "/health")
        spent = trio.current_time() - began
        # A status that asks for a key comes from an engine that is there.
        if found == _OK or found in NOT_ALLOWED:
            return view.at(Gate.REACH).passed(
                f"/health answered after {spent:.3g} s", reach_s=spent
            )
        if spent + _LOOK_AGAIN_S > wait_s:
            return _not_reached(view, found, wait_s)
        await trio.sleep(_LOOK_AGAIN_S)


def _not_reached(view: View, found: int | Trouble, wait_s: float) -> Finding:
    waited = f", for {wait_s:g} s" if wait_s else ""
    if isinstance(found, Trouble):
        seen, advice = found.text, _CONNECT_ADVICE.get(found.kind, "look into its log")
    else:
        seen = f"/health: it answered {found}"
        advice = "look into its log; while it boots, --wait SECONDS waits for it"
    return view.at(Gate.REACH).failed(f"{seen}{waited}", f"200 from {view.spec.url}/health", advice)


async def auth(config: FleetConfig, view: View) -> Finding:
    """Whether the engine takes the router's key; what it serves is kept for the gate `model`."""
    about = view.at(Gate.AUTH)
    view.served = await ask(view.client.served, health_bound(config), "/v1/models")
    name = config.engine.engine_api_key_env
    if not (isinstance(view.served, Trouble) and view.served.kind is Kind.KEY):
        return about.passed("the key is taken" if name else "no key is asked for")
    if name is None:
        return about.failed(
            f"it asks for a key ({view.served.status}), and the router has none",
            "a key that the engine takes",
            "name the variable that holds it in engine.engine_api_key_env",
        )
    return about.failed(
        f"wrong key: it answered {view.served.status} to the one in {name}",
        "a key that the engine takes",
        f"put the engine's own key (its --api-key) into the variable {name}",
    )


async def identity(config: FleetConfig, view: View) -> Finding:
    """Whether it says its version and when its process started."""
    about, bound = view.at(Gate.IDENTITY), health_bound(config)
    version = await ask(view.client.version, bound, "/version")
    process = await ask(view.client.process, bound, "/metrics")
    expected = "a version and the start of its process"
    for said in (version, process):
        if isinstance(said, Trouble):
            advice = "the router tells a restarted engine by these: serve /version and /metrics"
            return about.failed(said.text, expected, advice)
    assert isinstance(version, str), "looked at above"  # noqa: S101 - invariant
    assert isinstance(process, Process), "looked at above"  # noqa: S101 - invariant
    view.version, view.process = version, process
    if process.start_s is None:
        return about.warned(
            f"version {version}; /metrics has no process_start_time_seconds",
            expected,
            "a restart at the same address goes unnoticed: use an engine that says it",
        )
    return about.passed(f"version {version}, process since {process.start_s:.0f}", expected)


def versions(views: Iterable[View]) -> Iterator[Finding]:
    """Engines of another version than the others: they refuse each other's KV cache."""
    by_iid = {view.iid: view for view in views}
    said = {iid: view.version for iid, view in by_iid.items() if view.version is not None}
    for iid, (version, usual) in odd_ones(said).items():
        yield (
            by_iid[iid]
            .at(Gate.IDENTITY)
            .failed(
                f"version {version}",
                f"version {usual}, as the others",
                "run one version everywhere: engines of two do not hand KV over to each other",
            )
        )


async def meets_contract(config: FleetConfig, view: View) -> Finding:
    """Whether it reports what `engine_contract` says."""
    about, wanted = view.at(Gate.CONTRACT), config.engine_contract or {}
    assert view.version is not None, "from the gate before"  # noqa: S101 - invariant
    assert view.process is not None, "from the gate before"  # noqa: S101 - invariant
    served = view.served if isinstance(view.served, list) else None
    reported = reported_facts(config, view.version, view.process, served)
    differs = contract.mismatch(wanted, reported)
    if differs is not None:
        return about.failed(
            differs, "what engine_contract says", "start it as the others, or mend engine_contract"
        )
    compared = sorted(contract.CHECKED & wanted.keys() & reported.keys())
    listed = ", ".join(compared) or "nothing that engines report"
    return about.passed(f"compared: {listed}", "what engine_contract says")


async def serves_model(config: FleetConfig, view: View) -> Finding:
    """Whether it serves the fleet's model."""
    about, expected = view.at(Gate.MODEL), f'a model named "{config.model}"'
    if view.served is None or isinstance(view.served, Trouble):
        seen = "/v1/models was not read" if view.served is None else view.served.text
        return about.failed(seen, expected, "is this an engine with the API of OpenAI?")
    for each in view.served:
        if each.id == config.model:
            view.context_tokens = each.max_model_len
            context = f"{each.max_model_len} tokens" if each.max_model_len else "unknown"
            return about.passed(f"it serves {each.id}, context {context}", expected)
    shown = ", ".join(f'"{each.id}"' for each in view.served) or "none"
    return about.failed(
        f"it serves {shown}", expected, "start it with --served-model-name, or mend `model`"
    )


def contexts(views: Iterable[View]) -> Iterator[Finding]:
    """Engines with another context than the others: what one takes, the other refuses."""
    by_iid = {view.iid: view for view in views}
    said = {iid: view.context_tokens for iid, view in by_iid.items() if view.context_tokens}
    for iid, (context, usual) in odd_ones(said).items():
        yield (
            by_iid[iid]
            .at(Gate.MODEL)
            .failed(
                f"a context of {context} tokens",
                f"{usual} tokens, as the others",
                "start all engines with one --max-model-len",
            )
        )
