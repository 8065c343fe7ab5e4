"""Layout: how the tokens of several groups become rows of one matrix, each prompt once.

A completion predicts its first token from the prompt's last one, so that token opens the completion's rows and
the prompt keeps the rest. A group with prompt [p0 p1 p2] and completions [a b] and [c d e] becomes

    rows     tile: p2 c d | p2 a ·        prefix: p0 p1
    targets        c  d e |  a b ·

Every row of a tile predicts one completion token; rows of a prefix predict prompt tokens, or, when these are
not asked for, nothing: in the last layer they are then only keys and values. Groups with equally many
completions form a branch and are worked on together: their prompts are padded to the longest, their completions
are sorted by length and cut into tiles, each padded to its longest (·). Padding costs arithmetic, one more
branch or tile costs calls: `branch_cost` and `tile_cost` say how many padded rows a cut must save. All tiles
come before all prefixes, so the predicting rows are one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ai_trains_ai.errors import UsageError

_Ints = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TokenGroup:
    """Completions of one prompt. Token ids; the prompt has at least one, every completion too."""

    prompt: Sequence[int]
    completions: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Segment:
    """groups × count sequences of `length` rows, from row `start`, in that order.

    first: position of the first row, a group. lengths: rows that are not padding, a group (prefixes only).
    """

    start: int
    groups: int
    count: int
    length: int
    first: tuple[int, ...]
    lengths: tuple[int, ...] = ()

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.groups * self.count * self.length)


@dataclass(frozen=True, slots=True)
class Branch:
    """Prompts and what continues them. `prefix` is None when every prompt has a single token."""

    prefix: Segment | None
    tiles: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Costs:
    """See the module's text. cells: attention scores of one head that a tile of several completions may have."""

    tile: int = 16
    branch: int = 32
    cells: int = 1 << 16


@dataclass(frozen=True, slots=True)
class Layout:
    """tokens_R: id of each row. targets_M: what each of the first M rows predicts (0 on padding).

    places_N_T: the row that predicts token t of sequence n, or M (one past the rows) where there is none.
    N: all sequences in the order given; T: tokens predicted of the longest.
    """

    tokens_R: Tensor
    targets_M: Tensor
    places_N_T: Tensor
    mask_N_T: Tensor
    branches: tuple[Branch, ...]
    positions: int
    """The longest sequence, in tokens, the last one not counted: nothing is predicted from it."""

    @property
    def rows(self) -> int:
        return int(self.tokens_R.shape[0])

    @property
    def predicting(self) -> int:
        return int(self.targets_M.shape[0])


def rows_of(group: TokenGroup) -> int:
    """Rows a group takes, padding aside."""
    return len(group.prompt) - 1 + sum(len(completion) for completion in group.completions)


def lay_out(
    groups: Sequence[TokenGroup],
    costs: Costs,
    *,
    prompts: bool = False,
    device: torch.device | str = "cpu",
) -> Layout:
    """Arrange groups. prompts: predict the prompts' tokens (from their second on) besides the completions'.

    Raises UsageError for an empty batch, prompt or completion.
    """
    _check(groups)
    builder = _Builder(groups, prompts=prompts)
    branches = []
    for members in _branches(groups, costs):
        prefix_length = max(len(groups[g].prompt) - 1 for g in members)
        ordered = {g: sorted(range(len(groups[g].completions)), key=_by_length(groups[g])) for g in members}
        ranks = range(len(groups[members[0]].completions))
        longest = [max(len(groups[g].completions[ordered[g][rank]]) for g in members) for rank in ranks]
        tiles = [
            builder.add_tile(members, ordered, run, longest[run.start])
            for run in _tiles(longest, prefix_length, len(members), costs)
        ]
        branches.append((members, prefix_length, tuple(tiles)))
    finished = tuple(Branch(builder.add_prefix(members, n), tiles) for members, n, tiles in branches)
    return builder.finish(finished, device)


