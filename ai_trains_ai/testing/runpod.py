"""A stand-in for Runpod's REST API v2, in process: an httpx transport with an account, stock and a clock.

    cloud = FakeRunpod("the-key", now=clock)
    client = Runpod("the-key", transport=cloud, sleep=clock.sleep)

Requests are checked as strictly as the service's schema does. Pods boot in `boot_seconds`, are billed from
their creation by the second, and end themselves when their dead-man timer has run out. Faults are queued with
`inject`, and strike the next request that they fit.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

DEADMAN_VARIABLE = "ATA_DEADMAN_SECONDS"

FaultKind = Literal[
    "answer_lost", "500", "html", "429", "402", "403", "422", "capacity", "disconnected", "never_healthy"
]

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "image": str,
    "cloud": str,
    "gpu": dict,
    "cpu": dict,
    "disk": int,
    "args": str,
    "env": dict,
    "ports": list,
    "dataCenterIds": list,
    "mounts": dict,
    "registry": str,
    "templateId": str,
    "startSsh": bool,
    "startJupyter": bool,
    "globalNetworking": bool,
}


@dataclass
class FakeClock:
    """Time that passes when somebody sleeps."""

    time: float = 1_000_000.0

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class FakePod:
    id: str
    name: str
    gpu: str
    count: int
    cloud: str
    dollars: float
    """Per hour."""
    env: dict[str, str]
    created: float
    boots_at: float
    """When it becomes RUNNING; infinity for one that never does."""
    touched: float
    """When its owner last reset its dead-man timer."""
    ended: float | None = None


@dataclass
class FakeGpu:
    memory: int
    secure: float | None
    community: float | None
    """Dollars an hour for one GPU; None where that cloud has none."""
    stock: dict[str, int] = field(default_factory=lambda: {"SECURE": 1000, "COMMUNITY": 1000})
    """Pods that can still be had, by cloud."""


class FakeRunpod(httpx.BaseTransport):
    """The account and its pods. Attributes are there to be looked at, and to be changed, by tests."""

    def __init__(
        self,
        key: str,
        *,
        now: Callable[[], float],
        gpus: dict[str, FakeGpu] | None = None,
        boot: float = 90.0,
    ) -> None:
        self.key = key
        self.now = now
        self.gpus = gpus or {
            "NVIDIA RTX A5000": FakeGpu(24, 0.27, 0.16),
            "NVIDIA A40": FakeGpu(48, 0.40, None),
            "NVIDIA GeForce RTX 4090": FakeGpu(24, 0.69, 0.34),
        }
        self.boot_seconds = boot
        self.pods: dict[str, FakePod] = {}
        self.requests: list[tuple[str, str]] = []
        self._faults: list[tuple[FaultKind, str]] = []
        self._numbers = itertools.count(1)

    def inject(self, kind: FaultKind, method: str = "POST", times: int = 1) -> None:
        """Let the next `times` requests of that method fail so. never_healthy: the next pod never boots."""
        self._faults += [(kind, method)] * times

    def live(self) -> list[FakePod]:
        """Pods that are being billed now."""
        self._run_timers()
        return [pod for pod in self.pods.values() if pod.ended is None]

    def billed(self) -> float:
        """Dollars that the account has been charged so far."""
        self._run_timers()
        ends = ((pod, self.now() if pod.ended is None else pod.ended) for pod in self.pods.values())
        return sum(pod.dollars * (end - pod.created) / 3600.0 for pod, end in ends)

    def kill(self, pod_id: str) -> None:
        """The machine under a pod breaks."""
        self.pods[pod_id].ended = self.now()

    def touch(self, pod_id: str) -> None:
        """What a pod's owner does over SSH to reset its dead-man timer."""
        pod = self.pods[pod_id]
        if pod.ended is not None:
            raise ConnectionError(f"{pod.name} does not answer")
        pod.touched = self.now()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._run_timers()
        method, path = request.method, request.url.path.removeprefix("/v2")
        self.requests.append((method, path))
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return _problem(401, "Unauthorized", "invalid API key")
        fault = self._strike(method)
        if fault == "disconnected":
            raise httpx.ConnectError("connection refused", request=request)
        if fault in ("500", "402", "403", "422"):
            return _problem(int(fault), "Injected", f"injected fault for {request.headers['authorization']}")
        if fault == "html":
            return httpx.Response(200, text="<html>Bad gateway</html>")
        if fault == "429":
            return _problem(429, "Too Many Requests", "slow down", {"Retry-After": "7"})
        if fault == "capacity":
            return _problem(400, "Bad Request", "There are no longer any instances available")
        response = self._route(method, path, request, never=fault == "never_healthy")
        if fault == "answer_lost":
            raise httpx.ReadTimeout("the answer did not arrive", request=request)
        return response

    def _strike(self, method: str) -> FaultKind | None:
        for i, (kind, wanted) in enumerate(self._faults):
            if wanted == method:
                del self._faults[i]
                return kind
        return None

    def _run_timers(self) -> None:
        for pod in self.pods.values():
            seconds = float(pod.env.get(DEADMAN_VARIABLE, "inf"))
            # The timer is a program of the container's: it begins when that has booted.
            end = max(pod.touched, pod.boots_at) + seconds
            if pod.ended is None and self.now() >= end:
                pod.ended = end

    def _route(self, method: str, path: str, request: httpx.Request, *, never: bool) -> httpx.Response:
        parts = path.strip("/").split("/")
        if parts == ["pods"] and method == "GET":
            return httpx.Response(200, json={"pods": [self._show(pod) for pod in self.live()]})
        if parts == ["pods"] and method == "POST":
            return self._create(request, never)
        if len(parts) == 2 and parts[0] == "pods" and method in ("GET", "DELETE"):
            pod = self.pods.get(parts[1])
            if pod is None or pod.ended is not None:
                return _problem(404, "Not Found", "pod not found")
            if method == "GET":
                return httpx.Response(200, json=self._show(pod))
            pod.ended = self.now()
            return httpx.Response(204)
        if parts == ["catalog", "gpus"] and method == "GET":
            return self._catalogue(request)
        return _problem(404, "Not Found", f"no route {method} {path}")

    def _create(self, request: httpx.Request, never: bool) -> httpx.Response:
        try:
            body = json.loads(request.content)
        except ValueError:
            return _problem(400, "Bad Request", "the body is no JSON")
        errors = list(self._problems(body))
        if errors:
            return _problem(422, "Unprocessable Entity", "the request is invalid", errors=errors)
        cloud, gpu = body.get("cloud", "SECURE"), self.gpus[body["gpu"]["id"]]
        count = body["gpu"].get("count", 1)
        price = gpu.secure if cloud == "SECURE" else gpu.community
        if price is None or gpu.stock[cloud] < 1:
            return _problem(400, "Bad Request", "There are no longer any instances available")
        gpu.stock[cloud] -= 1
        now = self.now()
        pod = FakePod(
            id=f"pod{next(self._numbers):05d}",
            name=body["name"],
            gpu=body["gpu"]["id"],
            count=count,
            cloud=cloud,
            dollars=price * count,
            env=dict(body.get("env", {})),
            created=now,
            boots_at=float("inf") if never else now + self.boot_seconds,
            touched=now,
        )
        self.pods[pod.id] = pod
        return httpx.Response(201, json=self._show(pod))

    def _problems(self, body: Any) -> list[str]:
        if not isinstance(body, dict):
            return ["$: an object is expected"]
        found = [f"$: additional properties '{key}' not allowed" for key in body if key not in _FIELDS]
        for key, kind in _FIELDS.items():
            if key in body and (not isinstance(body[key], kind) or (kind is int and body[key] is True)):
                found.append(f"$.{key}: has the wrong type")
        if not body.get("name"):
            found.append("$: name is required")
        if not body.get("image") and "templateId" not in body:
            found.append("$: image is required")
        if ("gpu" in body) == ("cpu" in body):
            found.append("$: exactly one of gpu and cpu is required")
        elif "gpu" in body and isinstance(body["gpu"], dict) and body["gpu"].get("id") not in self.gpus:
            found.append("$.gpu.id: unknown GPU type")
        if body.get("cloud", "SECURE") not in ("SECURE", "COMMUNITY"):
            found.append("$.cloud: SECURE or COMMUNITY")
        if isinstance(body.get("env"), dict) and not all(isinstance(v, str) for v in body["env"].values()):
            found.append("$.env: text values only")
        if self.key in json.dumps(body):
            found.append("$: the account key stands in the request's body")
        return found

    def _show(self, pod: FakePod) -> dict[str, Any]:
        running = self.now() >= pod.boots_at
        number = int(pod.id.removeprefix("pod"))
        command = f"ssh root@127.0.0.1 -p {20000 + number}"
        direct = {"host": "127.0.0.1", "port": 20000 + number, "username": "root", "command": command}
        return {
            "id": pod.id,
            "name": pod.name,
            "status": "RUNNING" if running else "PROVISIONING",
            "gpu": {"id": pod.gpu, "count": pod.count},
            "cloud": pod.cloud,
            "cost": pod.dollars,
            "env": pod.env,
            "ssh": {"proxy": None, "direct": direct if running else None},
        }

    def _catalogue(self, request: httpx.Request) -> httpx.Response:
        query = dict(request.url.params)
        if ("product" in query) != (query.get("include") == "AVAILABILITY"):
            return _problem(400, "Bad Request", "product goes with include=AVAILABILITY")
        cloud = query.get("cloud", "SECURE")
        gpus = [
            {
                "id": name,
                "name": name,
                "pool": None,
                "manufacturer": "NVIDIA",
                "memory": gpu.memory,
                "secure": gpu.secure is not None,
                "community": gpu.community is not None,
                "price": {"secure": gpu.secure or 0.0, "community": gpu.community or 0.0},
                "maxCount": {"secure": 8, "community": 8},
                "availability": "HIGH" if gpu.stock[cloud] > 0 else "NONE",
            }
            for name, gpu in self.gpus.items()
        ]
        return httpx.Response(200, json={"gpus": gpus})


def _problem(
    status: int,
    title: str,
    detail: str,
    headers: dict[str, str] | None = None,
    errors: list[str] | None = None,
) -> httpx.Response:
    body = {"title": title, "status": status, "detail": detail, **({"errors": errors} if errors else {})}
    kind = {"Content-Type": "application/problem+json"}
    return httpx.Response(status, json=body, headers={**kind, **(headers or {})})
