"""prime-rl rendering: valid against prime-rl's schema for hundreds of jobs, nothing of the job lost."""

from __future__ import annotations

import copy
import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ai_trains_ai.cli import main as ata
from ai_trains_ai.config import JobLimits
from ai_trains_ai.engine.bases import base_folder
from ai_trains_ai.errors import InfrastructureError, UsageError
from ai_trains_ai.jobs.prime_rl import PRIME_RL_COMMIT
from ai_trains_ai.jobs.render import HUB_MODELS, LOCAL_MODELS, model_name, render
from ai_trains_ai.jobs.spec import load_job
from ai_trains_ai.jobs.toml import dumps
from ai_trains_ai.jobs.whitelist import OPTIONS_OF_TYPE
from ai_trains_ai.tasks.registry import FAMILIES
from ai_trains_ai.tasks.starter import environment_source, job_toml
from ai_trains_ai.testing.jobs import sample_job
from ai_trains_ai.types import Job

SCHEMA = Path(__file__).resolve().parents[3] / "shared" / "prime_rl_config_schema.json"


def random_settings(rng: random.Random) -> dict[str, Any]:
    """A random valid choice of every option a job has, under prime-rl's dotted names."""
    group = rng.choice([2, 4, 8, 16])
    steps = rng.randint(1, 40)
    optim = rng.choice(list(OPTIONS_OF_TYPE["trainer.optim"]))
    scheduler = rng.choice(["constant", "linear", "cosine"])
    chosen: dict[str, Any] = {
        "max_steps": steps,
        "seq_len": rng.choice([256, 512, 1024]),
        "orchestrator.batch_size": group * rng.randint(1, 8),
        "orchestrator.group_size": group,
        "orchestrator.train.sampling.temperature": rng.choice([0.5, 1.0, 1.3]),
        "orchestrator.train.sampling.max_completion_tokens": rng.randint(1, 200),
        "trainer.optim.type": optim,
        "trainer.optim.lr": 10 ** rng.uniform(-6, -2),
        "trainer.optim.weight_decay": rng.choice([0.0, 0.01]),
        "trainer.optim.max_norm": rng.choice([0.5, 1.0, "None"]),
        "trainer.scheduler.type": scheduler,
        "trainer.loss.kl_tau": rng.choice([0.0, 1e-3]),
        "trainer.loss.dppo_mask_high": rng.choice([0.2, 0.4]),
    }
    if optim in ("adamw", "muon"):
        chosen["trainer.optim.betas2"] = rng.choice([0.95, 0.99])
    if optim == "sgd":
        chosen |= {"trainer.optim.momentum": 0.5, "trainer.optim.nesterov": rng.random() < 0.5}
    if scheduler == "linear":
        warmup = rng.randint(0, steps - 1)
        chosen |= {"trainer.scheduler.warmup_steps": warmup, "trainer.scheduler.decay_steps": steps - warmup}
    if scheduler == "cosine":
        chosen["trainer.scheduler.warmup_steps"] = rng.randint(0, steps - 1)
    if rng.random() < 0.4:
        chosen |= {"trainer.model.lora.rank": rng.choice([4, 16]), "trainer.model.lora.alpha": 32.0}
    return chosen


def random_job(seed: int) -> tuple[Job, dict[str, Any]]:
    rng = random.Random(seed)
    family = rng.choice(list(FAMILIES))
    chosen = random_settings(rng)
    toml = job_toml(family, rng.choice([*LOCAL_MODELS, *HUB_MODELS]), chosen)
    toml += f"\n[environment]\nnum_tasks = {rng.randint(64, 500)}\n"
    source = environment_source(family, levels=(1, rng.randint(2, 5)))
    job, findings = load_job({"job.toml": toml.encode(), "environment.py": source.encode()}, JobLimits())
    assert job is not None, findings
    return job, chosen


