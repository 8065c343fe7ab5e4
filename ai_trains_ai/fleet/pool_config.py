"""What a pool of pods is told: limits, times, kinds; and what it needs of a cloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ai_trains_ai.fleet.runpod import Cloud, Offer, Pod, PodRequest

DEADMAN_VARIABLE = "ATA_DEADMAN_SECONDS"

DEADMAN_ARGS = (
    "bash -c 'touch /run/ata-alive; (while sleep 15; do"
    " now=$(date +%s); seen=$(stat -c %Y /run/ata-alive);"
    f' [ $((now - seen)) -lt "${DEADMAN_VARIABLE}" ] || runpodctl remove pod "$RUNPOD_POD_ID"; done) &'
    " exec /start.sh'"
)
"""What a pod runs: its image's own start, and a timer that ends the pod unless its owner touches the file. It
uses the key that the service gives each pod for itself, not the account's.
"""


class Provider(Protocol):
    """What the pool needs of a cloud; `fleet.runpod.Runpod` is the real one."""

    def create(self, request: PodRequest) -> Pod: ...
    def pods(self, prefix: str) -> list[Pod]: ...
    def terminate(self, pod_id: str) -> None: ...
    def offers(self, cloud: Cloud, count: int) -> list[Offer]: ...


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Times in seconds, money in dollars."""

    prefix: str
    """Of all pods' names. It belongs to this store alone: a pod under it that no record knows is ended."""
    image: str
    gpus: tuple[str, ...]
    """Kinds that will do. The cheapest that is to be had is taken."""
    budget: float
    """For all pods of this store, ever."""
    max_rate: float
    """Dollars an hour for all pods at one time."""
    clouds: tuple[Cloud, ...] = ("COMMUNITY", "SECURE")
    gpus_per_pod: int = 2
    size: int = 16
    boot_seconds: float = 900.0
    idle_seconds: float = 300.0
    max_age: float = 12 * 3600.0
    deadman_seconds: float = 900.0
    settle_seconds: float = 60.0
    """How long a new pod may be missing from the service's list."""
    avoid_seconds: float = 300.0
    """How long a kind is passed over after it was out of stock or did not boot."""
    price_seconds: float = 600.0
    """How long prices are taken for current."""
