"""Validation of a job before anything is trained, in the order in which its author can act on it.

    static_probe        files, TOML, keys and values, family and base model, budget; runs no code of the job
    environment_probe   imports, loads enough distinct tasks, prompts fit, rewards behave; in the sandbox
    inner.probe_run     reward variance in real rollouts, two optimizer steps; with the model

Every finding has a message in terms of the job's files and a fix. Warnings do not reject a job: a reward that
teaches the wrong thing may be trained on, and its author learns from the hidden eval.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from ai_trains_ai.config import JobLimits, PrimeRlConfig
from ai_trains_ai.engine.bases import BASES
from ai_trains_ai.errors import AgentError
from ai_trains_ai.jobs.answers import Scored
from ai_trains_ai.jobs.env_host import EnvHost
from ai_trains_ai.jobs.prime_rl import nearest
from ai_trains_ai.jobs.spec import load_job
from ai_trains_ai.tasks.base import Family, normalise, write_up
from ai_trains_ai.tasks.registry import FAMILIES
from ai_trains_ai.types import EnvTask, Finding, Job

PROBED_TASKS = 8
MAX_UNKNOWN_SHARE = 0.02
_JUNK = ("", "I do not know.", "Answer:", "Answer: " + "9" * 400, "Antwort → 7 \U0001f642")
"""Texts that an untrained model may produce; a reward function has to give each a number."""
_GUESSES = 16
_SOLVABLE_CHARS = 1500
"""No family's prompt is half as long; parsers may take quadratic time on what a job writes."""


def static_probe(
    source: Path | Mapping[str, bytes], limits: JobLimits, family: str | None = None
) -> tuple[Job | None, list[Finding]]:
    """Check a job directory, or its files in memory, without running any of its code.

    `family` is the task family that the job has to answer, when the caller knows it. Returns no job when a
    finding is an error. Raises UsageError when `source` is no directory.
    """
    job, findings = load_job(source, limits)
    if job is None:
        return None, findings
    findings += _named(job, family)
    findings += budget_findings(PrimeRlConfig.model_validate(job.prime_rl), limits)
    return (None if _has_error(findings) else job), findings


def environment_probe(
    job: Job,
    host: EnvHost,
    family: Family | None,
    limits: JobLimits,
    count_tokens: Callable[[str], int] | None = None,
    unknown_share: Callable[[str], float] | None = None,
) -> list[Finding]:
    """Check a loaded environment: its tasks, its prompts and its rewards.

    Of the base model's tokenizer: `count_tokens` gives the length of a text, `unknown_share` the share of it
    that has no token of its own. Without them, lengths and characters go unchecked.
    """
    findings = _distinct(host.tasks, limits)
    if count_tokens is not None:
        findings += _prompt_lengths(job, host.tasks, limits, count_tokens)
    if unknown_share is not None:
        findings += _unreadable(host.tasks, unknown_share)
    if _has_error(findings):
        return findings
    try:
        findings += _rewards(job, host, family, limits)
    except AgentError as error:
        findings.append(finding_of(error))
    return findings


def finding_of(error: AgentError) -> Finding:
    return Finding(error.check, error.message, error.fix)


def estimate_tokens(config: PrimeRlConfig, prompt_tokens: float = 0.0) -> int:
    """Upper estimate of the tokens that a job samples: full completions, and each group's prompt once."""
    batch = config.orchestrator.batch_size
    completions = batch * config.orchestrator.train.sampling.max_completion_tokens
    return int(config.max_steps * (completions + batch / config.orchestrator.group_size * prompt_tokens))


