"""Profiling an emulated engine gives the coefficients it was made with."""

from __future__ import annotations

import pytest
from profiling_stage import QUICK, Stage, on_stage

from narwhal.emulator import TimeModel
from narwhal.profiler import Wanted
from narwhal.profiles import Profile, Refused, fit_decode, fit_prefill, medians, refit_row

MODELS = [
    TimeModel(handoff=(0.01, 1e-5)),
    TimeModel(prefill=(0.8e-9, 38e-6, 4e-3), decode=(7e-3, 50e-6, 55e-9), handoff=(2e-3, 2e-6)),
    TimeModel(prefill=(4e-9, 190e-6, 20e-3), decode=(35e-3, 250e-6, 275e-9), handoff=(1e-3, 0)),
    TimeModel(prefill=(0.0, 1e-5, 1e-3), decode=(0.0, 1e-3, 1e-6), handoff=(0.5, 1e-4)),
]


def assert_close(profile: Profile, model: TimeModel, tolerance: float) -> None:
    prefill, decode, handoff = profile.prefill, profile.decode, profile.handoff
    assert handoff is not None
    for name, found, truth in (
        ("prefill", (prefill.a, prefill.b, prefill.c), model.prefill),
        ("decode", (decode.t0, decode.tr, decode.tk), model.decode),
        ("handoff", (handoff.base_s, handoff.token_s), model.handoff),
    ):
        for one, other in zip(found, truth, strict=True):
            assert one == pytest.approx(other, rel=tolerance, abs=1e-12), (name, found, truth)


@pytest.mark.parametrize("model", MODELS)
def test_without_noise_within_three_percent_whatever_the_engine(model: TimeModel) -> None:
    async def act(stage: Stage) -> None:
        measured = await stage.profile()
        assert_close(measured.row.profile, model, 0.03)
        assert measured.left_out == ()
        assert measured.row.profile.prefill.fit_mape == pytest.approx(0.0, abs=1e-4)
        assert measured.row.profile.decode.cv_mape == pytest.approx(0.0, abs=1e-3)

    on_stage(act, time=model)


@pytest.mark.parametrize("seed", [1, 2])
def test_with_five_percent_of_noise_within_ten_percent_by_default(seed: int) -> None:
    model = TimeModel(handoff=(0.02, 1e-5))

    async def act(stage: Stage) -> None:
        measured = await stage.profile(Wanted())
        profile = measured.row.profile
        for found, truth in (
            ((profile.prefill.a, profile.prefill.b, profile.prefill.c), model.prefill),
            ((profile.decode.t0, profile.decode.tr, profile.decode.tk), model.decode),
        ):
            for one, other in zip(found, truth, strict=True):
                assert one == pytest.approx(other, rel=0.10), (found, truth)

    on_stage(act, time=model, noise=0.05, seed=seed)


def test_the_errors_are_those_of_the_samples_it_keeps() -> None:
    async def act(stage: Stage) -> None:
        measured = await stage.profile()
        samples, profile = measured.samples, measured.row.profile
        prefill, decode = fit_prefill(medians(samples.prefill)), fit_decode(samples.decode)
        assert not isinstance(prefill, Refused)
        assert not isinstance(decode, Refused)
        assert profile.prefill.cv_mape == prefill.cv_mape > 0
        assert (profile.decode.fit_mape, profile.decode.cv_mape) == (
            decode.fit_mape,
            decode.cv_mape,
        )
        assert refit_row(samples) == measured.row

    on_stage(act, noise=0.05, seed=3)


def test_what_is_kept_says_which_engine_it_is_and_where_it_was_measured() -> None:
    async def act(stage: Stage) -> None:
        measured = await stage.profile()
        engine, profile = measured.samples.engine, measured.row.profile
        assert (engine.iid, engine.version) == ("d0", "0.32.0")
        assert engine.process_start_s == stage.fleet["d0"].started_at
        assert measured.row.bound
        assert profile.kv_capacity_tokens == 200_000
        assert profile.prefill.tokens is not None
        assert (profile.prefill.tokens.low, profile.prefill.tokens.high) == (64, 4096)
        assert profile.decode.requests is not None
        assert profile.decode.requests.high == 4
        assert len(measured.samples.prefill) == 12
        assert len(measured.samples.text) == 5

    on_stage(act, kv_capacity_tokens=200_000)


def test_prefix_caches_are_of_no_help() -> None:
    """No two prompts begin alike."""

    async def act(stage: Stage) -> None:
        await stage.profile()
        beginnings = [
            seen.raw[:120] for seen in stage.fleet["d0"].stats.requests if b'"prompt":[' in seen.raw
        ]
        assert len(beginnings) == len(set(beginnings)) > 20

    on_stage(act)


def test_progress_only_grows_and_reaches_the_end() -> None:
    async def act(stage: Stage) -> None:
        await stage.profile()
        shares = [step.done for step in stage.steps]
        assert shares == sorted(shares)
        assert shares[0] == 0.0
        assert 0.8 < shares[-1] < 1.0

    on_stage(act)


def test_without_another_engine_or_a_connector_there_is_no_handoff() -> None:
    async def alone(stage: Stage) -> None:
        assert (await stage.profile(producer=None)).row.profile.handoff is None

    async def unconnected(stage: Stage) -> None:
        assert (await stage.profile()).row.profile.handoff is None

    on_stage(alone)
    on_stage(unconnected, connector=False)


def test_a_batch_that_was_never_whole_is_left_out_and_named() -> None:
    """The engine runs two at a time; nobody said so."""
    wanted = Wanted(
        prefill_lens=QUICK.prefill_lens,
        prefill_repeats=3,
        decode_input_lens=(64, 512),
        decode_concurrency=(1, 2, 4),
        decode_tokens=16,
    )

    async def act(stage: Stage) -> None:
        measured = await stage.profile(wanted)
        assert measured.left_out == (
            "4 requests of 64 tokens: they never decoded all at one time",
            "4 requests of 512 tokens: they never decoded all at one time",
        )
        assert {each.requests for each in measured.samples.decode} == {1, 2}

    on_stage(act, max_num_seqs=2)
