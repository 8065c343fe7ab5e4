"""The `[prime_rl]` whitelist: against prime-rl's schema, against pydantic, and its refusals."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ai_trains_ai.config import PrimeRlConfig
from ai_trains_ai.errors import AgentError
from ai_trains_ai.jobs import refusals
from ai_trains_ai.jobs.prime_rl import (
    PRIME_RL_COMMIT,
    check_prime_rl,
    edit_distance,
    parse_prime_rl,
    stray_table,
)
from ai_trains_ai.jobs.whitelist import OPTIONS, OPTIONS_OF_TYPE, TABLES, json_schema_leaves
from ai_trains_ai.types import Finding

SCHEMA = Path(__file__).resolve().parents[3] / "shared" / "prime_rl_config_schema.json"


def findings(text: str) -> list[Finding]:
    return check_prime_rl(tomllib.loads(text)).findings


def only(text: str) -> Finding:
    found = findings(text)
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="module")
def schema() -> dict[str, list[dict[str, Any]]]:
    """Dotted key -> the schemas that prime-rl's variants give it."""
    if not SCHEMA.exists():
        pytest.skip(f"prime-rl's schema at commit {PRIME_RL_COMMIT} is not at {SCHEMA}")
    leaves: dict[str, list[dict[str, Any]]] = {}
    for dotted, leaf in json_schema_leaves(json.loads(SCHEMA.read_text())):
        leaves.setdefault(dotted, []).append(leaf)
    return leaves


@pytest.mark.parametrize("dotted", OPTIONS)
def test_every_key_exists_in_prime_rl_with_its_type_and_within_its_range(
    dotted: str, schema: dict[str, list[dict[str, Any]]]
) -> None:
    option, theirs = OPTIONS[dotted], schema[dotted]
    for leaf in theirs:
        assert leaf["type"] == option.kind
        assert "default" in leaf, "prime-rl would refuse a config without it"
        low = option.low if option.low is not None else option.above
        if "minimum" in leaf:
            assert low is not None
            assert low >= leaf["minimum"]
        if "maximum" in leaf:
            assert option.high is not None
            assert option.high <= leaf["maximum"]
        assert not option.nullable or leaf["nullable"]
    if option.choices:
        allowed = {leaf["const"] for leaf in theirs if "const" in leaf}
        assert set(option.choices) <= allowed


@pytest.mark.parametrize("table", OPTIONS_OF_TYPE)
def test_options_of_each_type_are_those_of_prime_rls_classes(table: str) -> None:
    if not SCHEMA.exists():
        pytest.skip(f"prime-rl's schema at commit {PRIME_RL_COMMIT} is not at {SCHEMA}")
    document = json.loads(SCHEMA.read_text())
    trainer = document["$defs"]["TrainerConfig"]["properties"][table.rpartition(".")[2]]
    for name, options in OPTIONS_OF_TYPE[table].items():
        reference = trainer["discriminator"]["mapping"][name].rpartition("/")[2]
        assert set(document["$defs"][reference]["properties"]) - {"type"} == options


def test_muon_has_its_own_default_of_betas2(schema: dict[str, list[dict[str, Any]]]) -> None:
    config = check_prime_rl({"trainer": {"optim": {"type": "muon"}}}).config
    assert config is not None
    assert config.trainer.optim.betas2 == 0.95
    assert 0.95 in {leaf["default"] for leaf in schema["trainer.optim.betas2"]}


def test_names_that_are_refused_or_renamed_are_not_whitelisted_and_their_goals_are() -> None:
    assert not set(refusals.TABLES) & (set(OPTIONS) | TABLES)
    assert not set(refusals.MOVED) & (set(OPTIONS) | TABLES)
    assert not set(refusals.BY_NAME) & {option.key for option in OPTIONS.values()}
    assert not set(refusals.RENAMED) & {option.key for option in OPTIONS.values()}
    assert set(refusals.RENAMED.values()) <= set(OPTIONS)
    assert set(refusals.MOVED.values()) <= TABLES
    assert not set(refusals.RENAMED) & set(refusals.BY_NAME)