def budget_findings(config: PrimeRlConfig, limits: JobLimits, prompt_tokens: float = 0.0) -> list[Finding]:
    """Whether a job's rollouts and tokens fit the budget, with what would."""
    findings = []
    batch, steps = config.orchestrator.batch_size, config.max_steps
    if steps * batch > limits.max_rollouts:
        fits = max(1, limits.max_rollouts // batch)
        message = f"{steps} steps of {batch} rollouts are {steps * batch}; {limits.max_rollouts} are allowed"
        fix = f"set max_steps in [prime_rl] to {fits} or less, or lower batch_size in [prime_rl.orchestrator]"
        findings.append(Finding("budget", message, fix))
    tokens = estimate_tokens(config, prompt_tokens)
    if tokens > limits.max_training_tokens and not findings:
        fits = max(1, limits.max_training_tokens * steps // tokens)
        message = f"up to {tokens} tokens; {limits.max_training_tokens} are allowed"
        fix = f"set max_steps in [prime_rl] to {fits} or less, or lower batch_size or max_completion_tokens"
        findings.append(Finding("budget", message, fix))
    return findings


def _has_error(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _named(job: Job, family: str | None) -> list[Finding]:
    """The family and the base model that job.toml names."""
    findings = []
    for key, value, known in (
        ("family", job.family, list(FAMILIES)),
        ("base_model", job.base_model, list(BASES)),
    ):
        if value not in known:
            near = nearest(value, known)
            fix = (f'did you mean "{near}"? ' if near else "") + f"known: {', '.join(known)}"
            findings.append(Finding(key, f'job.toml: unknown {key} "{value[:60]}"', fix))
    if family is not None and job.family != family and not findings:
        message = f'job.toml answers family "{job.family}", not "{family}"'
        findings.append(Finding("family", message, f'set family = "{family}"'))
    return findings


def _distinct(tasks: Sequence[EnvTask], limits: JobLimits) -> list[Finding]:
    count = len({(task.prompt, task.system_prompt) for task in tasks})
    if count >= limits.min_distinct_tasks:
        return []
    message = f"load() gives {len(tasks)} tasks with {count} distinct prompts"
    fix = f"generate at least {limits.min_distinct_tasks} distinct tasks"
    return [Finding("tasks", message, fix)]


def _prompt_lengths(
    job: Job, tasks: Sequence[EnvTask], limits: JobLimits, count_tokens: Callable[[str], int]
) -> list[Finding]:
    config = PrimeRlConfig.model_validate(job.prime_rl)
    room = config.seq_len - config.orchestrator.train.sampling.max_completion_tokens
    lengths = [sum(count_tokens(text) for text in _texts(task)) for task in tasks]
    longest = max(lengths)
    if longest > room:
        message = (
            f"the prompt of task {lengths.index(longest)} has {longest} tokens; {room} are left for prompts"
        )
        fix = "shorten it, raise seq_len in [prime_rl], or lower max_completion_tokens"
        return [Finding("prompt_length", message, fix)]
    return budget_findings(config, limits, fmean(lengths))


def _texts(task: EnvTask) -> list[str]:
    return [task.prompt] if task.system_prompt is None else [task.prompt, task.system_prompt]


def _unreadable(tasks: Sequence[EnvTask], unknown_share: Callable[[str], float]) -> list[Finding]:
    shares = [max(map(unknown_share, _texts(task))) for task in _sample(tasks)]
    worst = max(shares, default=0.0)
    if worst <= MAX_UNKNOWN_SHARE:
        return []
    message = f"{worst:.0%} of a prompt has no token in the base model's vocabulary: the model cannot read it"
    return [Finding("prompt_characters", message, "keep to the characters of the spec's examples", "warning")]


def _sample(tasks: Sequence[EnvTask]) -> Sequence[EnvTask]:
    """A few tasks, spread over all of them."""
    return tasks[:: max(1, len(tasks) // PROBED_TASKS)][:PROBED_TASKS]


def _rewards(job: Job, host: EnvHost, family: Family | None, limits: JobLimits) -> list[Finding]:
    """Score worked solutions, wrong answers and junk on a few of the job's own tasks."""
    findings: list[Finding] = []
    chosen = _sample(host.tasks)
    probes = [(task, texts) for task in chosen if family and (texts := _answers(family, task.prompt))]
    if family and len(probes) < len(chosen):
        strange = len(chosen) - len(probes)
        message = f"the prompts of {strange} of {len(chosen)} tasks are not of {family.name}'s format"
        findings.append(
            Finding("prompt_format", message, "write prompts like the spec's examples", "warning")
        )
    junk = [(task.index, text) for task in chosen for text in _JUNK]
    good = [(task.index, text) for task, texts in probes for text in texts]
    scored = host.inspect([*good, *junk])
    raised = next((result.raised for result in scored[: len(good)] if result.raised), None)
    odd = next((result.raised for result in scored[len(good) :] if result.raised), None)
    if raised:
        findings.append(
            Finding("reward_error", f"a reward raises on a plain answer: {raised}", "correct it there")
        )
    elif odd:
        fix = "return a number for every text, also an empty or cut one"
        findings.append(Finding("reward_error", f"a reward raises on an odd text: {odd}", fix, "warning"))
    if good and not raised:  # else there is nothing to compare: an exact reward gives junk 0 throughout
        findings += _constant(scored) or _preference(scored[: len(good)])
    seconds = host.stats.seconds / len(scored) * job.prime_rl["orchestrator"]["batch_size"]
    if seconds > limits.score_seconds:
        message = (
            f"scoring one step's batch would take about {seconds:.0f} s; {limits.score_seconds:g} are allowed"
        )
        findings.append(Finding("time", message, "make the reward functions faster"))
    return findings


def _constant(scored: Sequence[Scored]) -> list[Finding]:
    if len({result.total for result in scored}) > 1:
        return []
    message = f"every completion gets the reward {scored[0].total:g}: nothing can be learned"
    return [Finding("reward_constant", message, "let the reward depend on the reply", "warning")]


def _preference(scored: Sequence[Scored]) -> list[Finding]:
    """Whether worked solutions beat wrong answers; `scored` has three results a task, as `_answers` does."""
    gold = [result.total for result in scored[::3]]
    wrong = [max(one.total, two.total) for one, two in zip(scored[1::3], scored[2::3], strict=True)]
    better = sum(a > b for a, b in zip(gold, wrong, strict=True))
    if better == len(gold):
        return []
    if fmean(gold) > fmean(wrong):
        message = (
            f"the reward prefers the worked solution to wrong answers on {better} of {len(gold)} tasks only"
        )
        return [Finding("reward_order", message, "check the answers that load() computes", "warning")]
    message = "the reward does not prefer right answers: on average a worked solution gets "
    message += f"{fmean(gold):g}, a wrong answer {fmean(wrong):g}"
    return [Finding("reward_order", message, "reward the answer that the task's prompt asks for", "warning")]


def _answers(family: Family, prompt: str) -> tuple[str, str, str] | None:
    """For a prompt of the job: the worked solution, a wrong answer, the working with that wrong answer.

    The last is as long and as well-formed as the first, so that only what a reward knows of the answer tells
    them apart. None when the prompt is not of the family's format. The prompt is the job's text: whatever a
    parser makes of it is no bug of ours, and it may allow no wrong answer at all, so guesses are limited.
    """
    rng = random.Random(0)
    if len(prompt) > _SOLVABLE_CHARS:
        return None
    try:
        solution = family.solve(prompt)
        if solution is None:
            return None
        answer, steps = solution
        guesses = [family.guess(prompt, rng) for _ in range(_GUESSES)]
        wrong = [guess for guess in guesses if normalise(guess) != normalise(answer)]
        if not wrong:
            return None
        nearest_in_length = min(wrong, key=lambda guess: abs(len(guess) - len(answer)))
        return write_up(steps, answer), f"Answer: {nearest_in_length}", write_up(steps, nearest_in_length)
    except Exception:  # noqa: BLE001 - see above
        return None
