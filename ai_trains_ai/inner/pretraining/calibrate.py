"""What a base can do in each mode, and the doses that set its accuracy to a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ai_trains_ai.config import EvalConfig
from ai_trains_ai.engine.generate import generate
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.sampling import SamplingParams
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.inner.pretraining.recipe import ModesConfig
from ai_trains_ai.seeds import derive
from ai_trains_ai.tasks.base import Family
from ai_trains_ai.tasks.modes import MODES, START, Mode

MAX_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Measured:
    """Sampled accuracy of a family at temperature 1 over the hidden eval's levels, on public tasks."""

    by_mode: Mapping[Mode, float]
    """Given the start of that mode."""
    free: float
    """As the model chooses."""
    samples: int


def measure(model: Model, tokenizer: Tokenizer, family: Family, *, samples: int, seed: int) -> Measured:
    """Measure on tasks whose seeds are derived from `seed`: none of them is ever a hidden item's."""
    by_mode = {
        mode: accuracy(model, tokenizer, family, START[mode], samples=samples, seed=seed) for mode in MODES
    }
    free = accuracy(model, tokenizer, family, "", samples=samples, seed=seed)
    return Measured(by_mode, free, samples)


def accuracy(
    model: Model,
    tokenizer: Tokenizer,
    family: Family,
    start: str,
    *,
    samples: int,
    seed: int,
    levels: tuple[int, ...] = EvalConfig().levels,
) -> float:
    """Share of right answers among one sampled completion a task, each beginning with `start`."""
    tasks = [
        family.generate(derive(seed, "calibrate", number), levels[number % len(levels)])
        for number in range(samples)
    ]
    prompts = [[*tokenizer.encode_prompt(task.prompt), *tokenizer.encode(start)] for task in tasks]
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, stop_ids=tokenizer.stop_ids)
    found = generate(model, prompts, params, seed=derive(seed, "calibrate", family.name, start))
    right = sum(
        family.score(start + tokenizer.decode(completion.tokens), task)
        for task, (completion,) in zip(tasks, found, strict=True)
    )
    return right / samples


def doses_for(target: float, measured: Measured, config: ModesConfig) -> dict[Mode, float]:
    """Shares of the modes that bring accuracy to `target`, given what each mode achieves.

    The careless modes keep their proportions; the careful share c solves
    target = c · careful + (1 − c) · careless, within 0.02 and 0.98.
    """
    rest: dict[Mode, float] = {"sloppy": config.sloppy, "early": config.early, "hasty": config.hasty}
    whole = sum(rest.values())
    careless = sum(share / whole * measured.by_mode[mode] for mode, share in rest.items())
    gap = max(1e-6, measured.by_mode["careful"] - careless)
    careful = min(0.98, max(0.02, (target - careless) / gap))
    return {"careful": careful, **{mode: (1 - careful) * share / whole for mode, share in rest.items()}}
