"""What a journal comes to: lines in, figures out. Pure; who calls it opens the files.

`Reading` takes lines one by one and keeps numbers, about a hundred bytes a request; `figures_of`
sums them up.
"""

from narwhal.telemetry.report.figures import (
    MOST_WINDOWS,
    EngineFigures,
    Figures,
    PhaseFigures,
    Share,
    TerminalFigures,
    Times,
    Window,
)
from narwhal.telemetry.report.lines import SchemaError
from narwhal.telemetry.report.reading import Bad, Reading, printable
from narwhal.telemetry.report.sums import figures_of, width_for
from narwhal.telemetry.report.wanted import Targets, Wanted

__all__ = [
    "MOST_WINDOWS",
    "Bad",
    "EngineFigures",
    "Figures",
    "PhaseFigures",
    "Reading",
    "SchemaError",
    "Share",
    "Targets",
    "TerminalFigures",
    "Times",
    "Wanted",
    "Window",
    "figures_of",
    "printable",
    "width_for",
]
