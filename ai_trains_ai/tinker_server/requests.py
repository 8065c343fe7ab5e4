"""JSON bodies of the Tinker API, as SDK 0.38 sends them. An unknown field is refused: it would be ignored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    type: str | None = None


class CreateSession(Body):
    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class SessionBody(Body):
    session_id: str


class LoraConfig(Body):
    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(Body):
    type: Literal["adamw"] = "adamw"


class CreateModel(Body):
    session_id: str
    model_seq_id: int
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()


class ModelBody(Body):
    model_id: str


class AdamParams(Body):
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimStep(ModelBody):
    adam_params: AdamParams
    seq_id: int | None = None


class SaveWeights(ModelBody):
    path: str | None = None
    seq_id: int | None = None
    ttl_seconds: int | None = Field(default=None, ge=1)
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveWeightsForSampler(ModelBody):
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot"] = "snapshot"
    seq_id: int | None = None
    ttl_seconds: int | None = Field(default=None, ge=1)
    user_metadata: dict[str, str] | None = None


class LoadWeights(Body):
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None


class CreateSamplingSession(Body):
    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class TextChunk(Body):
    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[int]


class Prompt(Body):
    chunks: list[TextChunk]


class SamplingParams(Body):
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)


class Sample(Body):
    num_samples: int = Field(default=1, ge=1, le=1024)
    prompt: Prompt
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=100)
    topk_sample_logprobs: Literal[0] = 0
    target_prompt_logprobs: None = None
    prompt_alt_tokens_k: Literal[0] = 0
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    record_stability_info: Literal[False] | None = None


class RetrieveFuture(Body):
    request_id: str
    allow_metadata_only: bool = False


class CancelFuture(Body):
    request_id: str


class WeightsInfo(Body):
    tinker_path: str


class Ttl(Body):
    ttl_seconds: int | None = Field(default=None, ge=1)
