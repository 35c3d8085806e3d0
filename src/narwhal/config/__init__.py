"""The fleet file: its schema, its loader, and what follows from its values.

Pure: it reads and replaces files when asked to, and nothing else. `load_fleet` returns a frozen
`FleetConfig` in which every field has a value within its bounds and every rule between fields
holds, or raises `ConfigError` with all that is wrong, a line for each mistake.
"""

from narwhal.config.control import Controller, Reactive, Thresholds
from narwhal.config.engine_settings import Connector, EngineSettings
from narwhal.config.environment import client_keys, control_token, engine_api_key
from narwhal.config.fleet import EngineSpec, FleetConfig, Hardware
from narwhal.config.listeners import Control, Http
from narwhal.config.load import Loaded, load_fleet, parse_fleet, read_fleet
from narwhal.config.recovery import Health, Profiles, Recovery, RestartPolicy
from narwhal.config.rules import broken_rules
from narwhal.config.serving import Admission, Serving, Slo
from narwhal.config.structure import unstructure_fleet
from narwhal.config.telemetry import TelemetrySettings, TraceSettings

__all__ = [
    "Admission",
    "Connector",
    "Control",
    "Controller",
    "EngineSettings",
    "EngineSpec",
    "FleetConfig",
    "Hardware",
    "Health",
    "Http",
    "Loaded",
    "Profiles",
    "Reactive",
    "Recovery",
    "RestartPolicy",
    "Serving",
    "Slo",
    "TelemetrySettings",
    "Thresholds",
    "TraceSettings",
    "broken_rules",
    "client_keys",
    "control_token",
    "engine_api_key",
    "load_fleet",
    "parse_fleet",
    "read_fleet",
    "unstructure_fleet",
]
