"""The probe's verdicts: what rejects a job before it trains, what warns, and what passes."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from ai_trains_ai.config import JobLimits, PrimeRlConfig
from ai_trains_ai.engine.bases import BASES
from ai_trains_ai.jobs.env_host import EnvHost
from ai_trains_ai.jobs.probe import environment_probe, estimate_tokens, static_probe
from ai_trains_ai.jobs.spec import load_job
from ai_trains_ai.sandbox.base import Sandbox
from ai_trains_ai.tasks.registry import FAMILIES, family
from ai_trains_ai.tasks.starter import environment_source, job_toml, starter_files
from ai_trains_ai.testing.jobs import sample_job
from ai_trains_ai.types import Finding, Job

LIMITS = JobLimits()


def files(name: str = "ledger", *, toml: str | None = None, **environment: object) -> dict[str, bytes]:
    source = environment_source(name, **environment)  # type: ignore[arg-type]
    return {"job.toml": (toml or job_toml(name)).encode(), "environment.py": source.encode()}


def static(given: Mapping[str, bytes], answers: str | None = None) -> list[Finding]:
    job, findings = static_probe(given, LIMITS, answers)
    assert (job is None) == any(finding.severity == "error" for finding in findings)
    return findings


def dynamic(job: Job, sandbox: Sandbox, answers: str | None = "ledger", **options: object) -> list[Finding]:
    with EnvHost.start(job, sandbox, LIMITS) as host:
        chosen = family(answers) if answers else None
        return environment_probe(job, host, chosen, LIMITS, **options)  # type: ignore[arg-type]


def made(given: Mapping[str, bytes]) -> Job:
    job, findings = load_job(given, LIMITS)
    assert job is not None, findings
    return job


@pytest.mark.parametrize("name", FAMILIES)
def test_every_starter_passes_with_nothing_to_say(name: str, sandbox: Sandbox) -> None:
    given = {path: text.encode() for path, text in starter_files(name).items()}
    assert static(given, name) == []
    assert dynamic(made(given), sandbox, name, count_tokens=lambda text: len(text.split())) == []


@pytest.mark.parametrize(
    ("toml", "check", "words"),
    [
        ('family = "legder"\nbase_model = "nano-0.2m"', "family", ['did you mean "ledger"?', "triage"]),
        ('family = "ledger"\nbase_model = "nano-0.8"', "base_model", ['did you mean "nano-0.8m"?', *BASES]),
        ('family = "ledger"\nbase_model = "gpt-5"', "base_model", ["known: nano-0.2m"]),
        (
            'family = "dispatch"\nbase_model = "nano-0.2m"',
            "family",
            ['not "ledger"', 'set family = "ledger"'],
        ),
    ],
)
def test_family_and_base_model_must_be_known(toml: str, check: str, words: list[str]) -> None:
    (finding,) = static(files(toml=toml), "ledger")
    assert finding.check == check
    for word in words:
        assert word in f"{finding.message} {finding.fix}"


def test_a_job_over_the_rollout_budget_is_told_what_fits() -> None:
    toml = job_toml("ledger", settings={"max_steps": 100, "orchestrator.batch_size": 128})
    (finding,) = static(files(toml=toml))
    assert finding.check == "budget"
    assert "12800; 6000 are allowed" in finding.message
    assert "46 or less" in finding.fix


def test_a_job_over_the_token_budget_is_told_what_fits() -> None:
    settings = {"max_steps": 20, "orchestrator.train.sampling.max_completion_tokens": 500, "seq_len": 1024}
    (finding,) = static(files(toml=job_toml("ledger", settings=settings)))
    assert finding.check == "budget"
    assert "up to 1280000 tokens; 1000000 are allowed" in finding.message
    assert "15 or less" in finding.fix


def test_token_estimate_by_hand() -> None:
    train = {"sampling": {"max_completion_tokens": 50}}
    orchestrator = {"batch_size": 128, "group_size": 8, "train": train}
    config = PrimeRlConfig.model_validate({"max_steps": 20, "orchestrator": orchestrator})
    assert estimate_tokens(config) == 20 * 128 * 50
    assert estimate_tokens(config, 100.0) == 20 * (128 * 50 + 16 * 100)


def only(findings: list[Finding], severity: str) -> Finding:
    (finding,) = findings
    assert finding.severity == severity
    return finding


@pytest.mark.parametrize(
    "load",
    [
        "return [Problem(Data(prompt='What is 2 + 3?', answer='5'))] * 512",
        "return [Problem(Data(prompt=p)) for p in ('a', 'b', 'c')]",
        "return []",
    ],
    ids=["one repeated", "three examples", "none"],
)
def test_too_few_distinct_tasks_reject_the_job(load: str, sandbox: Sandbox) -> None:
    finding = only(dynamic(sample_job(load=load), sandbox), "error")
    assert finding.check == "tasks"
    assert "at least 64 distinct tasks" in finding.fix


def test_training_on_the_public_examples_alone_is_rejected(sandbox: Sandbox) -> None:
    examples = [task.prompt for task in family("ledger").spec().examples]
    load = f"prompts = {examples!r}\nreturn [Problem(Data(prompt=prompts[i % 3])) for i in range(300)]"
    assert only(dynamic(sample_job(load=load), sandbox), "error").check == "tasks"


def test_prompts_that_do_not_fit_are_rejected(sandbox: Sandbox) -> None:
    load = "return [Problem(Data(prompt=f'{i} ' + 'x ' * i)) for i in range(500)]"
    toml = "[prime_rl]\nseq_len = 512\n[prime_rl.orchestrator.train.sampling]\nmax_completion_tokens = 64\n"
    job = sample_job(load=load, toml=toml)
    finding = only(dynamic(job, sandbox, None, count_tokens=lambda text: len(text.split())), "error")
    assert finding.check == "prompt_length"
    assert "task 499 has 500 tokens; 448 are left" in finding.message


def test_prompts_that_the_base_cannot_read_are_warned_about(sandbox: Sandbox) -> None:
    given = files()
    strange = given["environment.py"].replace(
        b"Data(prompt=prompt,", b"Data(prompt=prompt + ' \xe2\x82\xac' * 5,"
    )
    job = made(given | {"environment.py": strange})
    found = dynamic(job, sandbox, unknown_share=lambda text: text.count("€") / len(text))
    assert [(finding.check, finding.severity) for finding in found] == [("prompt_characters", "warning")]
    assert dynamic(made(given), sandbox, unknown_share=lambda text: 0.01) == []


def test_prompts_count_against_the_budget(sandbox: Sandbox) -> None:
    toml = "[prime_rl]\nmax_steps = 40\nseq_len = 4096\n[prime_rl.orchestrator]\ngroup_size = 2\n"
    finding = only(
        dynamic(sample_job(toml=toml), sandbox, None, count_tokens=lambda text: 999 * bool(text)), "error"
    )
    assert finding.check == "budget"


@pytest.mark.parametrize("reward", ["exact", "partial"])
@pytest.mark.parametrize("name", FAMILIES)
def test_rewards_that_know_the_answer_pass(name: str, reward: str, sandbox: Sandbox) -> None:
    assert dynamic(made(files(name, reward=reward)), sandbox, name) == []


@pytest.mark.parametrize("reward", ["format", "length"])
@pytest.mark.parametrize("name", FAMILIES)
def test_rewards_blind_to_the_answer_are_warned_about(name: str, reward: str, sandbox: Sandbox) -> None:
    finding = only(dynamic(made(files(name, reward=reward)), sandbox, name), "warning")
    assert finding.check == "reward_order"
    assert "does not prefer right answers" in finding.message


def test_a_constant_reward_is_warned_about(sandbox: Sandbox) -> None:
    finding = only(dynamic(made(files(reward="constant")), sandbox), "warning")
    assert finding.check == "reward_constant"


def test_some_wrong_answers_in_the_data_are_warned_about(sandbox: Sandbox) -> None:
    given = files()
    source = given["environment.py"].decode()
    spoilt = source.replace(
        "Data(prompt=prompt, answer=answer,", "Data(prompt=prompt, answer=answer * rng.choice([1, 2]),"
    )
    assert spoilt != source
    finding = only(dynamic(made(given | {"environment.py": spoilt.encode()}), sandbox), "warning")
    assert finding.check == "reward_order"
    assert "of 8 tasks" in finding.message
    assert "answers that load() computes" in finding.fix


def test_prompts_of_another_format_are_warned_about(sandbox: Sandbox) -> None:
    finding = only(dynamic(sample_job(), sandbox), "warning")
    assert finding.check == "prompt_format"
    assert "8 of 8 tasks are not of ledger's format" in finding.message


def test_rewards_that_raise_on_plain_answers_reject_and_on_odd_texts_warn(sandbox: Sandbox) -> None:
    plain = only(dynamic(made(files(reward="float(reply.split('zzz')[1])")), sandbox), "error")
    assert plain.check == "reward_error"
    assert "environment.py, line" in plain.message
    assert "IndexError" in plain.message
    odd = "float(answer_of(reply) == self.data.answer.lower()) + 0 * len(reply.split()[0])"
    warned = only(dynamic(made(files(reward=odd)), sandbox), "warning")
    assert warned.check == "reward_error"
    assert "odd text" in warned.message


def test_a_reward_that_is_no_number_rejects(sandbox: Sandbox) -> None:
    finding = only(dynamic(made(files(reward="None")), sandbox), "error")
    assert finding.check == "reward_value"


def test_rewards_too_slow_for_a_batch_reject(sandbox: Sandbox) -> None:
    toml = "[prime_rl.orchestrator]\nbatch_size = 512\n"
    job = sample_job(
        head="import time", reward="time.sleep(0.05)\nreturn float(min(len(reply), 9))", toml=toml
    )
    finding = only(dynamic(job, sandbox, None), "error")
    assert finding.check == "time"
    assert "20 are allowed" in finding.message


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_written_to_break_our_solvers_are_just_another_format(name: str, sandbox: Sandbox) -> None:
    """Prompts are the job's text, and `solve` and `guess` run in our process."""
    prompts = [example.prompt for example in family(name).spec().examples]
    digits = [prompt.replace("1", "1" * 5000) for prompt in prompts]
    cut = [prompt[: len(prompt) // 2] for prompt in prompts]
    doubled = [prompt.replace(".", "." * 500) for prompt in prompts]
    short = [prompt[:1400] for prompt in digits]
    load = f"given = {[p[:7900] for p in (*digits, *cut, *doubled, *short)]!r}\n"
    load += "return [Problem(Data(prompt=given[i % 12] + ' ' * (i // 12))) for i in range(96)]"
    began = time.process_time()
    findings = dynamic(sample_job(load=load), sandbox, name)
    assert time.process_time() - began < 2.0
    assert all(finding.severity == "warning" for finding in findings)
