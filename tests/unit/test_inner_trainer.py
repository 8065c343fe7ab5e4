"""The inner GRPO loop on a random two-layer model with rewards that live in the test's process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ai_trains_ai.algo.advantages import batch_advantages
from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.engine.config import ModelConfig
from ai_trains_ai.engine.load import hf_tensors, load_model, weights_sha256
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.sampling import Completion
from ai_trains_ai.engine.tokenizer import Tokenizer
from ai_trains_ai.errors import AgentError, InfrastructureError
from ai_trains_ai.inner.rollouts import Prompt, PromptQueue, sample_groups, score_groups
from ai_trains_ai.inner.trainer import QUIET_STEPS, train
from ai_trains_ai.inner.update import Policy, rows_at_once
from ai_trains_ai.seeds import derive
from ai_trains_ai.testing.models import write_random_model
from ai_trains_ai.testing.rewards import FakeRewards
from ai_trains_ai.types import EnvTask, InnerStep, TrainingRun

PROMPTS = [f"say {letter}" for letter in "abcdefghij"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "tiny"
    write_random_model(folder)
    return folder


def config(**changes: object) -> PrimeRlConfig:
    """8 groups of 4, completions of at most 6 tokens, 3 steps; dotted keys change single settings."""
    data: dict[str, object] = {
        "max_steps": 3,
        "seq_len": 64,
        "orchestrator": {
            "batch_size": 32,
            "group_size": 4,
            "train": {"sampling": {"max_completion_tokens": 6}},
        },
        "trainer": {"optim": {"lr": 0.003}},
    }
    for path, value in changes.items():
        table = data
        *parents, last = path.split("__")
        for name in parents:
            table = table.setdefault(name, {})  # type: ignore[assignment]
        table[last] = value
    return PrimeRlConfig.model_validate(data)


def share_of_e(_task: EnvTask, text: str) -> float:
    return text.count("e") / max(len(text), 1)


def run(
    base: Path,
    out: Path,
    settings: PrimeRlConfig,
    reward: Callable[[EnvTask, str], float] | FakeRewards = share_of_e,
    *,
    model: Model | None = None,
    seed: int = 0,
    on_step: Callable[[InnerStep], None] = lambda _step: None,
    seconds_limit: float = math.inf,
) -> TrainingRun:
    return train(
        model or load_model(base),
        Tokenizer.from_folder(base),
        reward if isinstance(reward, FakeRewards) else FakeRewards(PROMPTS, reward),
        settings,
        seed=seed,
        out=out,
        on_step=on_step,
        tokenizer_folder=base,
        seconds_limit=seconds_limit,
    )


def test_it_learns(base: Path, tmp_path: Path) -> None:
    seen: list[InnerStep] = []
    result = run(base, tmp_path / "out", config(max_steps=30, trainer__optim__lr=0.01), on_step=seen.append)
    assert result.steps == tuple(seen)
    assert result.steps[0].inner_reward < 0.1
    assert result.steps[-1].inner_reward > 0.6
    assert result.steps[-1].entropy < 0.7 * result.steps[0].entropy
    assert max(step.sampler_kl for step in result.steps) < 1e-8, (
        "one update a batch: p and q differ by rounding"
    )
    assert result.early_stop is None
    assert result.tokens == sum(step.tokens for step in result.steps)


def test_same_seed_same_weights(base: Path, tmp_path: Path) -> None:
    first, again = (run(base, tmp_path / name, config(), seed=7) for name in ("a", "b"))
    assert first.weights_sha256 == again.weights_sha256
    assert [replace(s, seconds=0.0) for s in first.steps] == [replace(s, seconds=0.0) for s in again.steps]
    assert first.rollouts == again.rollouts
    assert run(base, tmp_path / "c", config(), seed=8).weights_sha256 != first.weights_sha256


def test_the_checkpoint_is_a_whole_base_folder(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").write_text("left by a try that died")
    (out / "stray").write_text("")
    result = run(base, out, config())
    assert result.checkpoint == str(out)
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert weights_sha256(out) == weights_sha256(load_model(out)) == result.weights_sha256
    assert result.weights_sha256 != weights_sha256(base)
    assert Tokenizer.from_folder(out).encode("say e") == Tokenizer.from_folder(base).encode("say e")


def first_batch(base: Path, settings: PrimeRlConfig) -> list[list[Completion]]:
    """What `train` with seed 0 samples in its first step, sampled here once more."""
    model, tokenizer = load_model(base), Tokenizer.from_folder(base)
    tasks = FakeRewards(PROMPTS, share_of_e).tasks
    limit = settings.seq_len
    queue = PromptQueue(tasks, tokenizer, length_limit=limit, seed=derive(0, "inner", "tasks"))
    count = settings.orchestrator.batch_size // settings.orchestrator.group_size
    seed = derive(0, "inner", 0)
    return sample_groups(model, tokenizer, queue.draw(count), settings, length_limit=limit, seed=seed)


def test_the_loss_of_an_on_policy_step_by_hand(base: Path, tmp_path: Path) -> None:
    """Ratios are 1, so the loss is −Σ advantage × length / Σ length over rollouts with an advantage."""
    tokenizer = Tokenizer.from_folder(base)
    settings = config(max_steps=1)
    step = run(base, tmp_path / "out", settings, lambda _task, text: float(len(text) % 3)).steps[0]
    numerator = denominator = skipped = 0.0
    sampled = first_batch(base, settings)
    for group in sampled:
        values = [float(len(tokenizer.decode(c.tokens)) % 3) for c in group]
        mean = sum(values) / 4
        skipped += len(set(values)) == 1
        numerator += sum((v - mean) * len(c.tokens) for v, c in zip(values, group, strict=True))
        denominator += sum(len(c.tokens) for v, c in zip(values, group, strict=True) if v != mean)
    assert 0 < skipped < 8, "the case needs groups of both kinds"
    assert (step.groups, step.skipped_groups) == (8, skipped)
    assert step.loss == pytest.approx(-numerator / denominator, abs=1e-6)
    assert step.grad_norm > 0
    assert step.clip_share == 0.0
    everything = [c for group in sampled for c in group]
    assert step.tokens == sum(len(c.tokens) for c in everything)
    assert step.entropy == pytest.approx(-sum(sum(c.logprobs) for c in everything) / step.tokens)
    assert step.truncated_share == sum(c.stop_reason == "length" for c in everything) / 32


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_a_constant_reward_ends_early_and_gives_the_base_back(
    base: Path, tmp_path: Path, constant: float
) -> None:
    result = run(base, tmp_path / "out", config(max_steps=50), lambda _task, _text: constant)
    assert len(result.steps) == QUIET_STEPS  # of 8 groups each
    assert result.early_stop is not None
    assert "no signal" in result.early_stop
    assert all((s.skipped_groups, s.loss, s.grad_norm) == (8, 0.0, 0.0) for s in result.steps)
    assert result.weights_sha256 == weights_sha256(base)
    assert all(rollout.inner_reward == constant for rollout in result.rollouts)


def test_groups_of_one_carry_no_signal(base: Path, tmp_path: Path) -> None:
    settings = config(max_steps=50, orchestrator__group_size=1, orchestrator__batch_size=2)
    result = run(base, tmp_path / "out", settings)
    assert result.early_stop is not None
    assert len(result.steps) == 12  # 24 groups, two a step
    assert result.weights_sha256 == weights_sha256(base)


def test_quiet_steps_between_learning_ones_do_not_end_the_run(base: Path, tmp_path: Path) -> None:
    calls = Counter[str]()

    def now_and_then(_task: EnvTask, text: str) -> float:
        calls["all"] += 1
        return share_of_e(_task, text) if (calls["all"] - 1) // 32 % 3 == 2 else 0.5

    result = run(base, tmp_path / "out", config(max_steps=9), now_and_then)
    assert [step.skipped_groups == 8 for step in result.steps] == [True, True, False] * 3
    assert result.early_stop is None


def test_what_the_environment_reports_ends_the_run_and_writes_nothing(base: Path, tmp_path: Path) -> None:
    calls = Counter[str]()

    def broken(_task: EnvTask, text: str) -> float:
        calls["all"] += 1
        if calls["all"] > 40:
            raise AgentError("reward_error", "every rollout raised KeyError: 'answer'", "define answer")
        return share_of_e(_task, text)

    steps: list[InnerStep] = []
    with pytest.raises(AgentError, match="KeyError: 'answer'"):
        run(base, tmp_path / "out", config(max_steps=50), broken, on_step=steps.append)
    assert len(steps) == 1, "the failure comes with the first batch that shows it"
    assert list(tmp_path.iterdir()) == []


def test_every_task_is_seen_once_an_epoch(base: Path, tmp_path: Path) -> None:
    rewards = FakeRewards(PROMPTS, share_of_e)
    run(base, tmp_path / "out", config(max_steps=5), rewards)
    drawn = [index for batch in rewards.batches for index, _ in batch[::4]]
    assert len(drawn) == 40
    for start in range(0, 40, 10):
        assert sorted(drawn[start : start + 10]) == list(range(10))


def test_prompts_without_room_are_passed_over(base: Path, tmp_path: Path) -> None:
    rewards = FakeRewards([*PROMPTS, "x" * 200], share_of_e)
    result = run(base, tmp_path / "out", config(max_steps=4), rewards)  # 32 draws of 10 tasks that fit
    assert {index for batch in rewards.batches for index, _ in batch} == set(range(10))
    assert sum(step.overlong_prompts for step in result.steps) in (3, 4)  # once an epoch
    with pytest.raises(AgentError, match=r"shortest has 52 tokens.*seq_len") as caught:
        run(base, tmp_path / "out", config(seq_len=52), FakeRewards(["x" * 60, "y" * 50], share_of_e))
    assert caught.value.check == "seq_len"


def test_completions_are_cut_at_seq_len(base: Path, tmp_path: Path) -> None:
    """Prompts have 7 tokens (5 letters and 2 marks), so seq_len 16 leaves 9 for the completion."""
    settings = config(max_steps=1, seq_len=16, orchestrator__train__sampling__max_completion_tokens=64)
    sampled = [c for group in first_batch(base, settings) for c in group]
    assert max(len(c.tokens) for c in sampled) == 9
    assert all(c.stop_reason == "length" for c in sampled if len(c.tokens) == 9)
    step = run(base, tmp_path / "out", settings).steps[0]
    assert step.tokens == sum(len(c.tokens) for c in sampled)
    assert step.truncated_share == sum(c.stop_reason == "length" for c in sampled) / 32


def test_a_shorter_room_cuts_only_the_longer_prompts_completions(base: Path) -> None:
    tokenizer = Tokenizer.from_folder(base)
    prompts = [Prompt(EnvTask(0, "a"), tokenizer.encode_prompt(text)) for text in ("a", "a" * 30)]
    settings = config(seq_len=40, orchestrator__train__sampling__max_completion_tokens=20)
    model = load_model(base)
    short, long = sample_groups(model, tokenizer, prompts, settings, length_limit=40, seed=1)
    assert max(len(c.tokens) for c in long) == 8  # 40 − 32
    assert max(len(c.tokens) for c in short) == 20
    assert all(len(c.tokens) == len(c.logprobs) for c in (*short, *long))


def test_all_completions_truncated(base: Path, tmp_path: Path) -> None:
    settings = config(orchestrator__train__sampling__max_completion_tokens=1)
    result = run(base, tmp_path / "out", settings, lambda _task, text: float(text < "n"))
    assert result.steps[0].truncated_share > 0.9
    assert all(math.isfinite(step.loss) and math.isfinite(step.grad_norm) for step in result.steps)


def test_micro_batches_change_nothing_but_rounding(base: Path) -> None:
    settings = config(trainer__optim__type="sgd", trainer__optim__lr=0.1)
    queue = PromptQueue(
        FakeRewards(PROMPTS, share_of_e).tasks, Tokenizer.from_folder(base), length_limit=64, seed=0
    )
    prompts = queue.draw(8)
    sampled = sample_groups(
        load_model(base), Tokenizer.from_folder(base), prompts, settings, length_limit=64, seed=0
    )
    rewards = FakeRewards(PROMPTS, lambda _task, text: float(len(text) % 3))
    groups = score_groups(Tokenizer.from_folder(base), rewards, prompts, sampled)
    advantages = batch_advantages([group.rewards for group in groups]).by_group
    policies = [Policy(load_model(base), settings, seed=0, rows=rows) for rows in (16, 4096)]
    parts, whole = (policy.update(groups, advantages, step=0) for policy in policies)
    assert parts.loss == pytest.approx(whole.loss, abs=1e-6)
    assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    assert parts.stats.tokens == whole.stats.tokens
    assert parts.stats.sampler_kl == pytest.approx(whole.stats.sampler_kl, abs=1e-12)
    one, two = (hf_tensors(policy.finish()) for policy in policies)
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-6, rtol=1e-5)


def test_rows_at_once_follow_the_models_size() -> None:
    heads = {"num_heads": 4, "num_kv_heads": 4, "head_dim": 64}

    def rows(hidden: int, intermediate: int, layers: int) -> int:
        return rows_at_once(ModelConfig("llama", 9, hidden, intermediate, layers, **heads))

    assert rows(128, 320, 4) == 2048  # 41 kB a row: bounded by speed
    assert rows(576, 1536, 30) == 1024  # 1.4 MB a row would allow 751
    assert rows(256, 768, 32) == 2**30 // (4 * 32 * (2560 + 3072)) == 1489


def test_lora_changes_each_projection_by_its_rank_and_nothing_else(base: Path, tmp_path: Path) -> None:
    settings = config(trainer__model__lora={"rank": 2, "alpha": 4.0}, trainer__optim__lr=0.02)
    result = run(base, tmp_path / "out", settings)
    before, after = hf_tensors(load_model(base)), hf_tensors(load_model(tmp_path / "out"))
    for name, old in before.items():
        difference = after[name] - old
        if "_proj" not in name:
            assert difference.abs().max() == 0, name
            continue
        assert difference.abs().max() > 1e-4, name
        assert int((torch.linalg.svdvals(difference) > 1e-5).sum()) <= 2, name
    assert result.steps[-1].sampler_kl < 1e-8, "the sampler uses the adapter"


def test_the_schedule_and_max_norm_are_applied(base: Path, tmp_path: Path) -> None:
    settings = config(
        max_steps=4,
        trainer__scheduler={"type": "linear", "warmup_steps": 2, "decay_steps": 2},
        trainer__optim__lr=0.01,
    )
    lrs = [step.lr for step in run(base, tmp_path / "out", settings).steps]
    assert lrs[0] < lrs[1] < lrs[2] == 0.01
    assert lrs[3] < 0.01


def test_a_loss_that_is_not_finite_is_the_jobs_fault(base: Path, tmp_path: Path) -> None:
    """ "diverged", in the step that shows it, with what to do; the step is not applied or recorded."""
    steps: list[InnerStep] = []
    huge = FakeRewards(PROMPTS, lambda _task, text: 1e38 * len(text))
    with pytest.raises(AgentError, match=r"in step 0 the loss is") as caught:
        run(base, tmp_path / "out", config(), huge, on_step=steps.append)
    assert caught.value.check == "diverged"
    assert "lr" in caught.value.fix
    assert steps == []
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_the_jobs_fault(base: Path, tmp_path: Path) -> None:
    model = load_model(base)
    with torch.no_grad():
        model.norm.weight.fill_(torch.nan)
    with pytest.raises(AgentError, match="finite probabilities") as caught:
        run(base, tmp_path / "out", config(), model=model)
    assert caught.value.check == "diverged"


def test_the_time_limit_is_the_jobs_fault(base: Path, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="of 50 steps were done") as caught:
        run(base, tmp_path / "out", config(max_steps=50), seconds_limit=0.0)
    assert caught.value.check == "time_limit"


def test_a_disk_that_takes_nothing_is_infrastructure(base: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="cannot write"):
        run(base, tmp_path / "file" / "out", config(max_steps=1))


def test_kept_rollouts_are_the_best_and_the_worst_of_some_steps(base: Path, tmp_path: Path) -> None:
    rewards = FakeRewards(PROMPTS, share_of_e)
    result = run(base, tmp_path / "out", config(max_steps=3), rewards)
    assert len(result.rollouts) == 6
    scored = [(share_of_e(rewards.tasks[index], text), text) for index, text in rewards.batches[0]]
    best, worst = result.rollouts[:2]
    assert best.inner_reward == max(value for value, _ in scored)
    assert worst.inner_reward == min(value for value, _ in scored)
    assert best.prompt == PROMPTS[best.task_index]
    assert (best.inner_reward, best.completion) in scored


def test_the_model_given_is_the_model_trained(base: Path, tmp_path: Path) -> None:
    model = load_model(base)
    result = run(base, tmp_path / "out", config(), model=model)
    assert weights_sha256(model) == result.weights_sha256