def test_defaults() -> None:
    checked = check_prime_rl({})
    assert checked.config == PrimeRlConfig()
    assert checked.findings == []
    assert checked.explicit_keys == ()


def test_explicit_keys_are_those_written_even_at_their_default() -> None:
    text = "max_steps = 20\n[trainer.optim]\nlr = 1e-4\n[trainer.model.lora]\n"
    checked = check_prime_rl(tomllib.loads(text))
    assert checked.explicit_keys == ("max_steps", "trainer.optim.lr", "trainer.model.lora")
    assert checked.config is not None
    assert checked.config.trainer.model.lora is not None


def test_none_in_quotes_is_null_where_prime_rl_allows_it() -> None:
    config = parse_prime_rl(
        tomllib.loads('[trainer.optim]\nmax_norm = "None"\n[trainer.model]\nlora = "None"')
    )
    assert config.trainer.optim.max_norm is None
    assert config.trainer.model.lora is None
    assert only('max_steps = "None"').check == "values"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[orchestrator]\nrollouts_per_example = 4",
            ["rollouts_per_example", "`group_size`", "[prime_rl.orchestrator]"],
        ),
        ("[trainer]\ngroup_size = 4", ["`group_size`", "[prime_rl.orchestrator]"]),
        ("[trainer]\nlr = 0.1", ["`lr`", "[prime_rl.trainer.optim]"]),
        ("[orchestrator.sampling]\ntemperature = 1.0", ["[prime_rl.orchestrator.train.sampling]"]),
        ("[orchestrator.train.sampling]\nmax_tokens = 9", ["`max_completion_tokens`"]),
        ("max_step = 3", ["`max_step`", "`max_steps`", "[prime_rl]"]),
        ("[trainer.optim]\nlearning_rate = 0.1", ["`lr`", "[prime_rl.trainer.optim]"]),
        ("[trainer.optim]\nwieght_decay = 0.1", ["`weight_decay`"]),
        ("[trainer.model.lora]\nalfa = 3", ["`alpha`"]),
        ("[trainer]\ntype = 'muon'", ["[prime_rl.trainer.optim]", "[prime_rl.trainer.scheduler]"]),
        ("[orchestrator]\nmax_steps = 3", ["`max_steps`", "[prime_rl]"]),
        ("[optim]\nlr = 0.1", ["[prime_rl.optim]", "[prime_rl.trainer.optim]"]),
        ("zzzzzzzz = 1", ["`zzzzzzzz`", "max_steps", "seq_len"]),
        (
            "[qqqqqqqqqqqq]\nzzzzzzzz = 1",
            ["`zzzzzzzz`", "[prime_rl.qqqqqqqqqqqq]", "[prime_rl.trainer.optim]"],
        ),
        ("[qqqqqqqqqqqq]", ["`qqqqqqqqqqqq`"]),
    ],
)
def test_unknown_keys_are_answered_with_their_place(text: str, words: list[str]) -> None:
    finding = only(text)
    assert finding.check == "keys"
    assert finding.severity == "error"
    for word in words:
        assert word in f"{finding.message} {finding.fix}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[trainer.loss]\nimport_path = "a.b"', "code"),
        ('[orchestrator.train.source.env.taskset.task.rewards.x]\nfn = "a.b"', "environment.py"),
        ('[weird.rewards.x]\nfn = "a.b"', "@vf.reward"),
        ('[weird]\nfn = "a.b"', "code"),
        ('env_vars = { A = "b" }', "environment variables"),
        ('[trainer]\nenv_vars = { A = "b" }', "environment variables"),
        ("[trainer.model]\ntrust_remote_code = true", "code that comes with a model"),
        ('output_dir = "/etc"', "files"),
        ('[trainer]\ntrace_path = "/etc/x"', "files"),
        ('[orchestrator.model.client]\nbase_url = "http://x"', "base_model"),
        ('[weird]\nbase_url = "http://x"', "network"),
        ("[orchestrator.train.sampling]\nextra_body = { top_k = 1 }", "inference server"),
        ("[inference.vllm]\nmax_model_len = 4", "inference server"),
        ('[model]\nname = "Qwen/Qwen3-0.6B"', "base_model"),
        ("[deployment]\nnum_train_gpus = 8", "machines"),
        ("[slurm]\n", "machines"),
        ("[ckpt]\n", "checkpoints"),
        ("[wandb]\nproject = 'x'", "tracking"),
        ('[orchestrator.algo]\ntype = "max_rl"', "GRPO"),
        ("seed = 3", "--seed"),
        ("[orchestrator.train.sampling]\ntop_p = 0.9", "temperature"),
        ("[trainer.loss]\nipo_threshold = 0.1", "GRPO"),
    ],
)
def test_what_loads_code_paths_addresses_or_machines_is_refused_with_the_reason(
    text: str, reason: str
) -> None:
    finding = only(text)
    assert finding.check == "refused"
    assert "is not a job's to set" in finding.message
    assert finding.fix
    assert reason in f"{finding.message} {finding.fix}"


