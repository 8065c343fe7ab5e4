"""The unmodified tinker SDK against our server, run by the extra environment's Python: cycle.py BASE.

Prints one JSON document of what it saw; every expectation is asserted by test_tinker_sdk.py.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tinker
import torch
from tinker import types

PROMPT = [1, 20, 21, 22, 2]
ANSWER = [30, 31, 32, 3]


def datum(**inputs: Any) -> types.Datum:
    tokens = PROMPT + ANSWER
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": torch.tensor(tokens[1:]), **inputs},
    )


def supervised() -> types.Datum:
    return datum(weights=torch.tensor([0.0] * (len(PROMPT) - 1) + [1.0] * len(ANSWER)))


def policy(logprobs: list[float]) -> types.Datum:
    advantages = torch.tensor([0.0] * (len(PROMPT) - 1) + [1.0] * len(ANSWER))
    return datum(logprobs=torch.tensor(logprobs), advantages=advantages)


def logprobs_of(result: Any) -> list[float]:
    return [float(value) for value in result.loss_fn_outputs[0]["logprobs"].data]


def trained(client: Any, seen: dict[str, Any]) -> None:
    """Cross entropy down, then one step of each policy loss and of a custom one."""
    before = client.forward([supervised()], "cross_entropy").result()
    seen["forward"] = before.metrics["loss:sum"]
    losses = []
    for _ in range(4):
        future = client.forward_backward([supervised(), supervised()], "cross_entropy")
        step = client.optim_step(types.AdamParams(learning_rate=0.02))
        losses.append(future.result().metrics["loss:sum"])
        seen["grad_norm"] = step.result().metrics["unclipped_grad_l2:mean"]
    seen["cross_entropy"] = losses
    reference = logprobs_of(client.forward([supervised()], "cross_entropy").result())
    for name in ("importance_sampling", "ppo", "cispo", "dro"):
        result = client.forward_backward([policy(reference)], name).result()
        client.optim_step(types.AdamParams(learning_rate=0.001)).result()
        seen[name] = result.metrics["loss:sum"]
        reference = logprobs_of(client.forward([supervised()], "cross_entropy").result())

    def squared(data: Any, logprobs: Any) -> Any:
        loss = torch.cat(logprobs).square().sum()
        return loss, {"squared": loss.item()}

    result = client.forward_backward_custom([supervised()], squared).result()
    client.optim_step(types.AdamParams(learning_rate=0.001)).result()
    seen["custom"] = [result.metrics["squared"], sum(value**2 for value in reference)]


def continued(service: Any, client: Any, seen: dict[str, Any]) -> None:
    """A saved state goes on as the original does, optimizer included."""
    path = client.save_state("half-way").result().path
    other = service.create_training_client_from_state_with_optimizer(path).result()
    after = []
    for one in (client, other):
        one.forward_backward([supervised()], "cross_entropy").result()
        one.optim_step(types.AdamParams(learning_rate=0.01)).result()
        after.append(one.forward([supervised()], "cross_entropy").result().metrics["loss:sum"])
    seen["state_path"], seen["continued"] = path, after
    client.load_state(path).result()
    seen["loaded"] = client.forward([supervised()], "cross_entropy").result().metrics["loss:sum"]


def sampled(service: Any, client: Any, base: str, seen: dict[str, Any]) -> None:
    prompt = types.ModelInput.from_ints(PROMPT)
    sampler = client.save_weights_and_get_sampling_client().result()
    params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=5)
    first, again = (sampler.sample(prompt, 3, params).result() for _ in range(2))
    seen["sampled"] = [[list(map(int, s.tokens)) for s in r.sequences] for r in (first, again)]
    sequence = first.sequences[0]
    whole = types.ModelInput.from_ints(PROMPT + list(map(int, sequence.tokens)))
    scored = sampler.compute_logprobs(whole).result()
    seen["sampled_logprobs"] = [float(value) for value in sequence.logprobs]
    seen["scored_logprobs"] = scored[len(PROMPT) :]
    seen["first_is_none"] = scored[0] is None
    greedy = types.SamplingParams(max_tokens=4, temperature=0.0)
    seen["greedy_trained"] = list(map(int, sampler.sample(prompt, 1, greedy).result().sequences[0].tokens))
    plain = service.create_sampling_client(base_model=base).result()
    futures = [plain.sample(prompt, 1, greedy) for _ in range(5)]
    seen["greedy_base"] = [list(map(int, f.result().sequences[0].tokens)) for f in futures]


def checkpoints(client: Any, seen: dict[str, Any]) -> None:
    rest = tinker.RestClient()
    saved = client.save_weights_for_sampler("published").result().path
    run = saved.removeprefix("tinker://").split("/")[0]
    seen["listed"] = sorted(c.tinker_path for c in rest.list_checkpoints(run).result().checkpoints)
    rest.delete_checkpoint_from_tinker_path(saved).result()
    seen["after_delete"] = [c.tinker_path for c in rest.list_checkpoints(run).result().checkpoints]


def refused(service: Any, client: Any, seen: dict[str, Any]) -> None:
    found = {}
    acts = {
        "unknown_base": lambda: service.create_lora_training_client(base_model="nobody/nothing").result(),
        "missing_input": lambda: client.forward_backward([datum()], "ppo").result(),
        "no_gradient": lambda: client.optim_step(types.AdamParams(learning_rate=0.1)).result(),
        "no_checkpoint": lambda: client.load_state("tinker://nobody/weights/nothing").result(),
    }
    for name, act in acts.items():
        try:
            act()
            found[name] = "accepted"
        except (tinker.TinkerError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    # The client goes on after a refusal.
    client.forward_backward([supervised()], "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=0.001)).result()
    seen["refused"] = found


def main() -> None:
    base = sys.argv[1]
    seen: dict[str, Any] = {}
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=base, rank=4, seed=1).result()
    seen["info"] = client.get_info().model_data.model_name
    trained(client, seen)
    continued(service, client, seen)
    sampled(service, client, base, seen)
    checkpoints(client, seen)
    refused(service, client, seen)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
