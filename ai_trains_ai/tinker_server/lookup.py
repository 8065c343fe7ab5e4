"""From the names in a request to checkpoints and weights, checked against each other."""

from __future__ import annotations

from ai_trains_ai.errors import UsageError
from ai_trains_ai.tinker_server.checkpoints import Checkpoint, CheckpointStore
from ai_trains_ai.tinker_server.models import BaseModels, SamplerWeights
from ai_trains_ai.tinker_server.requests import LoadWeights


def loadable(bases: BaseModels, checkpoints: CheckpointStore, request: LoadWeights) -> Checkpoint:
    """Raises UsageError when the checkpoint is not there, or not what the request says it is."""
    found = checkpoints.find(request.path)
    if request.base_model is not None and bases.name(request.base_model) != found.base_model:
        raise UsageError(f"{found.path} is of {found.base_model}, not of {request.base_model}")
    if request.optimizer and found.kind != "training":
        raise UsageError(f"{found.path} holds no optimizer state: it was saved for a sampler")
    return found


def sampler_weights(
    bases: BaseModels, checkpoints: CheckpointStore, base_model: str | None, model_path: str | None
) -> SamplerWeights:
    """Of a checkpoint, or of a base. Raises UsageError when neither can be had."""
    if model_path is not None:
        found = checkpoints.find(model_path)
        if base_model is not None and bases.name(base_model) != found.base_model:
            raise UsageError(f"{model_path} is of {found.base_model}, not of {base_model}")
        tensors, _ = checkpoints.load(found)
        return SamplerWeights(found.version, found.base_model, (found.adapter, tensors))
    if base_model is None:
        raise UsageError("a sampler needs a base_model or a model_path")
    name = bases.name(base_model)
    return SamplerWeights(f"base {name}", name, None)
