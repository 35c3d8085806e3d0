"""The labels that several metrics have."""

from __future__ import annotations

from narwhal.fleet import EngineState
from narwhal.model import ClientLimit, Limit, Phase, Role, Route
from narwhal.roles import Gate, Rule, Verdict
from narwhal.telemetry.catalogue.shape import Label
from narwhal.telemetry.codes import CODE_LABELS
from narwhal.telemetry.kinds import Door, Horizon, Target

LEGS = (Phase.PREFILL, Phase.DECODE)
"""The phases in which a request sits on an engine."""

ENGINE = Label("engine", meaning="the fleet's engines, by `iid`")
VERSION = Label("version", meaning="the running version")
ROUTE = Label("route", tuple(Route))
LEG = Label("phase", LEGS)
PHASE = Label("phase", tuple(Phase))
LIMIT = Label("limit", tuple(Limit))
CLIENT_LIMIT = Label("limit", tuple(ClientLimit))
DOOR = Label("listener", tuple(Door))
STATE = Label("state", tuple(EngineState))
ROLE = Label("role", tuple(Role))
RULE = Label("rule", tuple(Rule))
GATE = Label("gate", tuple(Gate))
VERDICT = Label("verdict", tuple(Verdict))
TARGET = Label("target", tuple(Target))
HORIZON = Label("horizon", tuple(Horizon))
CODE = Label("code", CODE_LABELS, meaning="the codes of the error reference, `ok` and `other`")
