"""The server's main path: each request of the API to work for the scheduler, and to a future.

    handler (app.py) ─ Service method ─ Scheduler ─ worker thread: TrainedModel, sample_batch, CheckpointStore
                              └─ {"request_id": …} at once; the result through retrieve_future

Request ids are derived from the model and its sequence number, so a request that is sent twice (its answer
got lost) runs once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ai_trains_ai.engine.matrix import Precision
from ai_trains_ai.errors import UsageError
from ai_trains_ai.seeds import derive
from ai_trains_ai.tinker_server import requests as body
from ai_trains_ai.tinker_server import training
from ai_trains_ai.tinker_server.adapter import AdapterConfig
from ai_trains_ai.tinker_server.checkpoints import CheckpointStore, SaveRequest
from ai_trains_ai.tinker_server.futures import Future, FutureStore, Json, Outcome, Proto
from ai_trains_ai.tinker_server.lookup import loadable, sampler_weights
from ai_trains_ai.tinker_server.messages import ForwardBackward
from ai_trains_ai.tinker_server.models import BaseModels, SamplerWeights
from ai_trains_ai.tinker_server.sample_requests import sample_all
from ai_trains_ai.tinker_server.scheduler import BatchJob, Job, Scheduler
from ai_trains_ai.tinker_server.state import ModelEntry, SamplerEntry, State

SWEEP_SECONDS = 10.0


class Service:
    """folder: where checkpoints are kept. seed: of adapters and samples for which the client names none."""

    def __init__(
        self, bases: BaseModels, folder: Path, *, precision: Precision = "fp32", seed: int = 0
    ) -> None:
        self.bases = bases
        self.checkpoints = CheckpointStore(folder)
        self.state = State()
        self.futures = FutureStore()
        self.scheduler = Scheduler()
        self._precision = precision
        self._seed = seed

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.scheduler.run())
            tasks.create_task(self._sweep())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.futures.sweep()
            for session_id in self.state.silent_sessions():
                self.end_session(session_id)

    def end_session(self, session_id: str) -> None:
        """Free everything of a session that is not on disk."""
        self.futures.drop_session(session_id)
        gone = [
            s.weights.key for s in self.state.samplers.values() if s.session_id == session_id and s.weights
        ]
        self.state.close_session(session_id)
        kept = {sampler.weights.key for sampler in self.state.samplers.values() if sampler.weights}
        for key in set(gone) - kept:
            self.bases.forget(key)

    def known_runs(self) -> list[str]:
        """Ids of live models and of those that left checkpoints, newest first."""
        live = [*self.state.models][::-1]
        return list(dict.fromkeys([*live, *(found.run for found in self.checkpoints.all())]))

    # Training.

    def create_model(self, request: body.CreateModel) -> Mapping[str, Any]:
        self.state.session(request.session_id)
        if request.lora_config is None:
            raise UsageError("lora_config is missing: this server trains LoRA adapters only")
        lora = request.lora_config
        entry = self._new_model(
            request.session_id,
            request.model_seq_id,
            self.bases.name(request.base_model),
            AdapterConfig(lora.rank, lora.train_attn, lora.train_mlp),
            request.user_metadata,
        )
        seed = derive(self._seed, "adapter", entry.id) if lora.seed is None else lora.seed

        def run() -> Outcome:
            base = self.bases.load(entry.base_model)
            entry.trained = training.fresh(base.model, entry.adapter, seed=seed, precision=self._precision)
            return Json({"type": "create_model", "model_id": entry.id})

        return self._promise(
            f"{entry.id}:create", entry.session_id, lambda f: self.scheduler.submit(Job(f, run))
        )

    def _new_model(
        self,
        session_id: str,
        model_seq_id: int,
        base_model: str,
        adapter: AdapterConfig,
        user_metadata: Mapping[str, Any] | None,
    ) -> ModelEntry:
        """The entry; the existing one when the request was sent twice."""
        model_id = f"{session_id}:train:{model_seq_id}"
        texts = None if user_metadata is None else {key: str(value) for key, value in user_metadata.items()}
        entry = ModelEntry(model_id, session_id, base_model, adapter, texts)
        return self.state.models.setdefault(model_id, entry)

    def forward_backward(self, request: ForwardBackward) -> Mapping[str, Any]:
        entry = self.state.model(request.model_id)
        return self._in_turn(entry, request.seq_id, lambda: Proto(entry.ready().forward_backward(request)))

    def optim_step(self, request: body.OptimStep) -> Mapping[str, Any]:
        entry = self.state.model(request.model_id)

        def run() -> Outcome:
            settings = training.AdamSettings(**request.adam_params.model_dump(exclude={"type"}))
            return Json({"metrics": entry.ready().optim_step(settings)})

        return self._in_turn(entry, request.seq_id, run)

    def skip(self, model_id: str, seq_id: int) -> None:
        """A request of this number was refused unread: the later ones must not wait for it."""
        entry = self.state.models.get(model_id)
        if entry is not None and seq_id >= entry.next_seq:
            entry.in_turn(seq_id, lambda: None)

    # Checkpoints.

    def save_weights(self, request: body.SaveWeights) -> Mapping[str, Any]:
        entry = self.state.model(request.model_id)

        def run() -> Outcome:
            trained = entry.ready()
            saved = self.checkpoints.save(
                self._save_request(entry, "training", request.path, request, overwrite=request.overwrite),
                trained.adapter.tensors(trained.model),
                trained.optimizer_tensors(),
            )
            return Json({"type": "save_weights", "path": saved.path})

        return self._in_turn(entry, request.seq_id, run)

    def save_weights_for_sampler(self, request: body.SaveWeightsForSampler) -> Mapping[str, Any]:
        """With a path: a checkpoint. Without: a sampler of this session, in memory."""
        entry = self.state.model(request.model_id)
        if request.path is not None:
            return self._in_turn(entry, request.seq_id, lambda: self._save_sampler_checkpoint(entry, request))
        if request.sampling_session_seq_id is None:
            raise UsageError("save_weights_for_sampler needs a path or a sampling_session_seq_id")
        sampler_id = f"{entry.session_id}:sample:{request.sampling_session_seq_id}"
        sampler = SamplerEntry(sampler_id, entry.session_id, entry.base_model, None, None)
        sampler = self.state.samplers.setdefault(sampler_id, sampler)

        def run() -> Outcome:
            trained = entry.ready()
            tensors = trained.adapter.tensors(trained.model)
            sampler.weights = SamplerWeights(sampler_id, entry.base_model, (entry.adapter, tensors))
            return Json({"type": "save_weights_for_sampler", "sampling_session_id": sampler_id})

        return self._in_turn(entry, request.seq_id, run)

    def _save_sampler_checkpoint(self, entry: ModelEntry, request: body.SaveWeightsForSampler) -> Outcome:
        trained = entry.ready()
        # A name that is saved again gets the new weights, and so do samplers created from then on.
        saved = self.checkpoints.save(
            self._save_request(entry, "sampler", request.path, request, overwrite=True),
            trained.adapter.tensors(trained.model),
            None,
        )
        return Json({"type": "save_weights_for_sampler", "path": saved.path})

    def _save_request(
        self,
        entry: ModelEntry,
        kind: Any,
        name: str | None,
        request: body.SaveWeights | body.SaveWeightsForSampler,
        *,
        overwrite: bool,
    ) -> SaveRequest:
        entry.saved += 1
        return SaveRequest(
            run=entry.id,
            kind=kind,
            name=name or f"checkpoint-{entry.saved:06d}",
            base_model=entry.base_model,
            adapter=entry.adapter,
            overwrite=overwrite,
            ttl_seconds=request.ttl_seconds,
            user_metadata=request.user_metadata,
        )

    def load_weights(self, request: body.LoadWeights) -> Mapping[str, Any]:
        """Into an existing model (model_id), or as a new one (session_id)."""
        if request.model_id is not None:
            entry = self.state.model(request.model_id)
            return self._in_turn(entry, request.seq_id, lambda: self._load(entry, request))
        if request.session_id is None or request.model_seq_id is None:
            raise UsageError("load_weights needs a model_id, or a session_id with a model_seq_id")
        self.state.session(request.session_id)
        found = loadable(self.bases, self.checkpoints, request)
        entry = self._new_model(
            request.session_id, request.model_seq_id, found.base_model, found.adapter, request.user_metadata
        )

        def run() -> Outcome:
            base = self.bases.load(entry.base_model)
            entry.trained = training.fresh(base.model, entry.adapter, seed=0, precision=self._precision)
            return self._load(entry, request)

        return self._promise(
            f"{entry.id}:create", entry.session_id, lambda f: self.scheduler.submit(Job(f, run))
        )

    def _load(self, entry: ModelEntry, request: body.LoadWeights) -> Outcome:
        found = loadable(self.bases, self.checkpoints, request)
        if (entry.base_model, entry.adapter) != (found.base_model, found.adapter):
            raise UsageError(
                f"{found.path} is of {found.base_model} with {found.adapter}, the model is of "
                f"{entry.base_model} with {entry.adapter}"
            )
        adapter, state = self.checkpoints.load(found)
        entry.ready().load(adapter, state if request.optimizer else None)
        return Json({"type": "load_weights", "path": found.path, "model_id": entry.id})

    # Sampling.

    def create_sampling_session(self, request: body.CreateSamplingSession) -> Mapping[str, Any]:
        self.state.session(request.session_id)
        sampler_id = f"{request.session_id}:sample:{request.sampling_session_seq_id}"
        if sampler_id not in self.state.samplers:
            weights = sampler_weights(self.bases, self.checkpoints, request.base_model, request.model_path)
            self.state.samplers[sampler_id] = SamplerEntry(
                sampler_id, request.session_id, weights.base_model, request.model_path, weights
            )
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    def sample(self, request: body.Sample) -> Mapping[str, Any]:
        if request.sampling_session_id is None or request.seq_id is None:
            raise UsageError(
                "asample needs a sampling_session_id (from create_sampling_session) and a seq_id"
            )
        if request.base_model is not None or request.model_path is not None:
            raise UsageError(
                "asample takes its model from the sampling session: leave out base_model and model_path"
            )
        sampler = self.state.sampler(request.sampling_session_id)
        if sampler.weights is None:
            raise UsageError(f"sampler {sampler.id} has no weights yet: its save has not succeeded")
        weights, request_id = sampler.weights, f"{sampler.id}:{request.seq_id}"
        params, count = request.sampling_params, request.num_samples

        def start(future: Future) -> None:
            alone = request.prompt_logprobs or request.topk_prompt_logprobs
            key = (weights.key, params.top_k, params.top_p, request_id if alone else None)
            self.scheduler.submit(BatchJob(future, key, count, (sampler.id, request), run))

        def run(payloads: Sequence[tuple[str, body.Sample]]) -> list[Outcome]:
            return sample_all(self.bases, weights, payloads, self._seed)

        answer = self._promise(request_id, sampler.session_id, start)
        return {**answer, "sample_sequence_ids": [f"{request_id}:{index}" for index in range(count)]}

    # Futures.

    def _promise(
        self, request_id: str, session_id: str, start: Callable[[Future], None]
    ) -> Mapping[str, Any]:
        """Start the work unless the same request has been started before."""
        if self.futures.get(request_id) is None:
            start(self.futures.create(request_id, session_id))
        return {"request_id": request_id}

    def _in_turn(
        self, entry: ModelEntry, seq_id: int | None, run: Callable[[], Outcome]
    ) -> Mapping[str, Any]:
        """Work of a model, in the order of its sequence numbers."""
        seq = entry.next_seq if seq_id is None else seq_id
        if seq < 1:
            raise UsageError(f"seq_id is {seq}, it starts at 1")
        request_id = f"{entry.id}:{seq}"
        if seq < entry.next_seq and self.futures.get(request_id) is None:
            raise UsageError(f"seq_id {seq} of {entry.id} has been used; the next is {entry.next_seq}")

        def start(future: Future) -> None:
            entry.in_turn(seq, lambda: self.scheduler.submit(Job(future, run)))

        return {**self._promise(request_id, entry.session_id, start), "model_id": entry.id}
