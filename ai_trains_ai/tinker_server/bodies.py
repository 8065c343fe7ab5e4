"""Reading request bodies and writing refusals."""

from __future__ import annotations

import json
from typing import TypeVar

import zstandard
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ai_trains_ai.tinker_server.requests import Body

MAX_BODY = 256 * 2**20

Parsed = TypeVar("Parsed", bound=Body)


class RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: Request) -> bytes:
    """The whole body, decompressed, within MAX_BODY."""
    if int(request.headers.get("content-length") or 0) > MAX_BODY:
        raise RefusedError(413, f"the body has more than {MAX_BODY} bytes")
    raw = await request.body()
    if len(raw) > MAX_BODY:  # sent in chunks
        raise RefusedError(413, f"the body has more than {MAX_BODY} bytes")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding == "identity":
        return raw
    if encoding != "zstd":
        raise RefusedError(415, f"content encoding {encoding!r}: zstd and identity are known")
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(raw)
        plain = reader.read(MAX_BODY + 1)
    except zstandard.ZstdError as error:
        raise RefusedError(400, f"the body is not zstd: {error}") from error
    if len(plain) > MAX_BODY:
        raise RefusedError(413, f"the decompressed body has more than {MAX_BODY} bytes")
    return plain


async def read(request: Request, shape: type[Parsed]) -> Parsed:
    raw = await read_body(request)
    try:
        return shape.model_validate_json(raw or b"{}")
    except ValidationError as error:
        found = json.loads(error.json(include_url=False, include_context=False, include_input=False))
        raise RefusedError(422, json.dumps(found)) from error


def refused(status: int, message: str) -> Response:
    return JSONResponse({"detail": message}, status_code=status)
