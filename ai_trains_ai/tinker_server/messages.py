"""Tinker's protobuf messages (`tinker_public.proto` of SDK 0.38) from and to plain values.

Numbers in the code are the messages' field numbers. Tensors travel as raw little-endian bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ai_trains_ai.tinker_server.protobuf import Fields, Message

Array = npt.NDArray[np.float32] | npt.NDArray[np.int64]
_FLOAT32, _INT64 = 1, 2
_WIDTHS: dict[int, type[np.float32] | type[np.int64] | type[np.int32]] = {
    1: np.float32,
    2: np.int64,
    3: np.int32,
}
_STOP = {"stop": 0, "length": 1}


@dataclass(frozen=True, slots=True)
class Datum:
    """One training sequence: tokens_T, and the loss's inputs by name, each (T) or (T, K)."""

    tokens: list[int]
    inputs: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """A `forward_backward` body. config: the loss's numbers by name."""

    model_id: str
    seq_id: int
    data: tuple[Datum, ...]
    loss_fn: str
    config: Mapping[str, float]
    forward_only: bool


@dataclass(frozen=True, slots=True)
class SampledSequence:
    """One sampled sequence of a sample result."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stop_reason: str


@dataclass(frozen=True, slots=True)
class TopK:
    """The likeliest tokens at each prompt position: ids_T_K, logprobs_T_K (NaN where not scored)."""

    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]


def read_forward_backward(body: bytes) -> ForwardBackward:
    """Raises ValueError, with the field's name, for anything this server cannot read."""
    fields = Fields(body)
    config = {Fields(entry).text(1): Fields(entry).double(2) for entry in fields.messages(5)}
    for raw in fields.messages(7):
        entry = Fields(raw)
        value = Fields(entry.binary(2))
        if value.has(2):
            raise ValueError(
                f"loss_fn_config {entry.text(1)!r} is text: this server's losses take numbers only"
            )
        config[entry.text(1)] = value.double(1)
    return ForwardBackward(
        model_id=fields.text(1),
        seq_id=fields.integer(2),
        data=tuple(_read_datum(datum) for datum in fields.messages(3)),
        loss_fn=fields.text(4),
        config=config,
        forward_only=bool(fields.integer(6)),
    )


def _read_datum(data: memoryview) -> Datum:
    fields = Fields(data)
    tokens: list[int] = []
    for raw in fields.messages(1):
        chunk = Fields(raw)
        if not chunk.has(1):
            raise ValueError(
                "model_input holds an image or audio chunk: this server's models read text tokens"
            )
        tokens += np.frombuffer(Fields(chunk.binary(1)).binary(1), dtype=np.int32).tolist()
    inputs = {}
    for raw in fields.messages(2):
        entry = Fields(raw)
        inputs[entry.text(1)] = _read_tensor(entry.text(1), Fields(entry.binary(2)))
    return Datum(tokens, inputs)


def _read_tensor(name: str, tensor: Fields) -> Array:
    if tensor.integer(3) not in _WIDTHS:
        raise ValueError(
            f"loss_fn_inputs[{name!r}] has dtype {tensor.integer(3)}: float32 and int64 are known"
        )
    width = _WIDTHS[tensor.integer(3)]
    shape = tensor.integers(4)
    if tensor.has(2):
        values = _densify(name, Fields(tensor.binary(2)), shape, width)
    else:
        values = np.frombuffer(tensor.binary(1), dtype=width)
        values = values.reshape(shape) if shape else values
    return values.astype(np.float32) if width is np.float32 else values.astype(np.int64)


def _densify(
    name: str, csr: Fields, shape: Sequence[int], width: type[np.generic]
) -> npt.NDArray[np.generic]:
    """Sparse rows to a dense (rows, columns) array, absent cells 0: with a weight of 0, no token matters."""
    if len(shape) != 2:
        raise ValueError(f"loss_fn_inputs[{name!r}] is sparse and needs a 2-D shape, not {list(shape)}")
    values = np.frombuffer(csr.binary(1), dtype=width)
    ends = np.frombuffer(csr.binary(2), dtype=np.int64)
    columns = np.frombuffer(csr.binary(3), dtype=np.int64)
    if len(ends) != shape[0] + 1 or len(columns) != len(values):
        raise ValueError(f"loss_fn_inputs[{name!r}]: sparse indices do not fit the shape {list(shape)}")
    dense = np.zeros(tuple(shape), dtype=width)
    dense[np.repeat(np.arange(shape[0]), np.diff(ends)), columns] = values
    return dense


def forward_backward_output(
    outputs: Sequence[Mapping[str, npt.NDArray[np.float32]]], metrics: Mapping[str, float]
) -> bytes:
    """outputs: for each datum, arrays by name, the same names everywhere, each (T) or (T, K).

    One record a datum, since K may differ between them.
    """
    message = Message().text(1, "ArrayRecord")
    for output in outputs:
        record = Message().text(1, "ArrayRecord").integer(3, 1)
        for name, array in output.items():
            tensor = Message().binary(1, array.astype("<f4").tobytes())
            tensor.binary(2, np.array([0, 4 * array.size], dtype="<i8").tobytes()).integer(3, _FLOAT32)
            for size in array.shape[1:]:
                tensor.integer(4, size)
            record.message(2, Message().text(1, name).message(2, tensor))
        message.message(2, record)
    for name, value in metrics.items():
        message.message(3, Message().text(1, name).double(2, value))
    return bytes(message)


def sample_output(
    sequences: Sequence[SampledSequence],
    prompt_logprobs: npt.NDArray[np.float32] | None = None,
    topk: TopK | None = None,
) -> bytes:
    """prompt_logprobs_T: NaN where a token has none (the first, and those not asked for)."""
    message = Message()
    for sequence in sequences:
        message.message(
            1,
            Message()
            .integer(1, _STOP[sequence.stop_reason])
            .binary(2, np.asarray(sequence.tokens, dtype="<i4").tobytes())
            .binary(3, np.asarray(sequence.logprobs, dtype="<f4").tobytes()),
        )
    if prompt_logprobs is not None:
        message.binary(2, prompt_logprobs.astype("<f4").tobytes())
    if topk is not None:
        rows, k = topk.ids.shape
        table = Message().binary(1, topk.ids.astype("<i4").tobytes())
        table.binary(2, topk.logprobs.astype("<f4").tobytes()).integer(3, k).integer(4, rows)
        message.message(3, table)
    return bytes(message)
