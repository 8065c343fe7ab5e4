"""The warm pool against the fake service: every fault that costs money or loses a pod."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ai_trains_ai.fleet import runpod
from ai_trains_ai.fleet.lease import Lease, QueuePolicy
from ai_trains_ai.fleet.pool import WarmPool
from ai_trains_ai.fleet.pool_config import PoolConfig
from ai_trains_ai.fleet.queue import JobQueue
from ai_trains_ai.fleet.runpod import Runpod
from ai_trains_ai.store.database import Database
from ai_trains_ai.testing.runpod import FakeClock, FakeGpu, FakeRunpod

KEY = "rpa_SECRET_0123456789"
CONFIG = PoolConfig(
    prefix="ata-test-",
    image="image:1",
    gpus=("NVIDIA RTX A5000", "NVIDIA A40"),
    budget=50.0,
    max_rate=20.0,
    size=4,
)


class World:
    """A pool with its cloud and clock; `restart` is what follows a kill -9."""

    def __init__(self, config: PoolConfig = CONFIG, gpus: dict[str, FakeGpu] | None = None) -> None:
        self.clock = FakeClock()
        self.cloud = FakeRunpod(KEY, now=self.clock, gpus=gpus)
        self.database = Database(Path(":memory:"))
        self.config = config
        self.restart()

    def restart(self) -> None:
        client = Runpod(KEY, transport=self.cloud, sleep=self.clock.sleep)
        self.pool = WarmPool(self.database, client, self.config, now=self.clock, touch=self.cloud.touch)

    def run(self, seconds: float, wanted: int, every: float = 15.0) -> None:
        for _ in range(int(seconds / every)):
            self.pool.tick(wanted)
            self.clock.sleep(every)

    def states(self) -> list[str]:
        return sorted(record.state for record in self.pool.records.live())

    def reasons(self) -> list[str | None]:
        return [record.reason for record in self.pool.records.all() if record.state == "gone"]


@pytest.fixture
def world() -> World:
    return World()


def test_pods_become_ready_and_are_reused_and_let_go(world: World) -> None:
    world.run(120, wanted=2)
    assert world.states() == ["ready", "ready"]
    first = world.pool.acquire()
    assert first is not None
    assert first.gpu == "NVIDIA RTX A5000"  # the cheapest
    assert first.cloud == "COMMUNITY"
    world.pool.give_back(first.name)
    again = world.pool.acquire()
    assert again is not None
    assert again.name == first.name
    world.pool.give_back(again.name)
    world.run(CONFIG.idle_seconds + 60, wanted=0)
    assert world.cloud.live() == []
    assert world.reasons() == ["idle", "idle"]


def test_a_lost_answer_is_found_by_its_name_and_adopted(world: World) -> None:
    world.cloud.inject("answer_lost")
    world.pool.tick(1)
    assert world.states() == ["intended"]
    world.run(120, wanted=1)
    assert world.states() == ["ready"]
    assert len(world.cloud.pods) == 1


def test_a_create_that_failed_unseen_is_dropped_and_replaced(world: World) -> None:
    world.cloud.inject("500")
    world.run(300, wanted=1)
    assert world.states() == ["ready"]
    assert world.reasons() == ["not there"]
    assert len(world.cloud.pods) == 1


def test_a_pod_that_never_boots_is_ended_and_another_kind_taken(world: World) -> None:
    world.cloud.inject("never_healthy")
    world.run(CONFIG.boot_seconds + 200, wanted=1)
    assert world.states() == ["ready"]
    assert world.reasons() == ["boot deadline"]
    assert [(pod.gpu, pod.cloud) for pod in world.cloud.live()] == [("NVIDIA RTX A5000", "SECURE")]


def test_no_capacity_leads_to_the_next_kind() -> None:
    gpus = {
        "NVIDIA RTX A5000": FakeGpu(24, 0.27, 0.16, {"SECURE": 1, "COMMUNITY": 1}),
        "NVIDIA A40": FakeGpu(48, 0.40, None, {"SECURE": 1, "COMMUNITY": 0}),
    }
    world = World(gpus=gpus)
    world.run(60, wanted=4)
    assert sorted((pod.gpu, pod.cloud) for pod in world.cloud.live()) == [
        ("NVIDIA A40", "SECURE"),
        ("NVIDIA RTX A5000", "COMMUNITY"),
        ("NVIDIA RTX A5000", "SECURE"),
    ]
    assert world.pool.spent() < 0.1  # intents that came to nothing cost nothing


def test_a_termination_that_fails_is_tried_again(world: World) -> None:
    world.run(120, wanted=1)
    taken = world.pool.acquire()
    assert taken is not None
    world.cloud.inject("403", "DELETE", times=2)
    world.pool.give_back(taken.name, broken=True)
    assert world.states() == ["ending"]
    assert world.pool.acquire() is None
    world.pool.tick(0)
    assert world.states() == ["ending"]
    world.pool.tick(0)
    assert world.states() == []
    assert world.reasons() == ["broken"]
    assert world.cloud.live() == []


def test_no_credit_stops_and_leaves_the_rest_as_it_was(world: World) -> None:
    world.run(120, wanted=1)
    world.cloud.inject("402")
    with pytest.raises(runpod.OutOfCredit):
        world.pool.tick(2)
    assert world.states() == ["ready"]


def test_a_dead_pod_is_noticed_and_replaced(world: World) -> None:
    world.run(120, wanted=1)
    taken = world.pool.acquire()
    assert taken is not None
    assert taken.pod_id is not None
    world.cloud.kill(taken.pod_id)
    world.pool.tick(1)
    assert world.pool.records.get(taken.name).reason == "vanished"
    world.pool.give_back(taken.name)  # too late, changes nothing
    world.run(120, wanted=1)
    assert world.states() == ["ready"]


def test_after_kill_9_the_next_start_knows_every_pod(world: World) -> None:
    world.run(120, wanted=2)
    world.cloud.inject("answer_lost")
    world.pool.tick(3)
    world.restart()
    world.pool.tick(3)
    assert len(world.cloud.live()) == 3
    assert {pod.name for pod in world.cloud.live()} == {r.name for r in world.pool.records.live()}
    world.pool.close()
    assert world.cloud.live() == []
    assert world.pool.records.live() == []


def test_pods_that_no_record_knows_are_ended(world: World) -> None:
    client = Runpod(KEY, transport=world.cloud)
    stray = runpod.PodRequest("ata-test-stray", "i", "NVIDIA A40", 1, "SECURE")
    client.create(stray)
    client.create(replace(stray, name="somebody-elses"))
    world.pool.tick(0)
    assert [pod.name for pod in world.cloud.live()] == ["somebody-elses"]


def test_without_an_owner_pods_end_themselves_within_the_dead_man_time(world: World) -> None:
    world.run(120, wanted=3)
    assert len(world.cloud.live()) == 3
    world.clock.sleep(CONFIG.deadman_seconds)
    assert world.cloud.live() == []
    world.restart()
    world.pool.reconcile()
    assert world.reasons() == ["vanished"] * 3
    assert world.cloud.billed() <= world.pool.spent() <= world.cloud.billed() * 1.1


def test_old_pods_are_let_go_when_they_are_free(world: World) -> None:
    world.run(120, wanted=1)
    taken = world.pool.acquire()
    assert taken is not None
    world.run(CONFIG.max_age, wanted=1, every=600.0)
    assert world.pool.records.get(taken.name).state == "busy"
    world.pool.give_back(taken.name)
    world.pool.tick(1)
    assert world.pool.records.get(taken.name).reason == "old"


def test_the_burn_rate_has_a_limit() -> None:
    world = World(replace(CONFIG, max_rate=1.0))
    world.run(300, wanted=4)
    assert len(world.cloud.live()) == 3  # at $0.32 an hour each
    assert world.pool.rate() <= 1.0


def test_the_budget_is_never_passed_not_even_by_pods_left_alone() -> None:
    world = World(replace(CONFIG, budget=0.4))
    for _ in range(300):
        world.pool.tick(4)
        assert world.pool.committed() <= 0.4 + 4 * 0.54 * 15 / 3600
        world.clock.sleep(15.0)
    assert world.cloud.live() == []
    assert 0.1 < world.cloud.billed() <= 0.4


def test_nothing_tells_a_pod_the_key(world: World) -> None:
    world.run(60, wanted=2)
    assert all(KEY not in str(pod) for pod in world.cloud.pods.values())
    dump = "\n".join(world.database._connection.iterdump())
    assert "ata-test-" in dump
    assert KEY not in dump


@pytest.mark.parametrize("seed", [1])
def test_chaos(seed: int) -> None:
    """Queue and pool together, faults at random: every job ends once, nothing is left, no overspend."""
    rng = random.Random(seed)
    world = World(replace(CONFIG, size=6, budget=30.0))
    policy = QueuePolicy(lease_seconds=120.0, max_losses=4, max_failures=6)
    queue = JobQueue(world.database, policy, world.clock)
    for i in range(40):
        queue.put(f"job-{i}", {"i": i, "kills": i == 7})
    running: dict[str, tuple[Lease, str, float]] = {}
    finished: list[str] = []
    faults: list[Any] = [
        "answer_lost",
        "500",
        "html",
        "429",
        "403",
        "capacity",
        "disconnected",
        "never_healthy",
    ]
    for _ in range(4000):
        open_jobs = sum(queue.counts().get(s, 0) for s in ("queued", "leased", "running"))
        if not open_jobs:
            break
        if rng.random() < 0.15:
            world.cloud.inject(rng.choice(faults), rng.choice(["POST", "POST", "GET", "DELETE"]))
        if rng.random() < 0.02 and world.cloud.live():
            world.cloud.kill(rng.choice(world.cloud.live()).id)
        if rng.random() < 0.01:  # kill -9 of the orchestrator
            world.restart()
            queue.reclaim("me")
            world.pool.recover()
            running.clear()
        with contextlib.suppress(runpod.RunpodError):  # the next tick will do
            world.pool.tick(min(open_jobs, 6))
        step(world, queue, running, finished)
        world.clock.sleep(15.0)
    assert queue.counts() == {"done": 39, "poisoned": 1}
    assert sorted(finished) == sorted(f"job-{i}" for i in range(40) if i != 7)
    world.cloud._faults.clear()
    world.pool.close()
    world.pool.tick(0)
    assert world.cloud.live() == []
    assert world.cloud.billed() <= 30.0


def step(
    world: World, queue: JobQueue, running: dict[str, tuple[Lease, str, float]], finished: list[str]
) -> None:
    """Hand out jobs, and move on those that run: 5 minutes each; one of them kills its pod after a minute."""
    for job_id, (lease, name, begun) in list(running.items()):
        record, seconds = world.pool.records.get(name), world.clock() - begun
        if record.state == "gone":
            queue.lost(lease)
        elif lease.payload["kills"] and seconds >= 60.0:
            assert record.pod_id is not None
            world.cloud.kill(record.pod_id)
            queue.lost(lease)
            world.pool.give_back(name, broken=True)
        elif seconds >= 300.0:
            queue.finish(lease, {"pod": name})
            finished.append(job_id)
            world.pool.give_back(name)
        else:
            queue.heartbeat(lease)
            continue
        del running[job_id]
    while (record := world.pool.acquire()) is not None:
        new = queue.lease(f"me/{record.name}")
        if new is None:
            world.pool.give_back(record.name)
            return
        queue.start(new)
        running[new.job_id] = (new, record.name, world.clock())
