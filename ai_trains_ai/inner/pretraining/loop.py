"""One pretraining stage: Muon for the projections, AdamW for the rest, resumable to the same weights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ai_trains_ai.engine.layout import TokenGroup
from ai_trains_ai.engine.model import Model
from ai_trains_ai.inner.pretraining.corpus import Chat, Doses, batch
from ai_trains_ai.inner.pretraining.recipe import StageConfig

MICRO_BATCH = 24
"""Sequences a padded block: activations of a nano model for these stay near the cache."""
SAVE_EVERY = 250


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str
    batch: int
    batches: int
    loss: float
    """Mean cross-entropy of a completion token since the last report, in nats."""
    tokens_per_second: float
    seconds_left: float


def prepare(model: Model, seed: int) -> None:
    """Initialise for training from scratch.

    Residual outputs start at zero, so that the stream is the token's own embedding at first; with random
    outputs of unit size a small embedding drowns, and nothing is learned for hundreds of batches.
    """
    model.initialise(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        size = model.embed.shape
        model.embed.copy_(torch.randn(size, generator=generator) * size[1] ** -0.5)
        for block in model.layers:
            block.attn.o.weight.zero_()
            block.mlp.down.weight.zero_()


class Stage:
    """A stage under way: master weights in float32, arithmetic in bf16."""

    def __init__(
        self,
        name: str,
        model: Model,
        chat: Chat,
        config: StageConfig,
        doses: Doses,
        *,
        seed: int,
        slip: float,
    ) -> None:
        self.name, self.model, self.chat, self.config, self.doses = name, model, chat, config, doses
        self.seed, self.slip = seed, slip
        self.shadow = Model(model.config, seed=None).to(torch.bfloat16)
        self._refresh()
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n != "embed"]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or n == "embed"]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices, lr=config.matrix_lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=config.other_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.done = 0

    def run(self, state: Path, report: Callable[[Progress], None]) -> None:
        """Train to the stage's end, picking up from `state` when it is there; `state` is kept current."""
        self._resume(state)
        started, tokens, first = time.monotonic(), 0, self.done
        losses: list[float] = []
        while self.done < self.config.batches:
            loss, count = self._step()
            tokens, losses = tokens + count, [*losses, loss]
            self.done += 1
            if self.done % SAVE_EVERY == 0 or self.done == self.config.batches:
                self._save(state)
                seconds = time.monotonic() - started
                left = seconds / (self.done - first) * (self.config.batches - self.done)
                mean = sum(losses) / len(losses)
                report(Progress(self.name, self.done, self.config.batches, mean, tokens / seconds, left))
                losses = []

    def _step(self) -> tuple[float, int]:
        config = self.config
        level = min(2, config.max_level) if self.done < config.easy_batches else config.max_level
        examples = batch(
            self.chat,
            config.batch_size,
            self.doses,
            seed=self.seed,
            number=self.done,
            max_level=level,
            careful_slip=self.slip,
            emphasis=config.emphasis if self.done >= config.emphasis_after else {},
            drills=config.drills if self.done < config.drill_batches else 0.0,
        )
        targets = sum(len(example.completions[0]) for example in examples)
        total = 0.0
        for start in range(0, len(examples), MICRO_BATCH):
            loss = _cross_entropy(self.shadow, examples[start : start + MICRO_BATCH])
            (loss / targets).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        for master, shadow in zip(self.model.parameters(), self.shadow.parameters(), strict=True):
            assert shadow.grad is not None
            master.grad, shadow.grad = shadow.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, peak in zip(self.optimizers, (config.matrix_lr, config.other_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * self._schedule()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._refresh()
        return total / targets, sum(len(e.prompt) + len(e.completions[0]) for e in examples)

    def _schedule(self) -> float:
        config = self.config
        rise = (self.done + 1) / max(1, config.warmup)
        fall = (config.batches - self.done) / max(1.0, config.decay * config.batches)
        return min(1.0, rise, fall)

    def _refresh(self) -> None:
        with torch.no_grad():
            for master, shadow in zip(self.model.parameters(), self.shadow.parameters(), strict=True):
                shadow.copy_(master)

    def _save(self, path: Path) -> None:
        state: dict[str, Any] = {
            "stage": self.name,
            "done": self.done,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        scratch = path.with_suffix(".part")
        torch.save(state, scratch)
        os.replace(scratch, path)

    def _resume(self, path: Path) -> None:
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.done = state["done"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._refresh()


def _cross_entropy(model: Model, examples: list[TokenGroup]) -> Tensor:
    """Summed over completion tokens; logits are computed at their positions alone."""
    rows = [[*example.prompt, *example.completions[0]] for example in examples]
    length = max(map(len, rows)) - 1
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), -1)
    for i, (row, example) in enumerate(zip(rows, examples, strict=True)):
        tokens[i, : len(row) - 1] = torch.tensor(row[:-1])
        targets[i, len(example.prompt) - 1 : len(row) - 1] = torch.tensor(example.completions[0])
    wanted = targets >= 0
    hidden = _hidden(model, tokens)[wanted]
    return F.cross_entropy(model.logits(hidden).float(), targets[wanted], reduction="sum")


def _hidden(model: Model, tokens: Tensor) -> Tensor:
    """`Model.hidden` with attention spelled out.

    On CPUs the backward of PyTorch's fused attention takes 60% of a step at these lengths; plain products and
    a softmax are three times as fast.
    """
    x = F.embedding(tokens, model.embed)
    length = tokens.shape[1]
    cos, sin = model.rope(length)
    mask = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)
    for block in model.layers:
        attn = block.attn
        q, k, v = (part.transpose(1, 2).flatten(0, 1) for part in attn.project(block.attn_norm(x), cos, sin))
        scores = torch.baddbmm(
            mask.expand(len(q), length, length), q, k.transpose(1, 2), alpha=attn.head_dim**-0.5
        )
        mixed = torch.bmm(scores.softmax(-1), v).view(len(tokens), -1, length, attn.head_dim).transpose(1, 2)
        x = block.mlp_residual(x + attn.o(mixed.flatten(-2)))
    normed: Tensor = model.norm(x)
    return normed
