"""A run's result as the one JSON document that `ata job run --json` prints and result.json holds."""

from __future__ import annotations

from typing import Any

from ai_trains_ai.types import RunResult


def summary(result: RunResult) -> dict[str, Any]:
    """Plain data of fixed shape. What a rejected or failed job has not got is null; its reward is 0."""
    earned, post = result.reward, result.post
    return {
        "valid": result.probe.valid,
        "base_model": result.base_model,
        "pre": result.pre.accuracy if result.pre else None,
        "best_pre": result.best_pre.accuracy if result.best_pre else None,
        "post": post.accuracy if post else None,
        "post_low": post.low if post else None,
        "post_high": post.high if post else None,
        "uplift": earned.uplift if post else None,
        "reward": {
            "total": earned.total,
            "validation": earned.validation,
            "quality": earned.quality,
            "speed": earned.speed,
        },
        "seconds": result.seconds,
        "weights_sha256": result.training.weights_sha256 if result.training else None,
        "outcome": result.outcome,
        "uplift_low": result.uplift_low,
        "uplift_high": result.uplift_high,
        "best_base": result.best_pre.model if result.best_pre else None,
        "errors": [
            {"check": finding.check, "message": finding.message, "fix": finding.fix}
            for finding in (*result.probe.errors, *([result.failure] if result.failure else []))
        ],
        "warnings": [
            {"check": finding.check, "message": finding.message, "fix": finding.fix}
            for finding in (*result.probe.findings, *result.warnings)
            if finding.severity == "warning"
        ],
        "job_sha256": result.job_sha256,
        "seed": result.seed,
        "run": result.run_id,
        "checkpoint": result.training.checkpoint if result.training else None,
        "training_tokens": result.training.tokens if result.training else None,
        "from_cache": result.from_cache,
        "trusted": result.trusted,
    }
