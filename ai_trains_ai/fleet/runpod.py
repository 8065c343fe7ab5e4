"""Runpod's REST API v2, the part that a pool of pods needs.

What each answer means, decided here once, so that callers see only what they can act on:

    401         wrong key                            Unauthorized, stop
    402         no credit                            OutOfCredit, stop
    403         this key may not do it               Forbidden, skip this choice
    400         no machine of this kind is free      NoCapacity, next choice; any other text: Refused
    404         no such pod                          NotFound; for a termination that is success
    409, 422    our request is wrong                 Refused, never retried
    429         too fast                             waits as Retry-After says, then retried
    5xx, no JSON, a broken connection                retried, but for a create: AnswerLost

A create is never repeated blindly: the pod may exist although its answer was lost. Whoever gets AnswerLost
looks for the pod by its name. The account key stands in one header and in no message, log or pod.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from ai_trains_ai.errors import InfrastructureError

BASE_URL = "https://api.runpod.io/v2"
TRIES = 5
MAX_WAIT = 60.0
_NO_CAPACITY = (
    "no longer any instances available",
    "no instances",
    "no available",
    "capacity",
    "out of stock",
)

Cloud = Literal["SECURE", "COMMUNITY"]


class RunpodError(InfrastructureError):
    """The service did not do what was asked."""


class Unauthorized(RunpodError):
    """The account key is wrong."""


class OutOfCredit(RunpodError):
    """The account has no credit left."""


class Forbidden(RunpodError):
    """The account key may not do this."""


class NoCapacity(RunpodError):
    """No machine of this kind is free at the moment."""


class NotFound(RunpodError):
    """There is no such pod."""


class Refused(RunpodError):
    """The request is wrong, and would be again."""


class AnswerLost(RunpodError):
    """The request may have been carried out; its answer did not arrive."""


_BY_STATUS: Mapping[int, type[RunpodError]] = {
    401: Unauthorized,
    402: OutOfCredit,
    403: Forbidden,
    404: NotFound,
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of machine. dollars: per hour, for all `count` GPUs of a pod."""

    gpu: str
    cloud: Cloud
    count: int
    memory_gb: int
    dollars: float
    availability: Literal["NONE", "LOW", "MEDIUM", "HIGH"]


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What to create. env must hold no secret: a pod runs code that nobody has read."""

    name: str
    image: str
    gpu: str
    gpu_count: int
    cloud: Cloud
    disk_gb: int = 60
    args: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[str] = ("22/tcp",)
    data_centers: Sequence[str] = ()

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "name": self.name,
            "image": self.image,
            "cloud": self.cloud,
            "gpu": {"id": self.gpu, "count": self.gpu_count},
            "disk": self.disk_gb,
            "args": self.args,
            "env": dict(self.env),
            "ports": list(self.ports),
        }
        if self.data_centers:
            body["dataCenterIds"] = list(self.data_centers)
        return body


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the service sees it. dollars: per hour. ssh: (host, port, user) once it is known."""

    id: str
    name: str
    status: str
    dollars: float
    ssh: tuple[str, int, str] | None


