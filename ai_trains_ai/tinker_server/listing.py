"""Checkpoints and training runs as the API lists them, and the routes that do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ai_trains_ai.errors import UsageError
from ai_trains_ai.tinker_server import requests as body
from ai_trains_ai.tinker_server.bodies import read
from ai_trains_ai.tinker_server.checkpoints import Checkpoint
from ai_trains_ai.tinker_server.service import Service
from ai_trains_ai.tinker_server.state import NotFoundError

Item = TypeVar("Item")


def checkpoint_dict(found: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": found.checkpoint_id,
        "checkpoint_type": found.kind,
        "time": _iso(found.created),
        "tinker_path": found.path,
        "size_bytes": found.size_bytes,
        "public": False,
        "user_metadata": found.user_metadata,
        "expires_at": None if found.expires is None else _iso(found.expires),
    }


def training_run(service: Service, run: str) -> dict[str, Any]:
    """A run that `Service.known_runs` names: a live model, or one that left checkpoints."""
    saved = service.checkpoints.of_run(run)
    live = service.state.models.get(run)
    if live is not None:
        base, adapter, last, metadata = live.base_model, live.adapter, live.last_request, live.user_metadata
    else:
        base, adapter, last, metadata = saved[-1].base_model, saved[-1].adapter, saved[-1].created, None
    newest = {found.kind: checkpoint_dict(found) for found in saved}
    return {
        "training_run_id": run,
        "base_model": base,
        "model_owner": "local",
        "is_lora": True,
        "lora_rank": adapter.rank,
        "last_request_time": _iso(last),
        "last_checkpoint": newest.get("training"),
        "last_sampler_checkpoint": newest.get("sampler"),
        "user_metadata": metadata,
    }


def page(items: Sequence[Item], query: Mapping[str, str]) -> tuple[list[Item], dict[str, int]]:
    """The part of `items` that limit and offset ask for, and the cursor that says so."""
    try:
        limit, offset = int(query.get("limit", "20")), int(query.get("offset", "0"))
    except ValueError as error:
        raise UsageError(f"limit and offset are whole numbers: {error}") from error
    if limit < 0 or offset < 0:
        raise UsageError("limit and offset are not negative")
    return list(items[offset : offset + limit]), {
        "offset": offset,
        "limit": limit,
        "total_count": len(items),
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class RunRoutes:
    """What is kept on disk, through the API."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def table(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        run, one = "training_runs/{run}", "training_runs/{run}/checkpoints/{segment}/{name}"
        return [
            ("POST", "weights_info", self.weights_info),
            ("GET", "training_runs", self.list_runs),
            ("GET", run, self.get_run),
            ("GET", f"{run}/checkpoints", self.run_checkpoints),
            ("DELETE", one, self.delete_checkpoint),
            ("PUT", f"{one}/ttl", self.set_ttl),
            ("GET", "checkpoints", self.all_checkpoints),
        ]

    async def weights_info(self, request: Request) -> Response:
        asked = await read(request, body.WeightsInfo)
        found = self.service.checkpoints.find(asked.tinker_path)
        return JSONResponse(
            {
                "base_model": found.base_model,
                "is_lora": True,
                "lora_rank": found.adapter.rank,
                "train_attn": found.adapter.train_attn,
                "train_mlp": found.adapter.train_mlp,
                "train_unembed": False,
            }
        )

    async def list_runs(self, request: Request) -> Response:
        runs = [training_run(self.service, run) for run in self.service.known_runs()]
        found, cursor = page(runs, request.query_params)
        return JSONResponse({"training_runs": found, "cursor": cursor})

    async def get_run(self, request: Request) -> Response:
        run = request.path_params["run"]
        if run not in self.service.known_runs():
            raise NotFoundError(f"training run {run} does not exist")
        return JSONResponse(training_run(self.service, run))

    async def run_checkpoints(self, request: Request) -> Response:
        run = request.path_params["run"]
        if run not in self.service.known_runs():
            raise NotFoundError(f"training run {run} does not exist")
        found = [checkpoint_dict(checkpoint) for checkpoint in self.service.checkpoints.of_run(run)]
        return JSONResponse({"checkpoints": found})

    async def delete_checkpoint(self, request: Request) -> Response:
        self.service.checkpoints.delete(_checkpoint_path(request))
        return Response(status_code=204)

    async def set_ttl(self, request: Request) -> Response:
        self.service.checkpoints.set_ttl(
            _checkpoint_path(request), (await read(request, body.Ttl)).ttl_seconds
        )
        return Response(status_code=204)

    async def all_checkpoints(self, request: Request) -> Response:
        found, cursor = page(self.service.checkpoints.all(), request.query_params)
        return JSONResponse({"checkpoints": [checkpoint_dict(c) for c in found], "cursor": cursor})


def _checkpoint_path(request: Request) -> str:
    params = request.path_params
    return f"tinker://{params['run']}/{params['segment']}/{params['name']}"
