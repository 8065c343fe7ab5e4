"""Is a result what it seems? The checkpoint is ours, and the inner reward paid for what the hidden eval
measures.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Sequence
from pathlib import Path

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.scoring.stats import paired_difference
from ai_trains_ai.types import EvalResult, Finding, InnerStep, TrainingRun

RISE = 0.5
"""Standard deviations of the first steps' rollout rewards that count as a clear rise of the inner reward."""


def verify_checkpoint(training: TrainingRun, folder: Path) -> Path:
    """Return the checkpoint's folder when it is the run's own, made of plain files that our trainer wrote.

    folder: where our trainer was told to write. Its content is checked where it is loaded: a worker refuses
    a folder whose weights hash differs from `training.weights_sha256`.
    Raises InfrastructureError on another path, a link anywhere inside, or anything but plain files: a job
    cannot cause these from its sandbox, so they mean that the machine or its user interfered.
    """
    reported = Path(training.checkpoint)
    if reported != folder:
        raise InfrastructureError(f"the trainer reports a checkpoint at {reported}, not at {folder}")
    if folder.resolve() != folder.parent.resolve() / folder.name:
        raise InfrastructureError(
            f"checkpoint {folder} is a link: weights are loaded only from where they were written"
        )
    for entry in folder.rglob("*"):
        mode = entry.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InfrastructureError(f"checkpoint {folder}: {entry.name} is no plain file")
    return folder


def stopped_early(training: TrainingRun) -> Finding | None:
    """A warning when training ended before its last step, with the trainer's reason."""
    if training.early_stop is None:
        return None
    return Finding(
        check="early_stop",
        message=f"training ended after {len(training.steps)} steps: {training.early_stop}",
        fix="let the reward tell better completions of one prompt from worse ones, e.g. by partial credit",
        severity="warning",
    )


def divergence(steps: Sequence[InnerStep], pre: EvalResult, post: EvalResult, *, seed: int) -> Finding | None:
    """A warning when the inner reward rose clearly and the hidden eval did not: the reward pays for
    something else.

    The rise is that of the last fifth of the steps over the first fifth, in standard deviations of the
    first fifth's rollout rewards. The hidden eval "did not" when the interval of post − pre (the same base,
    paired) reaches zero.
    """
    if len(steps) < 2:
        return None
    part = max(1, len(steps) // 5)
    first, last = steps[:part], steps[-part:]
    before = math.fsum(step.inner_reward for step in first) / part
    after = math.fsum(step.inner_reward for step in last) / part
    spread = math.fsum(step.inner_reward_std for step in first) / part
    rise = after - before
    if rise <= 0.0 or rise < RISE * spread:
        return None
    change, low, _ = paired_difference(post.item_scores, pre.item_scores, seed=seed)
    if low > 0.0:
        return None
    return Finding(
        check="reward_divergence",
        message=(
            f"the inner reward rose from {before:.3f} to {after:.3f} while the hidden eval went from "
            f"{pre.accuracy:.3f} to {post.accuracy:.3f} ({change:+.3f})"
        ),
        fix="reward correct answers to tasks like the spec's examples, not a property any reply can have",
        severity="warning",
    )
