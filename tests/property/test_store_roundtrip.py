"""What goes into the store comes out equal, whatever it was."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ai_trains_ai.store.store import Store
from ai_trains_ai.types import (
    EvalResult,
    Finding,
    InnerStep,
    Job,
    ProbeResult,
    Reward,
    Rollout,
    RunResult,
    TrainingRun,
)

# Surrogates cannot be written as UTF-8, so no text that crossed a pipe holds one.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.floats(allow_nan=False, allow_infinity=False, width=64)
share = st.floats(0.0, 1.0)
count = st.integers(0, 2**40)


@st.composite
def evals(draw: st.DrawFn, model: str) -> EvalResult:
    scores = tuple(draw(st.lists(share, min_size=1, max_size=5)))
    return EvalResult(
        "ledger", model, *draw(st.tuples(share, share, share, share)), scores, draw(st.integers(1, 8)), 1.5
    )


findings = st.builds(Finding, text, text, text, st.sampled_from(["error", "warning"]))


@st.composite
def steps(draw: st.DrawFn) -> tuple[InnerStep, ...]:
    made = []
    for index in range(draw(st.integers(0, 4))):
        values = [draw(number) for _ in range(9)]
        made.append(InnerStep(index, *values, draw(count), draw(count), draw(count), draw(number)))
    return tuple(made)


@st.composite
def results(draw: st.DrawFn) -> RunResult:
    outcome = draw(st.sampled_from(["completed", "rejected", "failed"]))
    done = outcome == "completed"
    training = TrainingRun(
        "/runs/x/checkpoint",
        "ab" * 32,
        draw(steps()),
        tuple(draw(st.lists(st.builds(Rollout, count, text, text, number), max_size=3))),
        draw(count),
        draw(number),
        draw(st.none() | text),
    )
    return RunResult(
        job_sha256="cd" * 32,
        seed=draw(st.integers(0, 2**63 - 1)),
        outcome=outcome,
        base_model="nano-0.2m",
        probe=ProbeResult(
            outcome != "rejected", tuple(draw(st.lists(findings, max_size=3))), 0.5, draw(count)
        ),
        pre=draw(evals("nano-0.2m")) if done else None,
        best_pre=draw(evals("nano-0.8m")) if done else None,
        post=draw(evals("ab" * 32)) if done else None,
        uplift_low=draw(share) if done else None,
        uplift_high=draw(share) if done else None,
        reward=Reward(*(draw(share) for _ in range(5))),
        training=training if done else None,
        failure=draw(findings) if outcome == "failed" else None,
        seconds=draw(number),
        trusted=draw(st.booleans()),
        run_id="r",
        warnings=tuple(draw(st.lists(findings, max_size=2))),
    )


@settings(max_examples=60, deadline=None)
@given(results(), st.dictionaries(text.filter(bool), st.binary(max_size=50), max_size=3))
def test_a_result_comes_back_equal(result: RunResult, files: dict[str, bytes]) -> None:
    job = Job(files, "nano-0.2m", {"num_tasks": 3}, {"max_steps": 2}, ("max_steps",), result.job_sha256)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        with Store(path) as store:
            store.runs.save_job(job, "ledger")
            store.runs.save_job(job, "ledger")
            store.runs.begin(
                "r",
                job_sha256=result.job_sha256,
                family="ledger",
                base_model=result.base_model,
                seed=result.seed,
                cache_key="k",
                trusted=result.trusted,
            )
            first = store.runs.attempt("r")
            if result.training is not None:
                # An earlier try that infrastructure ended: kept, and not mixed with the last one's steps.
                store.runs.step("r", first, InnerStep(0, *[9.0] * 9, 0, 1, 1, 0.1))
                last = store.runs.attempt("r")
                for step in result.training.steps or [InnerStep(0, *[9.0] * 9, 0, 1, 1, 0.1)]:
                    store.runs.step("r", last, step)
            store.runs.finish("r", result, submission=1, reward_config="{}")
        # Another process's view: opened afresh.
        with Store(path) as store:
            assert store.runs.cached("k") == "r"
            found = store.runs.result("r")
            kept = store.database.rows("SELECT path, content FROM job_files")
            assert {row["path"]: row["content"] for row in kept} == files
    if result.training is not None and not result.training.steps:
        assert len(found.training.steps) == 1  # type: ignore[union-attr]
        return
    assert found == result