class _Builder:
    """Rows in the making, in numpy: turning lists into tensors element by element costs more than the layout."""

    def __init__(self, groups: Sequence[TokenGroup], *, prompts: bool) -> None:
        self.groups = groups
        self.prompts = prompts
        self.offsets = [0]
        for group in groups:
            self.offsets.append(self.offsets[-1] + len(group.completions))
        self.rows = 0
        self.tokens: list[_Ints] = []
        self.targets: list[_Ints] = []
        self.first_row = np.zeros(self.offsets[-1], dtype=np.int64)
        """Of each sequence's completion."""
        self.prefix_row = np.zeros(len(groups), dtype=np.int64)

    def _append(self, tokens: _Ints) -> int:
        start = self.rows
        self.tokens.append(tokens.reshape(-1))
        self.rows += tokens.size
        return start

    def add_tile(
        self, members: list[int], ordered: dict[int, list[int]], ranks: range, length: int
    ) -> Segment:
        """Completions of the given ranks by length, of every member group, padded to `length` rows."""
        sequences = len(members) * len(ranks)
        tokens = np.zeros((sequences, length + 1), dtype=np.int64)
        row = 0
        for g in members:
            group = self.groups[g]
            last = group.prompt[-1]
            for index in ordered[g][ranks.start : ranks.stop]:
                completion = group.completions[index]
                tokens[row, 0] = last
                tokens[row, 1 : len(completion) + 1] = completion
                self.first_row[self.offsets[g] + index] = self.rows + row * length
                row += 1
        self.targets.append(tokens[:, 1:].reshape(-1))
        start = self._append(tokens[:, :-1])
        first = tuple(len(self.groups[g].prompt) - 1 for g in members)
        return Segment(start, len(members), len(ranks), length, first)

    def add_prefix(self, members: list[int], length: int) -> Segment | None:
        if length == 0:
            return None
        tokens = np.zeros((len(members), length + 1), dtype=np.int64)
        lengths = tuple(len(self.groups[g].prompt) - 1 for g in members)
        for row, g in enumerate(members):
            tokens[row, : lengths[row] + 1] = self.groups[g].prompt
            self.prefix_row[g] = self.rows + row * length
        if self.prompts:
            self.targets.append(tokens[:, 1:].reshape(-1))
        return Segment(self._append(tokens[:, :-1]), len(members), 1, length, (0,) * len(members), lengths)

    def finish(self, branches: tuple[Branch, ...], device: torch.device | str) -> Layout:
        before = np.array(
            [len(group.prompt) - 1 if self.prompts else 0 for group in self.groups for _ in group.completions]
        )[:, None]
        sizes = np.array([[len(completion)] for group in self.groups for completion in group.completions])
        sizes += before
        steps = np.arange(sizes.max())
        predicting = sum(part.size for part in self.targets)
        places = np.where(steps < sizes, self.first_row[:, None] + steps - before, predicting)
        if self.prompts:
            counts = [len(group.completions) for group in self.groups]
            places = np.where(steps < before, np.repeat(self.prefix_row, counts)[:, None] + steps, places)

        def tensor(values: _Ints) -> Tensor:
            return torch.from_numpy(values).to(device)

        return Layout(
            tokens_R=tensor(np.concatenate(self.tokens)),
            targets_M=tensor(np.concatenate(self.targets)),
            places_N_T=tensor(places),
            mask_N_T=tensor(steps < sizes),
            branches=branches,
            positions=max(len(g.prompt) + max(map(len, g.completions)) for g in self.groups) - 1,
        )


def _check(groups: Sequence[TokenGroup]) -> None:
    if not groups:
        raise UsageError("no groups to compute log-probabilities for")
    for number, group in enumerate(groups):
        if not len(group.prompt):
            raise UsageError(f"group {number} has an empty prompt: nothing would predict its first token")
        if not len(group.completions):
            raise UsageError(f"group {number} has no completions")
        if not all(len(completion) for completion in group.completions):
            raise UsageError(f"group {number} has an empty completion")


def _by_length(group: TokenGroup) -> Callable[[int], int]:
    return lambda index: -len(group.completions[index])


def _branches(groups: Sequence[TokenGroup], costs: Costs) -> list[list[int]]:
    """Indices of the groups of each branch: as many completions, prompts of like length."""
    by_count: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        by_count.setdefault(len(group.completions), []).append(index)
    found = []
    for indices in by_count.values():
        indices.sort(key=lambda index: -len(groups[index].prompt))
        prompts = [len(groups[index].prompt) for index in indices]
        found += [[indices[i] for i in run] for run in _cut(prompts, costs.branch, lambda _: True)]
    return found


def _tiles(longest: list[int], before: int, groups: int, costs: Costs) -> list[range]:
    """Ranks by length, cut into tiles. longest: of each rank, descending; before: prompt rows."""

    def fits(run: range) -> bool:
        length = longest[run.start]
        return len(run) * length * (length + before) <= costs.cells

    return _cut(longest, costs.tile / groups, fits)


def _cut(lengths: list[int], cost: float, fits: Callable[[range], bool]) -> list[range]:
    """Cut descending lengths into runs, minimising padded rows + cost × runs; a run fits or has one member."""
    best = [0.0] * (len(lengths) + 1)
    opened = [0] * (len(lengths) + 1)
    for end in range(1, len(lengths) + 1):
        choices: list[Any] = []
        for start in range(end - 1, -1, -1):
            if choices and not fits(range(start, end)):
                break
            choices.append((best[start] + lengths[start] * (end - start) + cost, start))
        best[end], opened[end] = min(choices)
    runs = []
    end = len(lengths)
    while end:
        runs.append(range(opened[end], end))
        end = opened[end]
    return runs[::-1]