def test_custom_loss_is_refused_twice_over() -> None:
    found = findings('[trainer.loss]\ntype = "custom"\nimport_path = "os.system"')
    assert [finding.check for finding in found] == ["values", "refused"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('max_steps = "20"', 'max_steps must be a whole number from 1 to 2000, not "20" (text)'),
        ("max_steps = 20.0", "max_steps must be a whole number from 1 to 2000, not 20.0"),
        ("max_steps = true", "max_steps must be a whole number from 1 to 2000, not true"),
        ("max_steps = 0", "max_steps must be a whole number from 1 to 2000, not 0"),
        ("[trainer.optim]\nlr = nan", "trainer.optim.lr must be a number above 0 and at most 1, not nan"),
        ("[trainer.optim]\nlr = 0", "trainer.optim.lr must be a number above 0 and at most 1, not 0"),
        (
            "[trainer.optim]\nbetas1 = 1",
            "trainer.optim.betas1 must be a number of at least 0 and below 1, not 1",
        ),
        (
            '[trainer.optim]\ntype = "adam"',
            'trainer.optim.type must be one of "adamw", "muon", "sgd", "sign_sgd", not "adam" (text)',
        ),
        (
            "[trainer.optim]\nmax_norm = -1",
            'trainer.optim.max_norm must be a number above 0, or "None" for none, not -1',
        ),
        ("trainer = 3", "trainer is a table, not 3"),
        ("max_steps = [1]", "max_steps must be a whole number from 1 to 2000, not a list"),
        ("[max_steps]\nx = 1", "max_steps must be a whole number from 1 to 2000, not a table"),
        (
            '[trainer.optim]\ntype = "sgd"\nnesterov = 1',
            "trainer.optim.nesterov must be true or false, not 1",
        ),
    ],
)
def test_types_and_ranges_in_plain_words(text: str, message: str) -> None:
    finding = only(text)
    assert finding.check == "values"
    assert finding.message == message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[trainer.optim]\nmomentum = 0.5", ['type = "adamw" (the default)', 'set type = "sgd"']),
        ('[trainer.optim]\ntype = "sgd"\nbetas1 = 0.5', ['type = "sgd"', '"adamw" or "muon"']),
        ('[trainer.optim]\ntype = "sign_sgd"\nnesterov = true', ['"sign_sgd"', '"sgd"']),
        ("[trainer.scheduler]\nwarmup_steps = 2", ['"constant" (the default)', '"linear" or "cosine"']),
        ('[trainer.scheduler]\ntype = "cosine"\ndecay_steps = 2', ['"cosine"', '"linear"']),
    ],
)
def test_options_of_another_type_are_refused_with_the_types_that_have_them(
    text: str, words: list[str]
) -> None:
    finding = only(text)
    assert finding.check == "keys"
    for word in words:
        assert word in f"{finding.message} {finding.fix}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[orchestrator]\nbatch_size = 100\ngroup_size = 8", ["not a multiple", "96 or 104"]),
        ("[orchestrator]\nbatch_size = 4", ["not a multiple", "to 8"]),
        ('max_steps = 5\n[trainer.scheduler]\ntype = "linear"', ["decay_steps 10", "max_steps 5"]),
        ('[trainer.scheduler]\ntype = "linear"\ndecay_steps = 0', ["neither"]),
        (
            'max_steps = 5\n[trainer.scheduler]\ntype = "cosine"\nwarmup_steps = 5',
            ["warmup_steps 5", "below 5"],
        ),
        ('[trainer.scheduler]\ntype = "cosine"\nmin_lr = 0.5', ["min_lr 0.5", "lr 0.0001"]),
        ('[trainer.optim]\ntype = "sgd"\nmomentum = 0.0', ["nesterov"]),
        ("seq_len = 64", ["no room for a prompt"]),
    ],
)
def test_values_that_fail_together(text: str, words: list[str]) -> None:
    finding = only(text)
    assert finding.check == "values"
    for word in words:
        assert word in f"{finding.message} {finding.fix}"


