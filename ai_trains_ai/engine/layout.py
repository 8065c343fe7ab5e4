"""Layout: how the tokens of several groups become rows of one matrix, each prompt once.

A completion predicts its first token from the prompt's last one, so that token opens the completion's rows and
the prompt keeps the rest. A group with prompt [p0 p1 p2] and completions [a b] and [c d e] becomes

    rows     tile: p2 c d | p2 a ·        prefix: p0 p1
    targets        c  d e |  a b ·

Every row of a tile predicts one completion token, rows of a prefix predict nothing: in the last layer they are
only keys and values. Completions of like length share a tile and are padded to its longest (·); tiles are as
small as pays. All tiles come first, so the predicting rows are one slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ai_trains_ai.errors import UsageError


@dataclass(frozen=True, slots=True)
class TokenGroup:
    """Completions of one prompt. Token ids; the prompt has at least one, every completion too."""

    prompt: Sequence[int]
    completions: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` sequences of `length` rows from row `start`; their first row is at position `position`."""

    start: int
    count: int
    length: int
    position: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.count * self.length)


@dataclass(frozen=True, slots=True)
class Branch:
    """One prompt and what continues it. `prefix` is None when the prompt has a single token."""

    prefix: Segment | None
    tiles: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """tokens_R: id of each row. targets_M: what each of the first M rows predicts (0 on padding).

    slots_M: where a row's result goes in a flat (N × T) result, or N × T (one past it) for padding.
    """

    tokens_R: Tensor
    targets_M: Tensor
    slots_M: Tensor
    branches: tuple[Branch, ...]
    sequences: int
    longest: int
    mask_N_T: Tensor

    @property
    def predicting(self) -> int:
        return int(self.targets_M.shape[0])

    @property
    def last_position(self) -> int:
        segments = [s for b in self.branches for s in (*b.tiles, *([b.prefix] if b.prefix else []))]
        return max(s.position + s.length for s in segments)


def rows_of(group: TokenGroup) -> int:
    """Rows a group takes at least (tile padding aside)."""
    return len(group.prompt) - 1 + sum(len(completion) for completion in group.completions)


def lay_out(
    groups: Sequence[TokenGroup],
    *,
    tile_cost: int = 16,
    tile_cells: int = 1 << 16,
    device: torch.device | str = "cpu",
) -> Layout:
    """Arrange groups.

    tile_cost: how many padded rows cost as much as one more tile.
    tile_cells: attention scores of one head that a tile of several completions may have.

    Raises UsageError for an empty batch, prompt or completion.
    """
    _check(groups)
    longest = max(len(completion) for group in groups for completion in group.completions)
    total = sum(len(group.completions) for group in groups)
    tokens: list[int] = []
    targets: list[int] = []
    slots: list[int] = []
    tiled: list[tuple[Segment, ...]] = []
    lengths: list[int] = []
    first = 0
    for group in groups:
        ordered = sorted(range(len(group.completions)), key=lambda i: -len(group.completions[i]))
        position = len(group.prompt) - 1
        tiles = []
        descending = [len(group.completions[i]) for i in ordered]
        for chosen in _tiles(descending, position, tile_cost, tile_cells):
            members = [ordered[i] for i in chosen]
            length = len(group.completions[members[0]])
            tiles.append(Segment(len(tokens), len(members), length, position))
            for i in members:
                completion = group.completions[i]
                padding = [0] * (length - len(completion))
                tokens += [group.prompt[-1], *completion[:-1], *padding]
                targets += [*completion, *padding]
                base = (first + i) * longest
                slots += [*range(base, base + len(completion)), *([total * longest] * len(padding))]
        tiled.append(tuple(tiles))
        lengths += [len(completion) for completion in group.completions]
        first += len(group.completions)
    branches = []
    for group, group_tiles in zip(groups, tiled, strict=True):
        before = len(group.prompt) - 1
        prefix = Segment(len(tokens), 1, before, 0) if before else None
        tokens += group.prompt[:-1]
        branches.append(Branch(prefix, group_tiles))
    return Layout(
        tokens_R=torch.tensor(tokens, device=device),
        targets_M=torch.tensor(targets, device=device),
        slots_M=torch.tensor(slots, device=device),
        branches=tuple(branches),
        sequences=total,
        longest=longest,
        mask_N_T=torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None],
    )


def _check(groups: Sequence[TokenGroup]) -> None:
    if not groups:
        raise UsageError("no groups to compute log-probabilities for")
    for number, group in enumerate(groups):
        if not group.prompt:
            raise UsageError(f"group {number} has an empty prompt: its first token would be predicted from nothing")
        if not group.completions:
            raise UsageError(f"group {number} has no completions")
        if not all(group.completions):
            raise UsageError(f"group {number} has an empty completion")


def _tiles(lengths: list[int], before: int, tile_cost: int, tile_cells: int) -> list[range]:
    """Split descending lengths into runs that minimise padded rows + tile_cost × runs, none too large."""
    best = [0] + [0] * len(lengths)
    opened = [0] * (len(lengths) + 1)
    for end in range(1, len(lengths) + 1):
        choices = []
        for start in range(end - 1, -1, -1):
            rows = lengths[start] * (end - start)
            if choices and rows * (lengths[start] + before) > tile_cells:
                break
            choices.append((best[start] + rows + tile_cost, start))
        best[end], opened[end] = min(choices)
    runs = []
    end = len(lengths)
    while end:
        runs.append(range(opened[end], end))
        end = opened[end]
    return runs[::-1]
