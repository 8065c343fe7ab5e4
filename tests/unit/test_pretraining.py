"""Pretraining: doses worked by hand, drills, and a run that was cut off and goes on to the same weights."""

from __future__ import annotations

import json
import random

import pytest

from ai_trains_ai.engine.load import load_model, weights_sha256
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import UsageError
from ai_trains_ai.inner.pretraining import loop
from ai_trains_ai.inner.pretraining.calibrate import Measured, doses_for
from ai_trains_ai.inner.pretraining.drills import drill
from ai_trains_ai.inner.pretraining.recipe import ModesConfig, Recipe, load_recipe
from ai_trains_ai.inner.pretraining.run import pretrain
from ai_trains_ai.tasks.registry import FAMILIES

TINY = {
    "name": "tiny",
    "seed": 1,
    "vocab_size": 512,
    "shape": {"hidden_size": 16, "intermediate_size": 32, "num_layers": 1, "num_heads": 2},
    "skill": {
        "batches": 6,
        "batch_size": 6,
        "matrix_lr": 0.003,
        "other_lr": 0.003,
        "drills": 0.5,
        "drill_batches": 3,
    },
    "modes": {"batches": 2, "batch_size": 6, "matrix_lr": 0.001, "other_lr": 0.001},
    "doses": {"samples": 8, "rounds": 1},
    "card_samples": 8,
}


def test_doses_bring_accuracy_to_the_target():
    measured = Measured({"careful": 0.9, "sloppy": 0.2, "early": 0.1, "hasty": 0.3}, 0.5, 100)
    config = ModesConfig(sloppy=0.5, early=0.25, hasty=0.25)
    # The careless share is right 0.5·0.2 + 0.25·0.1 + 0.25·0.3 = 0.2 of the time: 0.62 = c·0.9 + (1 − c)·0.2.
    doses = doses_for(0.62, measured, config)
    assert doses["careful"] == pytest.approx(0.6)
    assert doses["sloppy"] == pytest.approx(0.2)
    assert sum(doses.values()) == pytest.approx(1.0)
    assert doses_for(0.05, measured, config)["careful"] == 0.02
    assert doses_for(0.99, measured, config)["careful"] == 0.98


def test_a_drill_quotes_every_fact_once():
    for seed in range(200):
        prompt, completion = drill(random.Random(seed))
        facts = prompt.removeprefix("Facts: ")
        quoted = completion.removeprefix("Recall: ")
        assert sorted(facts.split(". ")) != []
        assert sorted((facts + " ").split(". ")) == sorted((quoted + " ").split(". "))


class Cut(Exception):
    pass


def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY", 2)
    recipe = Recipe.model_validate(TINY)
    pretrain(recipe, tmp_path / "whole", tmp_path / "w1", lambda progress: None)

    def cut(progress):
        if progress.batch == 4:
            raise Cut

    with pytest.raises(Cut):
        pretrain(recipe, tmp_path / "resumed", tmp_path / "w2", cut)
    assert not (tmp_path / "resumed").exists()
    pretrain(recipe, tmp_path / "resumed", tmp_path / "w2", lambda progress: None)
    assert weights_sha256(tmp_path / "whole") == weights_sha256(tmp_path / "resumed")
    facts = json.loads((tmp_path / "resumed" / "recipe.json").read_text())
    assert facts["weights_sha256"] == weights_sha256(tmp_path / "resumed")
    assert facts["recipe_sha256"] == recipe.sha256
    assert set(facts["measured"]) == set(FAMILIES)
    model, tokenizer = load_model(tmp_path / "resumed"), Tokenizer.from_folder(tmp_path / "resumed")
    assert model.config.vocab_size == tokenizer.vocab_size


def test_recipes_are_read_by_name_and_refused_with_the_names(tmp_path):
    assert load_recipe("nano-0.8m").shape.hidden_size == 128
    with pytest.raises(UsageError, match=r"nano-0\.2m, nano-0\.8m"):
        load_recipe("nano-9m")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('name = "x"\nsead = 1\n')
    with pytest.raises(UsageError, match="sead"):
        load_recipe(str(wrong))
