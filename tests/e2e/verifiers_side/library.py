"""Load environments and score completions with the real verifiers library; runs in its own environment.

Reads one JSON document from stdin: [{"path", "arguments", "completions": [[task index, text]], "rollouts"}].
Writes one to stdout, with for each environment either {"refused": text} or its tasks and the results: from
`Task.score` on a finished trace for every completion, and for the first `rollouts` of them from a whole
rollout against a stub model server that returns the text.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.utils.generic import concrete_type
from verifiers.v1.utils.loaders import _plugin_class

KEY = "PARITY_STUB_KEY"


class Stub(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint that always says `reply`."""

    reply = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": Stub.reply}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "stub"}
        body = json.dumps({**answer, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def load(path: str, arguments: dict[str, Any], number: int) -> list[Any]:
    name = f"environment_{number}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    taskset = _plugin_class(module, vf.Taskset, "taskset")
    config = concrete_type(taskset, vf.TasksetConfig) or vf.TasksetConfig
    return list(taskset(config(**arguments)))


def finished_trace(task: Any, text: str, agent: vf.AgentConfig) -> vf.Trace:
    prompt = task.data.prompt
    messages = [] if task.data.system_prompt is None else [vf.SystemMessage(content=task.data.system_prompt)]
    messages += [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt)
    messages.append(vf.AssistantMessage(content=text))
    last = len(messages) - 1
    nodes = [
        vf.MessageNode(parent=i - 1 if i else None, message=message, sampled=i == last)
        for i, message in enumerate(messages)
    ]
    task_record = vf.TraceTask(type=type(task).__name__, data=task.data)
    return vf.Trace(task=task_record, agent=vf.AgentInfo(config=agent), nodes=nodes)


def result(trace: vf.Trace) -> dict[str, Any]:
    parts = {
        name: [reward.score, reward.weight] for name, reward in trace.rewards.items() if reward is not None
    }
    return {"total": trace.reward, "parts": parts, "errors": [error.message for error in trace.errors]}


async def score(task: Any, text: str, agent: vf.AgentConfig) -> dict[str, Any]:
    trace = finished_trace(task, text, agent)
    try:
        await task.score(trace)
    except vf.TaskError as error:
        return {"errors": [str(error)]}
    return result(trace)


async def rollout(task: Any, text: str, agent: vf.AgentConfig) -> dict[str, Any]:
    Stub.reply = text
    async with vf.make_agent(agent) as live:
        return result(await live.run(task))


async def examine(request: dict[str, Any], number: int, agent: vf.AgentConfig) -> dict[str, Any]:
    try:
        tasks = load(request["path"], request["arguments"], number)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    pairs = [(tasks[index], text) for index, text in request["completions"]]
    return {
        "tasks": [[task.data.prompt_text, task.data.system_prompt] for task in tasks],
        "scored": [await score(task, text, agent) for task, text in pairs],
        "rollouts": [await rollout(task, text, agent) for task, text in pairs[: request["rollouts"]]],
    }


async def main() -> None:
    requests = json.load(sys.stdin)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ[KEY] = "none"
    client = {"type": "eval", "base_url": f"http://127.0.0.1:{server.server_port}/v1", "api_key_var": KEY}
    agent = vf.AgentConfig(
        harness={"id": "one_turn_harness"}, runtime={"type": "subprocess"}, model="stub", client=client
    )
    answers = [await examine(request, number, agent) for number, request in enumerate(requests)]
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main())
