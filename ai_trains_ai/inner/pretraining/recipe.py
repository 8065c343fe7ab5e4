"""A pretraining recipe: everything that decides a nano base's weights, as one TOML file in the package."""

from __future__ import annotations

import hashlib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from ai_trains_ai.config import Config
from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.errors import UsageError


class ShapeConfig(Config):
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_positions: int = 512
    rope_theta: float = 100.0
    """Small: prompts are short, and neighbours have to be told apart."""


class StageConfig(Config):
    """One stage: `batches` optimizer steps on `batch_size` examples each.

    The learning rate rises over `warmup` batches, stays, and falls linearly over the last `decay` share.
    """

    batches: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)] = 48
    matrix_lr: float
    """Muon's, for the projections; scaled to the root mean square of an AdamW update."""
    other_lr: float
    """AdamW's, for the embedding and the norms."""
    warmup: int = 50
    decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.3
    easy_batches: int = 0
    """Batches at the start that hold levels 1 and 2 alone."""
    drills: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    drill_batches: int = 0
    """Share of recall drills (see `drills`) among the examples of that many first batches."""
    emphasis: dict[str, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    emphasis_after: int = 0
    """Weights of families (1 where none is given) from that batch on; before it all count the same."""
    max_level: Annotated[int, Field(ge=1, le=8)] = 5


class ModesConfig(Config):
    """How the careless modes are dosed (see `tasks.modes`)."""

    careful_slip: float = 0.005
    """Chance of a slip at each step of a careful solution."""
    sloppy: float = 0.35
    early: float = 0.25
    hasty: float = 0.40
    """How the share that is not careful divides."""
    rounds: int = 2
    """Times the doses are set from measured accuracy by mode, each followed by the modes stage once."""
    samples: int = 512
    """Completions a family and mode that each measurement rests on."""


class Recipe(Config):
    name: str
    seed: int
    vocab_size: int = 512
    shape: ShapeConfig
    skill: StageConfig
    modes: StageConfig
    doses: ModesConfig = ModesConfig()
    card_samples: int = 1024
    """Completions a family and mode behind the model card's figures."""
    targets: dict[str, float] = Field(default_factory=dict)
    """Family -> accuracy to set; the published baseline where none is given."""

    @property
    def sha256(self) -> str:
        """Hash of the resolved recipe; the model card carries it."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def model_config_for(self, vocab_size: int, *, eos: int, pad: int) -> ModelConfig:
        """The Llama configuration of this shape."""
        return ModelConfig(
            arch="llama",
            vocab_size=vocab_size,
            hidden_size=self.shape.hidden_size,
            intermediate_size=self.shape.intermediate_size,
            num_layers=self.shape.num_layers,
            num_heads=self.shape.num_heads,
            num_kv_heads=self.shape.num_heads,
            head_dim=self.shape.hidden_size // self.shape.num_heads,
            rms_eps=1e-6,
            rope_theta=self.shape.rope_theta,
            tie_embeddings=True,
            max_positions=self.shape.max_positions,
            eos_token_id=eos,
            pad_token_id=pad,
        )


def load_recipe(name_or_path: str) -> Recipe:
    """Read a recipe that ships with the package by name, or any TOML file by path. Raises UsageError."""
    shipped = resources.files("ai_trains_ai") / "data" / "recipes"
    path = shipped / f"{name_or_path}.toml"
    if not path.is_file():
        given = Path(name_or_path)
        if not given.is_file():
            known = sorted(entry.name.removesuffix(".toml") for entry in shipped.iterdir())
            raise UsageError(f"no recipe {name_or_path!r}: give a TOML file, or one of {', '.join(known)}")
        path = given
    try:
        return Recipe.model_validate(tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise UsageError(f"{path}: {error}") from error
