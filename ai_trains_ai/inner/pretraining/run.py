"""`ata pretrain`: recipe -> tokenizer -> skill -> careless modes in measured doses -> model folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from ai_trains_ai.engine.load import load_model, save_model, weights_sha256
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.inner.nano_tokenizer import build_tokenizer, save_tokenizer
from ai_trains_ai.inner.pretraining.calibrate import Measured, doses_for, measure
from ai_trains_ai.inner.pretraining.card import write_card
from ai_trains_ai.inner.pretraining.corpus import CLEAN, Chat, Doses, fingerprint
from ai_trains_ai.inner.pretraining.loop import Progress, Stage, prepare
from ai_trains_ai.inner.pretraining.recipe import Recipe
from ai_trains_ai.seeds import derive
from ai_trains_ai.tasks.modes import Mode
from ai_trains_ai.tasks.registry import FAMILIES

Report = Callable[[Progress], None]


def pretrain(recipe: Recipe, out: Path, work: Path, report: Report) -> dict[str, Measured]:
    """Build the base into `out`; `work` keeps each stage's state, so an interrupted run goes on from there.

    Same recipe, same machine type, same weights. Returns what each family measures at the end.
    """
    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    raw = build_tokenizer(recipe.vocab_size, seed=recipe.seed)
    save_tokenizer(raw, work)
    chat, tokenizer = Chat(raw), Tokenizer.from_folder(work)
    ids = {"eos": chat.id("<|end|>"), "pad": chat.id("<|pad|>")}
    model = Model(recipe.model_config_for(raw.get_vocab_size(), **ids), seed=None)
    prepare(model, derive(recipe.seed, "weights", recipe.name))
    _stage(recipe, "skill", model, chat, CLEAN, work, report)
    for number in range(1, recipe.doses.rounds + 1):
        doses = _doses(recipe, number, model, tokenizer, work)
        _stage(recipe, f"modes-{number}", model, chat, doses, work, report)
    return _publish(recipe, model, tokenizer, work, out)


def _stage(
    recipe: Recipe, name: str, model: Model, chat: Chat, doses: Doses, work: Path, report: Report
) -> None:
    config = recipe.skill if name == "skill" else recipe.modes
    slip = 0.0 if name == "skill" else recipe.doses.careful_slip
    seed = derive(recipe.seed, recipe.name, name)
    Stage(name, model, chat, config, doses, seed=seed, slip=slip).run(work / f"{name}.pt", report)


def _doses(recipe: Recipe, number: int, model: Model, tokenizer: Tokenizer, work: Path) -> Doses:
    """Doses of a round, measured once and kept beside the stage's state.

    Round 1 sees a base that knows only careful work, so it assumes what the careless modes are written to
    achieve; later rounds use what they do achieve.
    """
    path = work / f"doses-{number}.json"
    if not path.exists():
        found = {}
        for name, family in FAMILIES.items():
            seed = derive(recipe.seed, "doses", number)
            got = measure(model, tokenizer, family, samples=recipe.doses.samples, seed=seed)
            if number == 1:
                got = Measured({"careful": got.by_mode["careful"], **_WRITTEN}, got.free, got.samples)
            target = recipe.targets.get(name, family.published_baseline)
            found[name] = doses_for(target, got, recipe.doses)
        path.write_text(json.dumps(found, indent=1))
    doses: Doses = json.loads(path.read_text())
    return doses


_WRITTEN: dict[Mode, float] = {"sloppy": 0.25, "early": 0.12, "hasty": 0.2}


def _publish(
    recipe: Recipe, model: Model, tokenizer: Tokenizer, work: Path, out: Path
) -> dict[str, Measured]:
    """Write the folder, weights in bf16, and measure what was written."""
    scratch = out.with_name(out.name + ".part")
    scratch.mkdir(parents=True, exist_ok=True)
    save_model(model, scratch, dtype=torch.bfloat16)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (scratch / name).write_bytes((work / name).read_bytes())
    written = load_model(scratch)
    seed = derive(recipe.seed, "card")
    measured = {
        name: measure(written, tokenizer, family, samples=recipe.card_samples, seed=seed)
        for name, family in FAMILIES.items()
    }
    facts = {
        "name": recipe.name,
        "recipe": recipe.model_dump(),
        "recipe_sha256": recipe.sha256,
        "corpus_sha256": fingerprint(),
        "weights_sha256": weights_sha256(scratch),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "measured": {name: asdict(value) for name, value in measured.items()},
    }
    (scratch / "recipe.json").write_text(json.dumps(facts, indent=1) + "\n")
    write_card(scratch / "README.md", facts)
    out.mkdir(parents=True, exist_ok=True)
    for entry in sorted(scratch.iterdir()):
        os.replace(entry, out / entry.name)
    scratch.rmdir()
    return measured
