"""The server's protocol, spoken byte by byte to the ASGI application; the SDK's own cycle is in tests/e2e."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import zstandard

from ai_trains_ai.errors import UsageError
from ai_trains_ai.testing.models import write_random_model
from ai_trains_ai.tinker_server.app import create_app
from ai_trains_ai.tinker_server.models import BaseModels
from ai_trains_ai.tinker_server.protobuf import Fields, Message, decode
from ai_trains_ai.tinker_server.service import Service

TOKENS = [1, 20, 21, 22, 2, 30, 31, 32, 3]


class Client:
    """A synchronous client of an application that runs inside one event loop."""

    def __init__(self, folder: Path, api_key: str | None = None) -> None:
        self.service = Service(BaseModels({"tiny": folder / "base"}), folder / "checkpoints")
        self.loop = asyncio.new_event_loop()
        transport = httpx.ASGITransport(create_app(self.service, api_key=api_key))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://server/api/v1/")
        self.running = self.loop.create_task(self.service.run())
        self.seq = 0

    def send(self, path: str, data: Any = None, *, method: str = "POST", **options: Any) -> httpx.Response:
        if data is not None:
            options["json"] = data
        return self.loop.run_until_complete(self.http.request(method, path, **options))

    def close(self) -> None:
        self.running.cancel()
        self.loop.run_until_complete(asyncio.gather(self.running, return_exceptions=True))
        self.loop.run_until_complete(self.http.aclose())
        self.loop.close()

    def result(self, promise: httpx.Response) -> httpx.Response:
        assert promise.status_code == 200, promise.text
        return self.send("retrieve_future", {"request_id": promise.json()["request_id"]})

    def model(self) -> tuple[str, str]:
        """A session and a model of its own."""
        session = self.send(
            "create_session", {"tags": [], "user_metadata": None, "sdk_version": "0.38"}
        ).json()
        asked = {"session_id": session["session_id"], "model_seq_id": 0, "base_model": "tiny"}
        made = self.result(self.send("create_model", {**asked, "lora_config": {"rank": 2, "seed": 7}}))
        return session["session_id"], made.json()["model_id"]

    def train(
        self, model: str, seq: int, *, loss: str = "cross_entropy", zstd: bool = False
    ) -> httpx.Response:
        body, headers = forward_backward(model, seq, loss), {"content-type": "application/x-protobuf"}
        if zstd:
            body, headers["content-encoding"] = zstandard.ZstdCompressor().compress(body), "zstd"
        return self.send("forward_backward", content=body, headers=headers)

    def step(self, model: str, seq: int) -> httpx.Response:
        return self.send(
            "optim_step", {"model_id": model, "seq_id": seq, "adam_params": {"learning_rate": 0.02}}
        )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    write_random_model(tmp_path / "base")
    found = Client(tmp_path)
    yield found
    found.close()


def forward_backward(model: str, seq: int, loss: str) -> bytes:
    """What the SDK sends for one datum: all of TOKENS but the last, predicting all but the first."""
    chunk = Message().message(1, Message().binary(1, np.array(TOKENS[:-1], "<i4").tobytes()))
    datum = Message().message(1, chunk)
    inputs: Mapping[str, tuple[int, Any]] = {
        "target_tokens": (2, np.array(TOKENS[1:], "<i8")),
        "weights": (1, np.ones(len(TOKENS) - 1, "<f4")),
    }
    for name, (dtype, array) in inputs.items():
        tensor = Message().binary(1, array.tobytes()).integer(3, dtype).integer(4, len(array))
        datum.message(2, Message().text(1, name).message(2, tensor))
    return bytes(Message().text(1, model).integer(2, seq).message(3, datum).text(4, loss))


def loss_of(response: httpx.Response) -> float:
    assert response.headers["content-type"] == "application/x-protobuf", response.text
    metric = Fields(Fields(response.content).messages(3)[0])
    assert metric.text(1) == "loss:sum"
    return metric.double(2)


def asample(client: Client, session: str, **changes: Any) -> httpx.Response:
    asked = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler = client.send("create_sampling_session", asked).json()["sampling_session_id"]
    client.seq += 1
    body = {
        "sampling_session_id": sampler,
        "seq_id": client.seq,
        "num_samples": 2,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": TOKENS[:5]}]},
        "sampling_params": {"max_tokens": 4, "seed": 3},
    }
    return client.send("asample", {**body, **changes})


def test_wire_format() -> None:
    message = Message().integer(1, -1).integer(2, 300).text(3, "ä").double(4, 1.5)
    data = bytes(message)
    assert data[:11] == b"\x08" + b"\xff" * 9 + b"\x01"
    assert data[11:14] == b"\x10\xac\x02"
    fields = Fields(data)
    assert (fields.integer(1), fields.integer(2), fields.text(3), fields.double(4)) == (-1, 300, "ä", 1.5)
    assert Fields(b"\x22\x03\x01\xac\x02").integers(4) == [1, 300]  # packed
    assert (fields.integer(9), fields.text(9), fields.double(9)) == (0, "", 0.0)


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\x0b", b"\xff" * 11])
def test_broken_messages_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"varint|ends after|wire type"):
        decode(data)


def test_a_model_learns_through_the_protocol(client: Client) -> None:
    _, model = client.model()
    losses = []
    for turn in range(3):
        losses.append(loss_of(client.result(client.train(model, 2 * turn + 1, zstd=turn == 1))))
        norm = client.result(client.step(model, 2 * turn + 2)).json()["metrics"]["unclipped_grad_l2:mean"]
        assert norm > 0.0
    assert losses[0] > losses[1] > losses[2]


def test_requests_run_in_their_order_and_once(client: Client) -> None:
    _, model = client.model()
    step = client.step(model, 2)  # arrives before what it depends on
    first = client.train(model, 1)
    assert "metrics" in client.result(step).json()
    assert client.train(model, 1).json() == first.json()  # sent again: the same promise
    assert client.result(client.step(model, 3)).json()["category"] == "user"  # no gradient came in twice
    assert client.service.scheduler.batches == 4  # creation, forward_backward, two steps


def test_a_saved_state_is_restored_with_its_optimizer(client: Client) -> None:
    session, model = client.model()
    client.train(model, 1)
    client.step(model, 2)
    path = client.result(client.send("save_weights", {"model_id": model, "seq_id": 3, "path": "a"})).json()[
        "path"
    ]
    asked = {"session_id": session, "model_seq_id": 1, "path": path, "optimizer": True}
    other = client.result(client.send("load_weights", asked)).json()["model_id"]
    after = []
    for name, seq in ((model, 4), (other, 1)):
        client.train(name, seq)
        client.step(name, seq + 1)
        after.append(loss_of(client.result(client.train(name, seq + 2))))
    assert after[0] == after[1]
    again = {"model_id": model, "seq_id": 7, "path": "a"}
    assert "exists" in client.result(client.send("save_weights", again)).json()["error"]


def test_checkpoints_are_listed_and_deleted(client: Client) -> None:
    _, model = client.model()
    saved = client.result(client.send("save_weights", {"model_id": model, "seq_id": 1, "path": "a"})).json()
    (found,) = client.send("checkpoints", method="GET").json()["checkpoints"]
    assert (found["tinker_path"], found["checkpoint_type"]) == (saved["path"], "training")
    gone = client.send(f"training_runs/{model}/checkpoints/weights/a", method="DELETE")
    assert gone.status_code == 204
    assert client.send(f"training_runs/{model}/checkpoints", method="GET").json()["checkpoints"] == []
    assert client.send("weights_info", {"tinker_path": saved["path"]}).status_code == 400


def test_a_name_published_twice_serves_the_new_weights(client: Client) -> None:
    session, model = client.model()
    answers = []
    for turn in range(2):
        client.train(model, 3 * turn + 1)
        client.step(model, 3 * turn + 2)
        asked = {"model_id": model, "seq_id": 3 * turn + 3, "path": "live"}
        path = client.result(client.send("save_weights_for_sampler", asked)).json()["path"]
        sampling = {"session_id": session, "sampling_session_seq_id": 10 + turn, "model_path": path}
        sampler = client.send("create_sampling_session", sampling).json()["sampling_session_id"]
        promise = asample(client, session, sampling_session_id=sampler, prompt_logprobs=True)
        answers.append(np.frombuffer(Fields(client.result(promise).content).binary(2), "<f4"))
    assert np.isnan(answers[0][0])
    assert not np.allclose(answers[0][1:], answers[1][1:])


def test_samples_do_not_depend_on_their_batch(client: Client) -> None:
    session, _ = client.model()
    alone = client.result(asample(client, session)).content
    # Something long first, so that the three are waiting together when it is done.
    long = {"num_samples": 64, "sampling_params": {"max_tokens": 48, "seed": 1}}
    busy = asample(client, session, **long)
    before = client.service.scheduler.batches
    together = [asample(client, session, num_samples=count) for count in (1, 2, 3)]
    contents = [client.result(promise).content for promise in together]
    assert client.result(busy).status_code == 200
    assert client.service.scheduler.batches - before < 3
    tokens = [
        [bytes(Fields(s).binary(2)) for s in Fields(content).messages(1)] for content in (alone, *contents)
    ]
    assert tokens[0] == tokens[2] == tokens[3][:2]
    assert [len(found) for found in tokens] == [2, 1, 2, 3]


def test_sampled_logprobs_are_the_prompt_logprobs_of_the_whole(client: Client) -> None:
    session, _ = client.model()
    promise = asample(client, session, num_samples=1)
    assert promise.json()["sample_sequence_ids"] == [promise.json()["request_id"] + ":0"]
    (sequence,) = [Fields(s) for s in Fields(client.result(promise).content).messages(1)]
    tokens = np.frombuffer(sequence.binary(2), "<i4").tolist()
    sampled = np.frombuffer(sequence.binary(3), "<f4")
    whole = {"chunks": [{"type": "encoded_text", "tokens": TOKENS[:5] + tokens}]}
    scored = client.result(asample(client, session, prompt=whole, prompt_logprobs=True))
    assert np.frombuffer(Fields(scored.content).binary(2), "<f4")[5:] == pytest.approx(sampled, abs=1e-5)


def test_refusals(client: Client) -> None:
    session, model = client.model()
    assert client.send("get_info", {"model_id": "nobody"}).status_code == 404
    assert client.send("optim_step", {"model_id": model, "seq_id": 1}).status_code == 422
    assert client.send("forward_backward", content=b"\x08").status_code == 400
    assert client.send("retrieve_future", {"request_id": "nothing"}).status_code == 404
    unknown = {"session_id": session, "model_seq_id": 5, "base_model": "gpt"}
    answer = client.send("create_model", {**unknown, "lora_config": {"rank": 2}})
    assert answer.status_code == 400
    assert "this server has" in answer.json()["detail"]
    # The refused number 1 does not hold up number 2, whose loss needs other inputs.
    failed = client.result(client.train(model, 2, loss="ppo")).json()
    assert failed["category"] == "user"
    assert "advantages, logprobs" in failed["error"]


def test_an_ended_session_leaves_nothing(client: Client) -> None:
    session, model = client.model()
    client.result(client.train(model, 1))
    client.result(asample(client, session))
    assert client.send(f"sessions/{session}/finish").status_code == 200
    state = client.service.state
    assert (len(state.sessions), len(state.models), len(state.samplers), len(client.service.futures)) == (
        0,
        0,
        0,
        0,
    )
    assert client.send("session_heartbeat", {"session_id": session}).status_code == 404


def test_a_key_is_checked(tmp_path: Path) -> None:
    write_random_model(tmp_path / "base")
    client = Client(tmp_path, api_key="secret")
    try:
        assert client.send("get_server_capabilities", method="GET").status_code == 401
        assert (
            client.send("get_server_capabilities", method="GET", headers={"X-API-Key": "no"}).status_code
            == 401
        )
        told = client.send("get_server_capabilities", method="GET", headers={"X-API-Key": "secret"}).json()
        assert "tiny" in [model["model_name"] for model in told["supported_models"]]
        assert client.send("healthz", method="GET").json() == {"status": "ok"}
    finally:
        client.close()


def test_an_adapter_of_other_names_is_refused(client: Client) -> None:
    _, model = client.model()
    trained = client.service.state.model(model).ready()
    tensors = trained.adapter.tensors(trained.model)
    renamed = {name.replace("q_proj", "query"): tensor for name, tensor in tensors.items()}
    with pytest.raises(UsageError, match=r"lacks base_model.*q_proj.lora_A.weight"):
        trained.load(renamed, None)
