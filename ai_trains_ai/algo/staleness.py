"""The bound on how old a policy may be when its groups are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StalenessCheck:
    """Positions of the groups within the bound and beyond it, in order; `worst` is the largest staleness seen."""

    kept: tuple[int, ...]
    discarded: tuple[int, ...]
    worst: int
    warning: str | None
    """What was discarded and why, with the numbers; None when nothing was."""


def check_staleness(versions: Sequence[int], current: int, max_steps_off_policy: int) -> StalenessCheck:
    """Sort groups by whether `current` − (the oldest policy version in the group) is within the bound.

    versions: a group's policy_version, the oldest of its episodes'. current: the version about to be updated.
    Raises ValueError for a version from the future, which no sampler can have used.
    """
    staleness = [current - version for version in versions]
    if any(age < 0 for age in staleness):
        raise ValueError(f"policy versions {sorted(set(versions))} include some newer than {current}")
    kept = tuple(i for i, age in enumerate(staleness) if age <= max_steps_off_policy)
    discarded = tuple(i for i, age in enumerate(staleness) if age > max_steps_off_policy)
    warning = None
    if discarded:
        ages = ", ".join(str(staleness[i]) for i in discarded)
        warning = (
            f"{len(discarded)} of {len(versions)} groups discarded: {ages} steps off policy, "
            f"{max_steps_off_policy} allowed"
        )
    return StalenessCheck(kept, discarded, max(staleness, default=0), warning)
