"""A warm pool of pods: rented when there is work, kept while there is, and never forgotten.

    tick(wanted), every some seconds:
        reconcile   our records against the service's list: adopt, follow booting, end what nobody knows
        touch       reset the dead-man timer of each pod that is ours
        retire      past the boot deadline, idle, old, or beyond the budget
        grow        the cheapest kind that is to be had, until `wanted` pods live

Nothing is billed unseen: the intent, with a name of our own making, is on disk before the request is sent; a
pod whose answer was lost is found by that name, and one that no record knows is ended. If this process dies,
the next one's first tick does the same; if none comes, each pod ends itself `deadman_seconds` after the last
reset of its timer. That bounds what can be spent at any moment: what was, and what all pods may cost until
their timers end. Both the rate and that sum have a limit, and no pod is created beyond either. Not covered: a
pod whose image never finishes loading has no timer yet; only a living pool (or the next one) ends it.

Pods are terminated, never stopped: a stopped pod is billed for its disk. A termination that fails is tried
again at every tick.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator

from ai_trains_ai.errors import InfrastructureError
from ai_trains_ai.fleet.pods import PodRecord, PodRecords
from ai_trains_ai.fleet.pool_config import DEADMAN_ARGS, DEADMAN_VARIABLE, PoolConfig, Provider
from ai_trains_ai.fleet.runpod import AnswerLost, Forbidden, NoCapacity, Offer, Pod, PodRequest
from ai_trains_ai.store.database import Database


class WarmPool:
    """now: wall clock. healthy: is a running pod fit for work (do its GPUs answer)? touch: reset the timer of
    the pod with that id. Both may raise InfrastructureError: then it is not fit yet, or not reset.
    """

    def __init__(
        self,
        database: Database,
        provider: Provider,
        config: PoolConfig,
        *,
        now: Callable[[], float],
        touch: Callable[[str], None],
        healthy: Callable[[Pod], bool] | None = None,
    ) -> None:
        self.config = config
        self.records = PodRecords(database, config.prefix, now)
        self._provider = provider
        self._now = now
        self._touch = touch
        self._healthy = healthy
        self._avoid: dict[tuple[str, str], float] = {}
        self._offers: list[Offer] = []
        self._priced = float("-inf")

    def tick(self, wanted: int) -> None:
        """Bring the pool towards `wanted` pods. Raises RunpodError when the service can't be asked, or the
        account can't pay: what lives is then as it was.
        """
        self.reconcile()
        self._reset_timers()
        self._retire(wanted)
        self._grow(wanted)

    def reconcile(self) -> None:
        """Make our records and the service's list agree."""
        records = {record.name: record for record in self.records.live()}
        seen: set[str] = set()
        for pod in self._provider.pods(self.config.prefix):
            if pod.status == "TERMINATED":
                continue
            record = records.get(pod.name)
            if record is None or record.pod_id not in (None, pod.id):
                self._terminate(pod.id)  # nobody's
                continue
            seen.add(pod.name)
            self._follow(record, pod)
        for name, record in records.items():
            age = self._now() - record.created
            settled = record.state in ("ready", "busy", "ending") or age >= self.config.settle_seconds
            if name not in seen and settled:
                end = self._now()
                if record.state in ("ready", "busy"):
                    end = min(end, record.touched + self.config.deadman_seconds)
                self.records.gone(name, "not there" if record.pod_id is None else "vanished", end)

    def acquire(self) -> PodRecord | None:
        """A ready pod for one job, or None."""
        return self.records.take()

    def give_back(self, name: str, *, broken: bool = False) -> None:
        """After a job. broken: don't use it again."""
        record = self.records.get(name)
        if record.state == "busy" and not broken:
            self.records.ready(name)
        elif record.state == "busy":
            self._end(record, "broken")

    def recover(self) -> list[str]:
        """At the start of a process, alone with the store: give up the pods that were busy when the last one
        died, since its job may still run there. Returns their names.
        """
        busy = [record for record in self.records.live() if record.state == "busy"]
        for record in busy:
            self._end(record, "its owner died")
        return [record.name for record in busy]

    def spent(self) -> float:
        """Dollars for all pods so far."""
        return sum(record.cost(self._now()) for record in self.records.all())

    def rate(self) -> float:
        """Dollars an hour at the moment."""
        return sum(record.dollars for record in self.records.live())

    def committed(self) -> float:
        """Dollars spent if this process died now: what was, and every pod until its timer ends."""
        return self.spent() + sum(self._until_timer(record) for record in self.records.live())

    def close(self) -> None:
        """End all pods, those included that only the service knows. Raises when it can't be asked."""
        for record in self.records.live():
            self._end(record, "closed")
        for pod in self._provider.pods(self.config.prefix):
            self._provider.terminate(pod.id)
        self.reconcile()

    def _follow(self, record: PodRecord, pod: Pod) -> None:
        """One pod that both sides know."""
        if record.pod_id is None:
            self.records.created(record.name, pod.id, pod.dollars)
            record = self.records.get(record.name)
        if record.state == "ending" or pod.status in ("EXITED", "ERROR"):
            self._end(record, f"is {pod.status}")
        elif record.state == "booting":
            if pod.status == "RUNNING" and pod.ssh is not None and self._fit(pod):
                self.records.ready(record.name)
            elif self._now() - record.created >= self.config.boot_seconds:
                self._pass_over(record.gpu, record.cloud)
                self._end(record, "boot deadline")

    def _fit(self, pod: Pod) -> bool:
        try:
            return self._healthy is None or self._healthy(pod)
        except InfrastructureError:
            return False

    def _reset_timers(self) -> None:
        for record in self.records.live():
            if record.pod_id is not None and record.state in ("ready", "busy"):
                # What fails here is left to the next reconcile, or to the pod's own timer.
                with contextlib.suppress(InfrastructureError, OSError):
                    self._touch(record.pod_id)
                    self.records.touched(record.name)

    def _retire(self, wanted: int) -> None:
        now, live = self._now(), self.records.live()
        excess = len(live) - wanted
        for record in live:
            if record.idle_since is None:
                continue
            if now - record.created >= self.config.max_age:
                self._end(record, "old")
                excess -= 1
            elif excess > 0 and now - record.idle_since >= self.config.idle_seconds:
                self._end(record, "idle")
                excess -= 1
        # Idle ones first, then the dearest.
        for record in sorted(self.records.live(), key=lambda r: (r.state == "busy", -r.dollars, r.name)):
            if self.committed() <= self.config.budget:
                break
            self._end(record, "budget")

    def _grow(self, wanted: int) -> None:
        missing = min(wanted, self.config.size) - len(self.records.live())
        while missing > 0 and self._rent():
            missing -= 1

    def _rent(self) -> bool:
        """One more pod, of the first kind that works. False when none does, or none may be paid for."""
        for offer in list(self._choices()):
            if not self._affordable(offer):
                continue
            name = f"{self.config.prefix}{uuid.uuid4().hex[:12]}"
            self.records.intend(name, offer.gpu, offer.cloud, offer.dollars)
            try:
                pod = self._provider.create(self._request(name, offer))
            except (NoCapacity, Forbidden) as error:
                self.records.gone(name, type(error).__name__, self.records.get(name).created)
                self._pass_over(offer.gpu, offer.cloud)
                continue
            except AnswerLost:
                return True  # it counts as ours until the list shows whether it is
            except InfrastructureError as error:
                self.records.gone(name, type(error).__name__, self.records.get(name).created)
                raise
            self.records.created(name, pod.id, pod.dollars)
            return True
        return False

    def _request(self, name: str, offer: Offer) -> PodRequest:
        return PodRequest(
            name=name,
            image=self.config.image,
            gpu=offer.gpu,
            gpu_count=offer.count,
            cloud=offer.cloud,
            args=DEADMAN_ARGS,
            env={DEADMAN_VARIABLE: str(int(self.config.deadman_seconds))},
        )

    def _choices(self) -> Iterator[Offer]:
        now = self._now()
        if now - self._priced >= self.config.price_seconds:
            found = [
                offer
                for cloud in self.config.clouds
                for offer in self._provider.offers(cloud, self.config.gpus_per_pod)
                if offer.gpu in self.config.gpus
            ]
            self._offers = sorted(found, key=lambda offer: (offer.dollars, offer.gpu, offer.cloud))
            self._priced = now
        for offer in self._offers:
            if self._avoid.get((offer.gpu, offer.cloud), 0.0) <= now:
                yield offer

    def _affordable(self, offer: Offer) -> bool:
        longest = offer.dollars * (self.config.boot_seconds + self.config.deadman_seconds) / 3600.0
        return (
            self.rate() + offer.dollars <= self.config.max_rate
            and self.committed() + longest <= self.config.budget
        )

    def _until_timer(self, record: PodRecord) -> float:
        """What a pod may still cost without us, in dollars. One that boots starts its timer after that."""
        end = self.config.deadman_seconds
        if record.state in ("intended", "booting"):
            end += max(0.0, record.created + self.config.boot_seconds - self._now())
        return record.dollars * end / 3600.0

    def _pass_over(self, gpu: str, cloud: str) -> None:
        self._avoid[gpu, cloud] = self._now() + self.config.avoid_seconds

    def _end(self, record: PodRecord, reason: str) -> None:
        """Terminate. It counts as live until the service has confirmed it; reconcile tries again."""
        if record.pod_id is None:
            return  # its answer was lost: reconcile will adopt it or drop it
        self.records.ending(record.name, reason)
        if self._terminate(record.pod_id):
            self.records.gone(record.name, reason)

    def _terminate(self, pod_id: str) -> bool:
        try:
            self._provider.terminate(pod_id)
        except InfrastructureError:
            return False
        return True
