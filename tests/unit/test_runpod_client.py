"""The Runpod client against the fake service: what each answer leads to, and where the key may stand."""

from __future__ import annotations

import json
from dataclasses import replace

import httpx
import pytest

from ai_trains_ai.fleet import runpod
from ai_trains_ai.fleet.runpod import PodRequest, Runpod
from ai_trains_ai.testing.runpod import FakeClock, FakeRunpod

KEY = "rpa_SECRET_0123456789"
REQUEST = PodRequest("ata-x-1", "image:1", "NVIDIA RTX A5000", 2, "COMMUNITY", env={"A": "b"})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cloud(clock: FakeClock) -> FakeRunpod:
    return FakeRunpod(KEY, now=clock)


@pytest.fixture
def client(cloud: FakeRunpod, clock: FakeClock) -> Runpod:
    return Runpod(KEY, transport=cloud, sleep=clock.sleep)


def test_a_pods_life(client: Runpod, cloud: FakeRunpod, clock: FakeClock) -> None:
    pod = client.create(REQUEST)
    assert (pod.status, pod.dollars, pod.ssh) == ("PROVISIONING", 0.32, None)
    clock.sleep(90.0)
    (same,) = client.pods("ata-x-")
    assert (same.id, same.status) == (pod.id, "RUNNING")
    assert same.ssh == ("127.0.0.1", 20001, "root")
    assert client.pods("other-") == []
    client.terminate(pod.id)
    client.terminate(pod.id)  # gone already
    assert client.pods("ata-x-") == []
    assert cloud.billed() == pytest.approx(0.32 * 90 / 3600)


def test_offers_are_sorted_and_leave_out_what_the_cloud_lacks(client: Runpod) -> None:
    community = client.offers("COMMUNITY", 2)
    assert [offer.gpu for offer in community] == ["NVIDIA RTX A5000", "NVIDIA GeForce RTX 4090"]
    assert community[0].dollars == pytest.approx(0.32)
    assert "NVIDIA A40" in [offer.gpu for offer in client.offers("SECURE", 2)]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("402", runpod.OutOfCredit),
        ("403", runpod.Forbidden),
        ("422", runpod.Refused),
        ("capacity", runpod.NoCapacity),
        ("500", runpod.AnswerLost),
        ("html", runpod.AnswerLost),
        ("answer_lost", runpod.AnswerLost),
    ],
)
def test_a_create_is_tried_once(
    client: Runpod, cloud: FakeRunpod, fault: str, error: type[Exception]
) -> None:
    cloud.inject(fault)  # type: ignore[arg-type]
    with pytest.raises(error) as raised:
        client.create(REQUEST)
    assert type(raised.value) is error
    assert KEY not in str(raised.value)
    assert cloud.requests == [("POST", "/pods")]
    assert len(cloud.live()) == (fault == "answer_lost")


def test_a_create_that_never_reached_the_service_is_repeated(client: Runpod, cloud: FakeRunpod) -> None:
    cloud.inject("disconnected", times=2)
    client.create(REQUEST)
    assert len(cloud.live()) == 1


def test_too_fast_is_waited_out_as_the_service_says(
    client: Runpod, cloud: FakeRunpod, clock: FakeClock
) -> None:
    start = clock()
    cloud.inject("429", times=3)
    client.create(REQUEST)
    assert clock() - start == 21.0


@pytest.mark.parametrize("fault", ["500", "html", "disconnected", "answer_lost"])
def test_reading_is_retried_and_ends_with_a_clear_error(
    client: Runpod, cloud: FakeRunpod, clock: FakeClock, fault: str
) -> None:
    cloud.inject(fault, "GET", times=4)  # type: ignore[arg-type]
    assert client.pods("") == []
    cloud.inject(fault, "GET", times=5)  # type: ignore[arg-type]
    with pytest.raises(runpod.RunpodError, match="after 5 tries") as raised:
        client.pods("")
    assert KEY not in str(raised.value)


def test_a_termination_is_repeated_until_it_is_known_to_have_worked(
    client: Runpod, cloud: FakeRunpod
) -> None:
    pod = client.create(REQUEST)
    cloud.inject("answer_lost", "DELETE")
    client.terminate(pod.id)
    assert cloud.live() == []


def test_a_wrong_key_says_so_and_is_not_shown(cloud: FakeRunpod) -> None:
    with pytest.raises(runpod.Unauthorized) as raised:
        Runpod("rpa_WRONG", transport=cloud).pods("")
    assert "rpa_WRONG" not in str(raised.value)
    with pytest.raises(runpod.Unauthorized, match="blanks"):
        Runpod(f"{KEY}\n", transport=cloud)


def test_the_key_never_goes_to_a_pod(client: Runpod, cloud: FakeRunpod) -> None:
    with pytest.raises(AssertionError, match="never goes to a pod"):
        client.create(replace(REQUEST, env={"K": KEY}))
    assert cloud.requests == []


@pytest.mark.parametrize(
    "change",
    [
        {"bogus": 1},
        {"name": ""},
        {"gpu": {"id": "Voodoo 2"}},
        {"cpu": {}},
        {"cloud": "MY"},
        {"env": {"a": 1}},
    ],
)
def test_the_fake_refuses_what_the_service_would(cloud: FakeRunpod, change: dict[str, object]) -> None:
    http = httpx.Client(transport=cloud, base_url="https://x/v2", headers={"Authorization": f"Bearer {KEY}"})
    answer = http.post("/pods", content=json.dumps({**REQUEST.body(), **change}))
    assert answer.status_code == 422
    assert answer.json()["errors"]
    assert http.post("/pods", content=json.dumps(REQUEST.body())).status_code == 201


def test_a_pod_ends_itself_when_nobody_resets_its_timer(
    client: Runpod, cloud: FakeRunpod, clock: FakeClock
) -> None:
    pod = client.create(replace(REQUEST, env={"ATA_DEADMAN_SECONDS": "600"}))
    clock.sleep(500.0)
    cloud.touch(pod.id)
    clock.sleep(599.0)
    assert len(cloud.live()) == 1
    clock.sleep(5000.0)
    assert cloud.live() == []
    assert cloud.billed() == pytest.approx(0.32 * 1100 / 3600)