def without_none(value: Any) -> Any:
    """As prime-rl reads its TOML: "None" is null."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_none(item) for item in value]
    return None if value == "None" else value


@pytest.fixture(scope="module")
def validator() -> Any:
    """Validates against prime-rl's schema. Its EnvConfig shows the class before verifiers narrows it: the one
    agent of a single-agent environment stands in the default alone, so its keys are taken from there.
    """
    jsonschema = pytest.importorskip("jsonschema")
    if not SCHEMA.exists():
        pytest.skip(f"prime-rl's schema at commit {PRIME_RL_COMMIT} is not at {SCHEMA}")
    schema = json.loads(SCHEMA.read_text())
    definitions = schema["$defs"]
    agent = definitions["TrainSourceConfig"]["properties"]["env"]["default"]["agent"]
    runtime = {"type": "object", "additionalProperties": False, "properties": {"type": {"type": "string"}}}
    harness = {"type": "object", "additionalProperties": False, "properties": {"id": {"type": "string"}}}
    assert {"harness", "runtime"} <= agent.keys()
    definitions["EnvConfig"]["properties"]["agent"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"harness": harness, "runtime": runtime},
    }
    return jsonschema.Draft202012Validator(schema)


def test_hundreds_of_jobs_render_to_what_prime_rl_accepts(validator: Any) -> None:
    optimizers, schedulers = set(), set()
    for seed in range(200):
        job, chosen = random_job(seed)
        rendered = render(job)
        document = without_none(tomllib.loads(rendered.files["rl.toml"].decode()))
        problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
        assert problems == [], (seed, problems)
        for dotted, value in chosen.items():
            node = document
            for part in dotted.split("."):
                node = node[part]
            assert node == without_none(value), dotted
        optimizers.add(chosen["trainer.optim.type"])
        schedulers.add(chosen["trainer.scheduler.type"])
    assert len(optimizers) == 4
    assert len(schedulers) == 3


def test_the_schema_test_can_fail(validator: Any) -> None:
    config = copy.deepcopy(dict(render(sample_job()).config))
    assert validator.is_valid(config)
    for path, value in (
        ("orchestrator.rollouts_per_example", 4),
        ("trainer.optim.momentum", 0.9),
        ("weight_broadcast.type", "carrier_pigeon"),
        ("max_steps", "ten"),
    ):
        broken = copy.deepcopy(config)
        node = broken
        *parts, last = path.split(".")
        for part in parts:
            node = node[part]
        node[last] = value
        assert not validator.is_valid(broken), path


def test_what_the_job_must_not_choose_is_injected() -> None:
    config = render(sample_job()).config
    assert config["weight_broadcast"] == {"type": "filesystem"}
    (source,) = config["orchestrator"]["train"]["source"]
    assert source["env"]["agent"]["runtime"] == {"type": "subprocess"}
    assert source["env"]["agent"]["harness"]["id"] == source["env"]["taskset"]["id"]
    assert "ckpt" not in config
    assert config["deployment"]["num_train_gpus"] + config["deployment"]["num_infer_gpus"] == 2


def test_the_package_holds_the_jobs_files_untouched_and_its_arguments() -> None:
    job = sample_job(toml="[environment]\nnum_tasks = 77\n", files={"helper.py": b"X = 1\n"})
    rendered = render(job)
    package = f"ata_env_{job.content_sha256[:16]}"
    inside = f"environment/{package}/"
    assert rendered.files[f"{inside}job/environment.py"] == job.files["environment.py"]
    assert rendered.files[f"{inside}job/helper.py"] == b"X = 1\n"
    assert f"{inside}job/job.toml" not in rendered.files
    assert json.loads(rendered.files[f"{inside}arguments.json"]) == {"num_tasks": 77}
    project = tomllib.loads(rendered.files["environment/pyproject.toml"].decode())
    assert project["tool"]["setuptools"]["packages"] == [package]
    for path, content in rendered.files.items():
        if path.endswith(".py"):
            compile(content, path, "exec")


def test_rendering_is_deterministic_and_names_where_the_weights_will_be() -> None:
    job = sample_job(toml="[prime_rl]\nmax_steps = 7\n")
    assert render(job) == render(job)
    assert render(job).final_weights == "outputs/job/broadcasts/step_7"
    assert render(job).local_model == "nano-0.2m"
    assert PRIME_RL_COMMIT in render(job).files["run.sh"].decode()


def test_models_that_prime_rl_cannot_be_given_are_refused() -> None:
    assert model_name("qwen3-1.7b") == "Qwen/Qwen3-1.7B"
    with pytest.raises(UsageError, match="use one of nano"):
        model_name("gpt-2")


def render_command(tmp_path: Path, base: str) -> tuple[int, Path]:
    source, out = tmp_path / "job", tmp_path / "out"
    source.mkdir()
    (source / "job.toml").write_text(job_toml("ledger", base, {"max_steps": 3}))
    (source / "environment.py").write_text(environment_source("ledger"))
    arguments = ["job", "render", str(source), "--out", str(out), "--json"]
    return ata.main(arguments, standalone_mode=False), out


def test_the_command_writes_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = render_command(tmp_path, "qwen3-0.6b")
    assert code == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["final_weights"] == "outputs/job/broadcasts/step_3"
    written = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert answer["files"] == written
    assert tomllib.loads((out / "rl.toml").read_text())["model"]["name"] == "Qwen/Qwen3-0.6B"
    again = ["job", "render", str(tmp_path / "job"), "--out", str(out)]
    assert ata.main(again, standalone_mode=False) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_tiny_base_comes_along(tmp_path: Path) -> None:
    try:
        base = base_folder("nano-0.2m")
    except InfrastructureError as error:
        pytest.skip(str(error))
    code, out = render_command(tmp_path, "nano-0.2m")
    assert code == 0
    copied = out / "models" / "nano-0.2m" / "model.safetensors"
    assert copied.read_bytes() == (base / "model.safetensors").read_bytes()


def test_a_broken_job_is_its_own_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_text('family = "ledger"\nbase_model = "qwen3-0.6b"\n[prime_rl]\nstep = 3\n')
    (tmp_path / "environment.py").write_text(environment_source("ledger"))
    out = tmp_path / "out"
    assert ata.main(["job", "render", str(tmp_path), "--out", str(out)], standalone_mode=False) == 1
    assert "max_steps" in capsys.readouterr().err
    assert not out.exists()


scalars = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
tables: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(keys, st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=3),
    lambda inner: st.dictionaries(
        keys, st.one_of(scalars, inner, st.lists(inner, min_size=1, max_size=2)), max_size=3
    ),
    max_leaves=8,
)


@given(tables)
@settings(max_examples=60, deadline=None)
def test_toml_reads_back_equal(document: dict[str, Any]) -> None:
    assert tomllib.loads(dumps(document)) == document
