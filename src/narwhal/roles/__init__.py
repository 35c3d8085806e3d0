"""Role control: demand, evidence, loads, and the decision which engine changes its role.

`RoleController` is told of offers and asked once a monitor pass. Section numbers are those of the
functional specification that the defaults come from.
"""

from narwhal.roles.controller import RoleController
from narwhal.roles.decision import Decision, Flip, Gate, Rule, Verdict
from narwhal.roles.demand import Estimate
from narwhal.roles.evidence import EvidenceState, Risk
from narwhal.roles.loads import Projection
from narwhal.roles.snapshot import EngineNow, Snapshot, Split

__all__ = [
    "Decision",
    "EngineNow",
    "Estimate",
    "EvidenceState",
    "Flip",
    "Gate",
    "Projection",
    "Risk",
    "RoleController",
    "Rule",
    "Snapshot",
    "Split",
    "Verdict",
]