class Runpod:
    """key: the account's. transport: httpx's, for tests. sleep: how to wait. Raises RunpodError's kinds."""

    def __init__(
        self,
        key: str,
        *,
        base_url: str = BASE_URL,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        timeout: float = 30.0,
    ) -> None:
        if not key or key != key.strip():
            raise Unauthorized("the Runpod key is empty or has blanks around it")
        self._key = key
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {key}"},
            transport=transport,
            timeout=timeout,
        )

    def create(self, request: PodRequest) -> Pod:
        """Create a pod. Raises NoCapacity, AnswerLost, and the errors that end it all."""
        body = request.body()
        assert self._key not in json.dumps(body), "the account key never goes to a pod"
        return _pod(self._ask("POST", "/pods", body=body))

    def pods(self, prefix: str) -> list[Pod]:
        """All pods of the account whose name begins with `prefix`, those that are ending included."""
        answer = self._ask("GET", "/pods")
        return [_pod(item) for item in answer["pods"] if str(item["name"]).startswith(prefix)]

    def terminate(self, pod_id: str) -> None:
        """End a pod and its bill for good. One that is gone already is fine."""
        try:
            self._ask("DELETE", f"/pods/{pod_id}")
        except NotFound:
            return

    def offers(self, cloud: Cloud, count: int) -> list[Offer]:
        """What `count` GPUs of each kind in one pod cost, cheapest first, without kinds the cloud lacks."""
        query = {"include": "AVAILABILITY", "product": "POD", "count": str(count), "cloud": cloud}
        answer = self._ask("GET", "/catalog/gpus", query=query)
        offers = list(_offers(answer["gpus"], cloud, count))
        return sorted(offers, key=lambda offer: (offer.dollars, offer.gpu))

    def billed(self, start: str, end: str) -> dict[str, float]:
        """Dollars by pod id, from the account's bill. start, end: RFC 3339 times."""
        query = {"startTime": start, "endTime": end, "bucketSize": "hour"}
        totals: dict[str, float] = {}
        for record in self._ask("GET", "/billing/pods", query=query)["records"]:
            totals[record["podId"]] = totals.get(record["podId"], 0.0) + float(record["totalAmount"])
        return totals

    def close(self) -> None:
        self._http.close()

    def _ask(
        self, method: str, path: str, *, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Any:
        """One request, repeated while that may help. Returns the decoded answer; None for an empty one."""
        trouble, wait = "", 1.0
        for _ in range(TRIES):
            try:
                response = self._http.request(method, path, json=body, params=query)
            except httpx.TransportError as error:
                trouble, pause = f"{type(error).__name__}: {error}", wait
                if method == "POST" and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise AnswerLost(self._message(method, path, trouble)) from error
            else:
                document = _decode(response)
                if response.is_success and document is not _NO_JSON:
                    return document
                trouble, pause = _detail(response, document), wait
                if response.status_code == 429:
                    pause = _retry_after(response, wait)
                elif response.is_success or response.status_code >= 500:
                    if method == "POST":
                        raise AnswerLost(self._message(method, path, trouble))
                else:
                    raise self._error(method, path, response.status_code, trouble)
            self._sleep(min(pause, MAX_WAIT))
            wait *= 2
        raise RunpodError(self._message(method, path, f"{trouble} (after {TRIES} tries)"))

    def _error(self, method: str, path: str, status: int, trouble: str) -> RunpodError:
        kind = _BY_STATUS.get(status, Refused)
        if status == 400 and method == "POST" and any(text in trouble.lower() for text in _NO_CAPACITY):
            kind = NoCapacity
        return kind(self._message(method, path, trouble))

    def _message(self, method: str, path: str, trouble: str) -> str:
        return f"Runpod: {method} {path}: {trouble}".replace(self._key, "[key]")


_NO_JSON = object()


def _decode(response: httpx.Response) -> Any:
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError:
        return _NO_JSON


def _detail(response: httpx.Response, document: Any) -> str:
    """The service's own words, shortened."""
    if isinstance(document, dict):
        parts = [str(document.get("detail") or document.get("title") or "no detail")]
        parts += [str(item) for item in document.get("errors") or []]
        return f"{response.status_code}: {'; '.join(parts)}"[:500]
    return f"{response.status_code}: an answer that is no JSON: {response.text[:80]!r}"


def _retry_after(response: httpx.Response, otherwise: float) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        return otherwise


def _pod(item: Mapping[str, Any]) -> Pod:
    direct = (item.get("ssh") or {}).get("direct")
    ssh = None if direct is None else (str(direct["host"]), int(direct["port"]), str(direct["username"]))
    return Pod(str(item["id"]), str(item["name"]), str(item["status"]), float(item["cost"]), ssh)


def _offers(gpus: Sequence[Mapping[str, Any]], cloud: Cloud, count: int) -> Iterator[Offer]:
    key = cloud.lower()
    for gpu in gpus:
        # The catalogue has placeholder prices for clouds that lack the kind.
        if gpu[key] and gpu["maxCount"][key] >= count:
            yield Offer(
                gpu=str(gpu["id"]),
                cloud=cloud,
                count=count,
                memory_gb=int(gpu["memory"]),
                dollars=float(gpu["price"][key]) * count,
                availability=gpu.get("availability", "NONE"),
            )