def test_a_group_of_one_is_a_warning() -> None:
    checked = check_prime_rl({"orchestrator": {"group_size": 1}})
    assert checked.config is not None
    assert [finding.severity for finding in checked.findings] == ["warning"]


def test_all_problems_are_reported_at_once() -> None:
    text = "max_step = 1\nseq_len = 'x'\n[trainer]\ngroup_size = 4\nenv_vars = {}\n"
    text += "[orchestrator]\nbatch_size = 7"
    assert [finding.check for finding in findings(text)] == ["keys", "values", "keys", "refused", "values"]
    with pytest.raises(AgentError) as caught:
        parse_prime_rl(tomllib.loads(text))
    for word in ("max_step", "seq_len", "group_size", "env_vars", "batch_size"):
        assert word in caught.value.message


def test_a_table_at_the_top_of_job_toml_is_sent_under_prime_rl() -> None:
    found = stray_table("orchestrator", {"rollouts_per_example": 4, "batch_size": 64})
    assert "[prime_rl.orchestrator]" in found[0].fix
    assert "`group_size`" in found[1].fix
    assert len(found) == 2


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ("", "abc", 3),
        ("group_size", "group_size", 0),
        ("gropu_size", "group_size", 1),
        ("lr", "rank", 4),
        ("ab", "ba", 1),
    ],
)
def test_edit_distance_by_hand(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == distance


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-5, 5000),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["adamw", "sgd", "linear", "default", "x", ""]),
    st.floats(0, 1),
)


@given(st.dictionaries(st.sampled_from(sorted(OPTIONS)), SCALARS, max_size=6))
def test_accepts_exactly_what_the_config_class_accepts_strictly(values: dict[str, Any]) -> None:
    """Without cross-field rules: those that only we know are left out by checking each key alone."""
    for dotted, value in values.items():
        tree: Any = value
        for part in reversed(dotted.split(".")):
            tree = {part: tree}
        try:
            PrimeRlConfig.model_validate(tree, strict=True)
            accepted = True
        except ValidationError as error:
            accepted = all(
                not problem["loc"] or problem["type"] == "value_error" for problem in error.errors()
            )
        assert (OPTIONS[dotted].problem(value) is None) == accepted, (dotted, value)


@given(
    st.recursive(
        SCALARS, lambda inner: st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12
    )
)
def test_never_crashes_on_any_table(value: Any) -> None:
    checked = check_prime_rl({"trainer": value} if not isinstance(value, dict) else value)
    assert (checked.config is None) == any(finding.severity == "error" for finding in checked.findings)
