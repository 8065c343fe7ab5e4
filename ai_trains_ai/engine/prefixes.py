"""share_prefixes: sequences of any origin as groups with a common prompt, so that it is computed once."""

from __future__ import annotations

from collections.abc import Sequence

from ai_trains_ai.engine.layout import TokenGroup
from ai_trains_ai.errors import UsageError

LEAST_SHARED = 8
"""Tokens that two sequences must have in common to be worth a common prompt."""


def share_prefixes(sequences: Sequence[Sequence[int]]) -> tuple[list[TokenGroup], list[int]]:
    """Group sequences by what they have in common at their start, so that it is computed once.

    Returns the groups, and for each of their completions in order the index of its sequence. Every sequence is
    its group's prompt followed by its completion; it needs at least two tokens. Raises UsageError if not.
    """
    short = [index for index, tokens in enumerate(sequences) if len(tokens) < 2]
    if short:
        raise UsageError(f"sequence {short[0]} has {len(sequences[short[0]])} tokens, at least 2 are needed")
    order = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    runs: list[tuple[list[int], int]] = []
    for index in order:
        alone = len(sequences[index]) - 1
        if runs:
            members, shared = runs[-1]
            common = min(_common(sequences[members[-1]], sequences[index]), shared, alone)
            if common >= LEAST_SHARED and len(members) * common >= (len(members) - 1) * shared:
                runs[-1] = ([*members, index], common)
                continue
        runs.append(([index], alone))
    groups = []
    for members, shared in runs:
        cut = shared if len(members) > 1 else 1
        tokens = sequences[members[0]]
        groups.append(TokenGroup(tokens[:cut], [sequences[index][cut:] for index in members]))
    return groups, [index for members, _ in runs for index in members]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common start."""
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)
