"""What becomes of requests: who is let in, attempts, admission."""

from __future__ import annotations

from narwhal.admission import Cause
from narwhal.model import Terminal
from narwhal.telemetry.catalogue.labels import CLIENT_LIMIT, CODE, DOOR, LEG, LIMIT, ROUTE
from narwhal.telemetry.catalogue.shape import Label, Metric
from narwhal.telemetry.kinds import AttemptResult, Denial, Endpoint, Kind, Scale, StatusClass

REQUESTS: tuple[Metric, ...] = (
    # One request, one terminal
    Metric(
        "requests_received_total",
        Kind.COUNTER,
        "requests",
        "Completion requests received. Equals requests_total plus requests_in_flight.",
        (ROUTE,),
    ),
    Metric(
        "requests_total",
        Kind.COUNTER,
        "requests",
        "Completion requests ended, by the one terminal each reached.",
        (ROUTE, Label("terminal", tuple(Terminal))),
    ),
    Metric(
        "requests_ended_total",
        Kind.COUNTER,
        "requests",
        "Completion requests ended, by the code that the client was told or would have been.",
        (CODE,),
    ),
    Metric(
        "requests_in_flight",
        Kind.GAUGE,
        "requests",
        "Completion requests received and not ended.",
        scraped=True,
    ),
    Metric(
        "http_responses_total",
        Kind.COUNTER,
        "responses",
        "HTTP answers by class of status; `none`: the client left before there was one.",
        (Label("endpoint", tuple(Endpoint)), Label("class", tuple(StatusClass))),
    ),
    Metric(
        "limits_fired_total",
        Kind.COUNTER,
        "limits",
        "Time limits that fired, whether or not they ended a request.",
        (LIMIT,),
    ),
    # Who is let in
    Metric(
        "denied_total",
        Kind.COUNTER,
        "requests",
        "Requests that were denied for want of a key, or that control routes do not take.",
        (DOOR, Label("denial", tuple(Denial))),
    ),
    Metric(
        "client_limits_fired_total",
        Kind.COUNTER,
        "limits",
        "Limits on single clients that fired, mostly before anything was known of a request.",
        (DOOR, CLIENT_LIMIT),
    ),
    Metric(
        "certificate_expiry_timestamp_seconds",
        Kind.GAUGE,
        "seconds",
        "When a listener's TLS certificate expires, in Unix time; 0: it speaks no TLS.",
        (DOOR,),
    ),
    # Attempts
    Metric(
        "attempts_total",
        Kind.COUNTER,
        "attempts",
        "Attempts ended: each is a whole prefill and decode.",
        (Label("result", tuple(AttemptResult)),),
    ),
    Metric("retries_total", Kind.COUNTER, "attempts", "Attempts after the first of their request."),
    Metric("retry_credits", Kind.GAUGE, "credits", "Retry credits left.", scraped=True),
    # Admission
    Metric(
        "offers_total",
        Kind.COUNTER,
        "requests",
        "Requests offered to admission, admitted or not.",
    ),
    Metric(
        "unsized_offers_total",
        Kind.COUNTER,
        "requests",
        "Offers turned away before their body was read, whose size is therefore unknown.",
    ),
    Metric(
        "refusals_total",
        Kind.COUNTER,
        "requests",
        "Requests that predictive admission refused, by cause.",
        (Label("cause", tuple(Cause)),),
    ),
    Metric(
        "unserved_placements_total",
        Kind.COUNTER,
        "legs",
        "Legs placed on an engine that is projected to miss their target: no other was better.",
        (LEG,),
    ),
    Metric(
        "ttft_projection_ratio",
        Kind.HISTOGRAM,
        "ratio",
        "Actual over projected TTFT, both as slo.ttft_scope has it, of requests with one attempt.",
        scale=Scale.RATIO,
    ),
    Metric(
        "admission_seats",
        Kind.GAUGE,
        "requests",
        "Requests that are admitted at a time, serving.max_connections.",
        scraped=True,
    ),
    Metric(
        "admitted_requests",
        Kind.GAUGE,
        "requests",
        "Requests that have one of those places.",
        scraped=True,
    ),
    Metric(
        "queue_capacity",
        Kind.GAUGE,
        "requests",
        "Requests that may wait to be admitted, serving.queue_capacity.",
        scraped=True,
    ),
    Metric("queue_depth", Kind.GAUGE, "requests", "Requests waiting to be admitted.", scraped=True),
    Metric(
        "queue_wait_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Time spent waiting to be admitted, of requests that waited.",
        scale=Scale.TTFT,
    ),
    Metric(
        "retained_requests",
        Kind.GAUGE,
        "requests",
        "Requests held in memory, from before the body is read to the end of the answer.",
        scraped=True,
    ),
)
