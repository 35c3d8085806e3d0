"""The top of a fleet file: the engines, and every section together."""

from collections.abc import Mapping
from typing import Literal

import attrs

from narwhal.config import effective
from narwhal.config.bounds import at_least
from narwhal.config.control import Controller
from narwhal.config.engine_settings import EngineSettings
from narwhal.config.listeners import Control, Http
from narwhal.config.recovery import Profiles, Recovery
from narwhal.config.serving import Serving, Slo
from narwhal.config.settings import about, checked
from narwhal.config.telemetry import TelemetrySettings
from narwhal.config.texts import EngineId, EngineUrl, Name, UrlWithPath
from narwhal.config.urls import canonical_url, split_url
from narwhal.model import Role


def _canonical(text: str | None) -> str | None:
    return canonical_url(text) if isinstance(text, str) else text


@attrs.frozen(kw_only=True, field_transformer=checked)
class Hardware:
    """What every engine runs on. For people and reports; the router draws nothing from it."""

    accelerator: Name | None = attrs.field(
        default=None, metadata=about("Model of the accelerator.", example="H100")
    )
    accelerators_per_engine: int | None = attrs.field(
        default=None,
        metadata=about("Accelerators of one engine.", bounds=at_least(1), example=1),
    )
    tensor_parallel: int | None = attrs.field(
        default=None,
        metadata=about("Tensor-parallel size of one engine.", bounds=at_least(1), example=1),
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class EngineSpec:
    """One engine of the fleet."""

    iid: EngineId = attrs.field(
        metadata=about("The engine's name in metrics, journal, state and messages.", example="p0")
    )
    url: EngineUrl = attrs.field(
        converter=canonical_url,
        metadata=about("Where the engine listens.", example="http://127.0.0.1:8000"),
    )
    role: Role = attrs.field(
        default=Role.DECODE,
        metadata=about("The role the engine starts in; role control may move it."),
    )
    pin: bool = attrs.field(
        default=False, metadata=about("Whether the engine keeps that role for good.")
    )
    attestation_url: UrlWithPath | None = attrs.field(
        default=None,
        converter=_canonical,
        metadata=about(
            "Where to ask for the identity of the engine's process, if not at `url` itself."
        ),
    )

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return split_url(self.url).scheme

    @property
    def host(self) -> str:
        """Host name or IP address, without brackets."""
        return split_url(self.url).host

    @property
    def port(self) -> int:
        """The TCP port, the scheme's own if the URL has none."""
        return split_url(self.url).port


@attrs.frozen(kw_only=True, field_transformer=checked)
class FleetConfig:
    """A fleet file as a value.

    `load_fleet` and `parse_fleet` return one that obeys every rule. One made in Python obeys
    types and bounds; `broken_rules` tells about the rules between fields.
    """

    schema: Literal["narwhal.fleet"] = attrs.field(
        default="narwhal.fleet",
        metadata=about("Says what kind of file this is.", required=True),
    )
    schema_version: Literal[1] = attrs.field(
        default=1, metadata=about("Version of the file's format.", required=True)
    )
    model: Name = attrs.field(
        metadata=about(
            "Name of the model that the fleet serves, as clients must write it.",
            example="my-model",
        )
    )
    hardware: Hardware | None = attrs.field(
        default=None, metadata=about("What every engine runs on; the fleet is uniform.")
    )
    engines: tuple[EngineSpec, ...] = attrs.field(
        metadata=about(
            "The engines of the fleet, at least one.",
            example=(EngineSpec(iid="p0", url="http://127.0.0.1:8000"),),
        )
    )
    # A mapping, although frozen: treat it as a constant. It is no part of the hash.
    engine_contract: Mapping[str, object] | None = attrs.field(
        default=None,
        hash=False,
        metadata=about(
            "Facts, in any form, about how the engines are run. An engine that reports another "
            "value of one of them gets no work; profiles are bound to all of them, so that a "
            "change asks for new measurements.",
            example={"dtype": "bfloat16", "max_model_len": 32768},
        ),
    )
    slo: Slo = attrs.field(
        metadata=about("The targets of service.", example=Slo(ttft_s=2.0, tpot_s=0.05))
    )
    serving: Serving = attrs.field(factory=Serving, metadata=about("The life of a request."))
    http: Http = attrs.field(factory=Http, metadata=about("What the listeners bear of one client."))
    control: Control = attrs.field(
        factory=Control,
        metadata=about("Where the routes for operators are served, and to whom."),
    )
    engine: EngineSettings = attrs.field(
        factory=EngineSettings, metadata=about("How the router talks to engines.")
    )
    controller: Controller = attrs.field(
        factory=Controller, metadata=about("When engines change roles.")
    )
    recovery: Recovery = attrs.field(
        factory=Recovery, metadata=about("When engines are taken out of service and come back.")
    )
    profiles: Profiles = attrs.field(
        factory=Profiles, metadata=about("The measured speed of the engines.")
    )
    telemetry: TelemetrySettings = attrs.field(
        factory=TelemetrySettings,
        metadata=about("What the router tells other programs, unasked."),
    )

    @property
    def control_connections(self) -> int:
        """Connections for probes and recovery: as set, or derived when that is 0."""
        return effective.control_connections(self)

    @property
    def retained_limit(self) -> int:
        """Completion requests held at one time."""
        return effective.retained_limit(self)
