"""A run's result for people: verdict, curve, scores with their intervals, the reward's parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ai_trains_ai.cli.plot import curve
from ai_trains_ai.types import EvalResult, Finding, RunResult


def describe(result: RunResult) -> str:
    """Several lines of text."""
    lines = [f"probe      {'valid' if result.probe.valid else 'rejected'}"]
    lines += _findings(result.probe.findings)
    if result.failure is not None:
        lines += ["training   failed by the job's own fault", *_findings([result.failure])]
    if result.training is not None and result.training.steps:
        training = result.training
        lines.append(
            f"training   {len(training.steps)} steps, {training.tokens:,} tokens, {training.seconds:.1f} s"
        )
        lines += ["             " + row for row in curve([step.inner_reward for step in training.steps])]
    if result.pre is not None and result.best_pre is not None and result.post is not None:
        lines.append(f"pre        {_score(result.pre)}  {result.base_model} untrained")
        if result.best_pre.model != result.base_model:
            lines.append(f"best pre   {_score(result.best_pre)}  {result.best_pre.model} untrained")
        lines.append(f"post       {_score(result.post)}  trained, weights {result.post.model[:12]}")
        lines.append(
            f"uplift     {result.reward.uplift:.3f} [{result.uplift_low:.3f}, {result.uplift_high:.3f}]"
            "  of the room above the best untrained base"
        )
    lines += _findings(result.warnings)
    earned = result.reward
    lines.append(
        f"reward     {earned.total:.3f}  = validation {earned.validation:.2f}, quality {earned.quality:.3f}, "
        f"speed {earned.speed:.3f}, weighed"
    )
    if result.training is not None:
        kept = Path(result.training.checkpoint).is_dir()
        lines.append(f"checkpoint {result.training.checkpoint}{'' if kept else ' (removed to save space)'}")
    notes = [f"{result.seconds:.1f} s", f"seed {result.seed}"]
    if result.from_cache:
        notes.append("served from the job cache (--no-cache runs it again)")
    if not result.trusted:
        notes.append("UNTRUSTED: the sandbox was off")
    lines.append(f"took       {', '.join(notes)}")
    return "\n".join(lines)


def _score(result: EvalResult) -> str:
    return f"{result.accuracy:.3f} [{result.low:.3f}, {result.high:.3f}]"


def _findings(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        lines.append(f"  {finding.severity}: {finding.check}: {finding.message}")
        if finding.fix:
            lines.append(f"    fix: {finding.fix}")
    return lines
