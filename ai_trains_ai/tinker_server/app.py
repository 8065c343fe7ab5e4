"""The HTTP face: routes of the Tinker API under /api/v1, as an ASGI application.

Answers: 200 with JSON (protobuf for results that the SDK reads as such), 400 for a request that cannot be
served, 401 for a wrong key, 404 for a thing that does not exist, 408 for a future that is still pending,
413 and 415 for bodies that cannot be read, 422 for a body of another shape. A request that was accepted and
fails later is a 200 whose future says `error` and `category`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ai_trains_ai.errors import InfrastructureError, UsageError
from ai_trains_ai.tinker_server import requests as body
from ai_trains_ai.tinker_server.bodies import Parsed, RefusedError, read, read_body, refused
from ai_trains_ai.tinker_server.futures import Failed, Json, Proto
from ai_trains_ai.tinker_server.listing import RunRoutes, page
from ai_trains_ai.tinker_server.messages import read_forward_backward
from ai_trains_ai.tinker_server.protobuf import Fields
from ai_trains_ai.tinker_server.service import Service
from ai_trains_ai.tinker_server.state import NotFoundError

POLL_SECONDS = 20.0
"""How long retrieve_future holds a request open; the SDK gives up after 45."""

Handler = Callable[[Request], Awaitable[Response]]


def create_app(service: Service, *, api_key: str | None = None) -> Starlette:
    """api_key: what the X-API-Key header must hold; None accepts any."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(service.run())
        yield
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    routes = [
        Route(f"/api/v1/{path}", _guarded(handler, api_key, path), methods=[method])
        for method, path, handler in [*_Api(service).table(), *RunRoutes(service).table()]
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def _guarded(handler: Handler, api_key: str | None, path: str) -> Handler:
    """Check the key, and turn refusals into answers. Anything else is our bug: 500, and a traceback."""

    async def guarded(request: Request) -> Response:
        given = request.headers.get("x-api-key", "")
        known = api_key is None or hmac.compare_digest(given.encode(), api_key.encode())
        if not known and path != "healthz":
            return refused(401, "the X-API-Key header does not hold this server's key")
        try:
            return await handler(request)
        except RefusedError as error:
            return refused(error.status, str(error))
        except NotFoundError as error:
            return refused(404, str(error))
        except UsageError as error:
            return refused(400, str(error))
        except InfrastructureError as error:
            return refused(503, str(error))
        except ClientDisconnect:
            return Response(status_code=499)

    return guarded


class _Api:
    """One method a route; see `table`."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def table(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "healthz", self.healthz),
            ("POST", "client/config", self.client_config),
            ("POST", "client/dynamic_config", self.client_dynamic_config),
            ("POST", "telemetry", self.telemetry),
            ("GET", "get_server_capabilities", self.capabilities),
            ("POST", "create_session", self.create_session),
            ("POST", "session_heartbeat", self.heartbeat),
            ("POST", "sessions/{session}/finish", self.finish_session),
            ("GET", "sessions/{session}", self.get_session),
            ("GET", "sessions", self.list_sessions),
            ("POST", "create_model", self._accept(body.CreateModel, self.service.create_model)),
            ("POST", "get_info", self.get_info),
            ("POST", "forward_backward", self.forward_backward),
            ("POST", "optim_step", self._accept(body.OptimStep, self.service.optim_step)),
            ("POST", "save_weights", self._accept(body.SaveWeights, self.service.save_weights)),
            (
                "POST",
                "save_weights_for_sampler",
                self._accept(body.SaveWeightsForSampler, self.service.save_weights_for_sampler),
            ),
            ("POST", "load_weights", self._accept(body.LoadWeights, self.service.load_weights)),
            (
                "POST",
                "create_sampling_session",
                self._accept(body.CreateSamplingSession, self.service.create_sampling_session),
            ),
            ("POST", "asample", self._accept(body.Sample, self.service.sample)),
            ("GET", "samplers/{sampler}", self.get_sampler),
            ("POST", "retrieve_future", self.retrieve_future),
            ("POST", "cancel_future", self.cancel_future),
        ]

    def _accept(self, shape: type[Parsed], act: Callable[[Parsed], Any]) -> Handler:
        async def handler(request: Request) -> Response:
            try:
                return JSONResponse(act(await read(request, shape)))
            except (RefusedError, UsageError):
                self._skip(await request.body())
                raise

        return handler

    def _skip(self, raw: bytes) -> None:
        """Give up the turn of a refused request, as far as the request says which it was."""
        with contextlib.suppress(ValueError):
            given = json.loads(raw)
            if isinstance(given, dict) and isinstance(given.get("seq_id"), int):
                self.service.skip(str(given.get("model_id")), given["seq_id"])

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def client_config(self, _: Request) -> Response:
        # Chunks one after another: there is one worker, and order costs nothing on a loopback.
        return JSONResponse({"parallel_fwdbwd_chunks": False, "use_pyqwest_transport": False})

    async def client_dynamic_config(self, _: Request) -> Response:
        return JSONResponse({})

    async def telemetry(self, request: Request) -> Response:
        """Accepted and thrown away: nothing about a client leaves this machine."""
        await request.body()
        return JSONResponse({"status": "accepted"})

    async def capabilities(self, _: Request) -> Response:
        names = self.service.bases.names
        found = [{"model_name": name, "trainable": True, "sampleable": True} for name in names]
        return JSONResponse({"supported_models": found})

    async def create_session(self, request: Request) -> Response:
        asked = await read(request, body.CreateSession)
        session = self.service.state.open_session(asked.display_name, asked.user_metadata)
        return JSONResponse({"type": "create_session", "session_id": session.id})

    async def heartbeat(self, request: Request) -> Response:
        self.service.state.session((await read(request, body.SessionBody)).session_id)
        return JSONResponse({"type": "session_heartbeat"})

    async def finish_session(self, request: Request) -> Response:
        session = self.service.state.session(request.path_params["session"])
        self.service.end_session(session.id)
        return JSONResponse({})

    async def get_session(self, request: Request) -> Response:
        state, wanted = self.service.state, request.path_params["session"]
        if wanted not in state.sessions:
            raise NotFoundError(f"session {wanted} does not exist or has ended")
        session = state.sessions[wanted]
        return JSONResponse(
            {
                "training_run_ids": [m.id for m in state.models.values() if m.session_id == session.id],
                "sampler_ids": [s.id for s in state.samplers.values() if s.session_id == session.id],
                "user_metadata": session.user_metadata,
                "display_name": session.display_name,
            }
        )

    async def list_sessions(self, request: Request) -> Response:
        found, _ = page(list(self.service.state.sessions), request.query_params)
        return JSONResponse({"sessions": found})

    async def get_info(self, request: Request) -> Response:
        entry = self.service.state.model((await read(request, body.ModelBody)).model_id)
        folder, config = await asyncio.to_thread(self.service.bases.about, entry.base_model)
        return JSONResponse(
            {
                "type": "get_info",
                "model_id": entry.id,
                "model_name": entry.base_model,
                "model_data": {
                    "arch": config.arch,
                    "model_name": entry.base_model,
                    "tokenizer_id": str(folder),
                },
                "is_lora": True,
                "lora_rank": entry.adapter.rank,
            }
        )

    async def forward_backward(self, request: Request) -> Response:
        raw = await read_body(request)
        try:
            parsed = read_forward_backward(raw)
        except ValueError as error:
            with contextlib.suppress(ValueError):
                fields = Fields(raw)
                self.service.skip(fields.text(1), fields.integer(2))
            raise RefusedError(400, f"the body is no forward_backward request: {error}") from error
        return JSONResponse(self.service.forward_backward(parsed))

    async def get_sampler(self, request: Request) -> Response:
        sampler = self.service.state.sampler(request.path_params["sampler"])
        return JSONResponse(
            {"sampler_id": sampler.id, "base_model": sampler.base_model, "model_path": sampler.model_path}
        )

    async def retrieve_future(self, request: Request) -> Response:
        request_id = (await read(request, body.RetrieveFuture)).request_id
        future = self.service.futures.get(request_id)
        if future is None:
            raise NotFoundError(
                f"no request {request_id}: it is unknown, or its result was fetched and freed"
            )
        outcome = await self.service.futures.wait(future, POLL_SECONDS)
        if outcome is None:
            waiting = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(waiting, status_code=408)
        if isinstance(outcome, Proto):
            return Response(outcome.data, media_type="application/x-protobuf")
        if isinstance(outcome, Failed):
            return JSONResponse({"error": outcome.error, "category": outcome.category})
        assert isinstance(outcome, Json)
        return JSONResponse(outcome.data)

    async def cancel_future(self, request: Request) -> Response:
        self.service.futures.cancel((await read(request, body.CancelFuture)).request_id)
        return JSONResponse({})
