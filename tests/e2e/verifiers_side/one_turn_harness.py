"""A verifiers harness that asks the model once, in process; the stock ones start a Python a rollout."""

from __future__ import annotations

import httpx
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult


class OneTurnConfig(HarnessConfig):
    pass


class OneTurn(Harness[OneTurnConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        system, prompt = self.resolve_prompt(data)
        turns = (
            [{"role": "user", "content": prompt}]
            if isinstance(prompt, str)
            else [m.model_dump() for m in prompt]
        )
        messages = ([{"role": "system", "content": system}] if system is not None else []) + turns
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.post(
                f"{endpoint}/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"Authorization": f"Bearer {secret}"},
            )
        failed = answer.status_code != 200
        return ProgramResult(exit_code=int(failed), stdout="", stderr=answer.text if failed else "")


__all__ = ["OneTurn"]
