"""Whether a request is let in: what it is projected to take, against what was promised."""

from narwhal.admission.judge import Admitted, Cause, Refused, Targets, Verdict, judge
from narwhal.admission.output import OutputHistory
from narwhal.admission.paths import DecodePath, PrefillPath

__all__ = [
    "Admitted",
    "Cause",
    "DecodePath",
    "OutputHistory",
    "PrefillPath",
    "Refused",
    "Targets",
    "Verdict",
    "judge",
]
