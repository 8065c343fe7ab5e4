"""What the server knows of its clients: sessions, and the models and samplers that belong to them.

    session ─┬─ models    a request of a model runs in the order of its seq_id, whatever order it arrives in
             └─ samplers  a snapshot of weights each

A session ends when its client finishes it or its heartbeats stop; everything that belongs to it goes with it,
checkpoints on disk excepted. Everything here is touched on the event loop alone, `ModelEntry.trained`
excepted, which belongs to the worker thread.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ai_trains_ai.errors import UsageError
from ai_trains_ai.tinker_server.adapter import AdapterConfig
from ai_trains_ai.tinker_server.models import SamplerWeights
from ai_trains_ai.tinker_server.training import TrainedModel

SILENCE_SECONDS = 600.0
"""Without a heartbeat (the SDK sends one every ten seconds) a session is taken for dead."""


class NotFoundError(UsageError):
    """Answered with 404."""


@dataclass(slots=True)
class ModelEntry:
    """next_seq: the sequence number that may run next; waiting: work that came before its turn."""

    id: str
    session_id: str
    base_model: str
    adapter: AdapterConfig
    user_metadata: Mapping[str, str] | None
    next_seq: int = 1
    waiting: dict[int, Callable[[], None]] = field(default_factory=dict)
    trained: TrainedModel | None = None
    saved: int = 0
    last_request: float = field(default_factory=time.time)

    def in_turn(self, seq_id: int, start: Callable[[], None]) -> None:
        """Run `start` once all smaller sequence numbers have been started."""
        self.last_request = time.time()
        self.waiting[seq_id] = start
        while (ready := self.waiting.pop(self.next_seq, None)) is not None:
            self.next_seq += 1
            ready()

    def ready(self) -> TrainedModel:
        """On the worker thread. Raises UsageError when the model's creation failed."""
        if self.trained is None:
            raise UsageError(f"model {self.id} was not created: see the error of its creation")
        return self.trained


@dataclass(slots=True)
class SamplerEntry:
    """weights: None until the save that it stands for has run."""

    id: str
    session_id: str
    base_model: str
    model_path: str | None
    weights: SamplerWeights | None


@dataclass(slots=True)
class Session:
    id: str
    last_seen: float = field(default_factory=time.monotonic)
    display_name: str | None = None
    user_metadata: Mapping[str, str] | None = None


class State:
    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.models: dict[str, ModelEntry] = {}
        self.samplers: dict[str, SamplerEntry] = {}

    def open_session(self, display_name: str | None, user_metadata: Mapping[str, object] | None) -> Session:
        session = Session(str(uuid.uuid4()), display_name=display_name, user_metadata=_texts(user_metadata))
        self.sessions[session.id] = session
        return session

    def session(self, session_id: str) -> Session:
        """Raises NotFoundError, also for a session that has ended. Counts as a sign of life."""
        if session_id not in self.sessions:
            raise NotFoundError(f"session {session_id} does not exist or has ended")
        session = self.sessions[session_id]
        session.last_seen = time.monotonic()
        return session

    def model(self, model_id: str) -> ModelEntry:
        if model_id not in self.models:
            raise NotFoundError(f"model {model_id} does not exist, or its session has ended")
        return self.models[model_id]

    def sampler(self, sampler_id: str) -> SamplerEntry:
        if sampler_id not in self.samplers:
            raise NotFoundError(f"sampler {sampler_id} does not exist, or its session has ended")
        return self.samplers[sampler_id]

    def close_session(self, session_id: str) -> None:
        """Forget the session with its models and samplers."""
        self.sessions.pop(session_id, None)
        self.models = {key: entry for key, entry in self.models.items() if entry.session_id != session_id}
        self.samplers = {key: entry for key, entry in self.samplers.items() if entry.session_id != session_id}

    def silent_sessions(self) -> list[str]:
        limit = time.monotonic() - SILENCE_SECONDS
        return [session.id for session in self.sessions.values() if session.last_seen < limit]


def _texts(metadata: Mapping[str, object] | None) -> Mapping[str, str] | None:
    return None if metadata is None else {key: str(value) for key, value in metadata.items()}
