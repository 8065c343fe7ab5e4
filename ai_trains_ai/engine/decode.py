"""Decoder: a packed model that reads prompts and tokens into a KVCache and returns next-token logits.

    prefill  prompts ─> cache, logits_G_V       causal attention inside each prompt; a prompt is read once
    step     one token a row ─> logits_B_V      the loop that sampling lives in
    extend   some tokens a row ─> logits_B_V    what a tool answered, a second turn

Rows are packed: a linear layer sees exactly the tokens that exist, in row order. Attention sees slots (see
`kvcache`): the queries of a group meet their prompt's keys in one product, each row meets its own keys, and
one softmax covers both.

Every product goes through a `packed.Matrix` with all tokens of the step in row order: that is where adapters
that differ from row to row would be added.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ai_trains_ai.engine.kvcache import CacheShape, KVCache, Prefix
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.packed import PackedLayer, pack, rotations
from ai_trains_ai.engine.plan import Plan, plan_tokens
from ai_trains_ai.errors import UsageError

_CHUNK = 64
"""`extend` reads at most this many tokens a row at once, which bounds the size of its attention scores."""


class Decoder:
    """A snapshot of a model's weights, ready to generate.

    dtype: of weights and products; None keeps the model's. On a CPU, attention and the residual stream are
           float32 whatever it is: there narrower ones are not faster.
    """

    def __init__(self, model: Model, *, dtype: torch.dtype | None = None) -> None:
        self.weights = pack(model, dtype)
        self.config = model.config
        self.device = self.weights.device
        self._wide = torch.float32 if self.device.type == "cpu" else self.weights.dtype
        self._queries = self.config.num_heads // self.config.num_kv_heads
        self._scale = self.config.head_dim**-0.5
        self._turns = rotations(self.config, 256, self.device)

    @torch.inference_mode()
    def prefill(
        self, prompts: Sequence[Sequence[int]], *, samples: int | Sequence[int] = 1, room: int = 64
    ) -> tuple[KVCache, Tensor]:
        """Read prompts; open `samples` rows for each (an int, or one number a prompt), in prompt order.

        room: positions a row to reserve for what follows; more are added when needed, by a copy.
        Returns the cache and float32 logits of each prompt's next token, (prompts, vocab).
        Raises UsageError for an empty prompt or one beyond the model's positions.
        """
        counts = [samples] * len(prompts) if isinstance(samples, int) else list(samples)
        lengths = [len(prompt) for prompt in prompts]
        self._check(lengths, counts)
        c = self.config
        shape = CacheShape(c.num_layers, c.num_kv_heads, c.head_dim, self._wide, self.device)
        cache = KVCache.empty(shape, len(prompts), max(counts), max(lengths), room)
        cache.prefixes = [Prefix(n) for n in lengths]
        for group, count in enumerate(counts):
            cache.open_rows(group, count)
        tokens_N = torch.tensor([token for prompt in prompts for token in prompt], device=self.device)
        return cache, self._prefill(cache, tokens_N, lengths)

    @torch.inference_mode()
    def step(self, cache: KVCache, tokens_B: Tensor) -> Tensor:
        """Append one token to every row; float32 logits of the next ones, (rows, vocab)."""
        cache.reserve(1)
        plan = cache.plan
        if not isinstance(plan, Plan) or plan.version != cache.version:
            plan = plan_tokens(cache, None)
            cache.plan = plan
        else:
            plan.advance(cache)
        return self._logits(self._read(cache, plan, tokens_B))

    @torch.inference_mode()
    def extend(self, cache: KVCache, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Append tokens[row] (at least one each, any lengths) to every row; logits as in `step`."""
        if len(tokens) != len(cache.rows) or not all(tokens):
            raise UsageError(f"extend needs at least one token for each of the {len(cache.rows)} rows")
        longest = max(len(row) for row in tokens)
        cache.reserve(longest)
        last: list[Tensor | None] = [None] * len(tokens)
        for start in range(0, longest, _CHUNK):
            parts = [list(row[start : start + _CHUNK]) for row in tokens]
            flat = torch.tensor([token for part in parts for token in part], device=self.device)
            hidden = self._read(cache, plan_tokens(cache, [len(part) for part in parts]), flat)
            end = 0
            for row, part in enumerate(parts):
                end += len(part)
                if part:
                    last[row] = hidden[end - 1]
        cache.plan = None
        return self._logits(torch.stack([hidden for hidden in last if hidden is not None]))

    def _check(self, lengths: Sequence[int], counts: Sequence[int]) -> None:
        if not lengths or min(lengths) < 1:
            raise UsageError("there must be a prompt, and every prompt needs at least one token")
        if len(counts) != len(lengths) or min(counts) < 1:
            raise UsageError(f"samples must be positive, one number for each of the {len(lengths)} prompts")
        if max(lengths) > self.config.max_positions:
            raise UsageError(
                f"a prompt has {max(lengths)} tokens, the model reads at most {self.config.max_positions}"
            )

    def _prefill(self, cache: KVCache, tokens_N: Tensor, lengths: list[int]) -> Tensor:
        """Final hidden states of each prompt's last token -> logits; keys and values go into the cache."""
        groups, longest, queries = len(lengths), max(lengths), self._queries
        columns = torch.arange(longest, device=self.device)
        sizes = torch.tensor(lengths, device=self.device)
        starts = sizes.cumsum(0) - sizes
        inside = columns < sizes[:, None]
        spread = (starts[:, None] + columns * inside).flatten()  # (group, column) -> packed; padding -> first
        packed = inside.flatten().nonzero().squeeze(1)  # the way back
        turns = self._turns_at(columns.expand(groups, -1)[inside], longest)
        x = self.weights.embed.index_select(0, tokens_N).to(self._wide)
        for i, layer in enumerate(self.weights.layers):
            qkv = self._qkv(layer, x, turns)
            padded = qkv.index_select(0, spread).view(groups, longest, *qkv.shape[1:])
            k, v = padded[..., queries, :].transpose(1, 2), padded[..., queries + 1, :].transpose(1, 2)
            cache.prefix_k[i, ..., :longest] = k.transpose(2, 3)
            cache.prefix_v[i, :, :, :longest] = v
            mixed = qkv.new_empty(groups, longest, self.config.num_kv_heads, queries, self.config.head_dim)
            for j in range(queries):
                q = padded[..., j, :].transpose(1, 2)
                mixed[..., j, :] = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            if i + 1 == len(self.weights.layers):  # from here on only the last tokens matter
                last = starts + sizes - 1
                packed, x = packed.index_select(0, last), x.index_select(0, last)
            self._finish(layer, x, mixed.view(groups * longest, -1).index_select(0, packed))
        return self._logits(x)

    def _read(self, cache: KVCache, plan: Plan, tokens_N: Tensor) -> Tensor:
        """Hidden states (before the final norm) of the plan's new tokens; the cache grows by them."""
        turns = self._turns_at(plan.positions_N, max(cache.positions, default=0) + plan.tokens)
        x = self.weights.embed.index_select(0, tokens_N).to(self._wide)
        for i, layer in enumerate(self.weights.layers):
            self._finish(layer, x, self._attend(self._qkv(layer, x, turns), plan, i))
        for row, count in zip(cache.rows, plan.counts, strict=True):
            row.length += count
        return x

    def _turns_at(self, positions_N: Tensor, needed: int) -> Tensor:
        """Rotations of the positions, shaped to meet (token, kv head, query, pair)."""
        if needed > len(self._turns):
            self._turns = rotations(self.config, max(needed, 2 * len(self._turns)), self.device)
        return self._turns.index_select(0, positions_N).view(len(positions_N), 1, 1, -1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        normed = F.rms_norm(x, weight.shape, weight.to(x.dtype), self.config.rms_eps)
        return normed.to(self.weights.dtype)

    def _qkv(self, layer: PackedLayer, x: Tensor, turns: Tensor) -> Tensor:
        """(token, kv head, [queries, key, value], head_dim), queries and keys rotated."""
        qkv = layer.qkv(self._norm(x, layer.attn_norm)).to(self._wide)
        qkv = qkv.view(len(x), self.config.num_kv_heads, self._queries + 2, self.config.head_dim)
        turned = qkv[:, :, : self._queries + 1]
        if layer.qk_norm is not None:
            normed = F.rms_norm(turned.float(), (self.config.head_dim,), None, self.config.rms_eps)
            turned.copy_(normed.mul_(layer.qk_norm))
        _rotate_(turned, turns)
        return qkv

    def _attend(self, qkv: Tensor, plan: Plan, index: int) -> Tensor:
        """Attention of the new tokens over their prompt, their row's own positions, and themselves: (N, H·D)."""
        prefix_k, prefix_v, own_k, own_v = plan.layers[index]
        queries, dim = self._queries, self.config.head_dim
        packed = qkv.view(-1, (queries + 2) * dim)
        slots = packed if plan.to_slots is None else packed.index_select(0, plan.to_slots)
        parts = slots.view(-1, queries + 2, dim)
        q = parts[:, :queries] * self._scale
        plan.write(own_k, own_v, parts if plan.uniform else packed.view(-1, queries + 2, dim), queries)
        places = len(own_k)
        shared = torch.bmm(q.view(len(prefix_k), -1, dim), prefix_k)
        if plan.prefix_mask is not None:
            shared.add_(plan.prefix_mask)
        own = torch.bmm(q.view(places, -1, dim), own_k[..., : plan.own_length])
        if plan.own_mask is not None:
            own.view(places, plan.tokens, queries, -1).add_(plan.own_mask)
        scores = torch.cat((shared.view(places, -1, prefix_k.shape[2]), own, plan.filler(own)), -1)
        probs = torch.softmax(scores, -1)
        split, end = prefix_k.shape[2], prefix_k.shape[2] + plan.own_length
        mixed = torch.bmm(probs.view(len(prefix_k), -1, probs.shape[2])[..., :split], prefix_v)
        mixed.view(places, -1, dim).baddbmm_(probs[..., split:end], own_v[:, : plan.own_length])
        rows = mixed.view(-1, queries * dim)
        if plan.to_rows is not None:
            rows = rows.index_select(0, plan.to_rows)
        return rows.view(len(qkv), -1)

    def _finish(self, layer: PackedLayer, x: Tensor, mixed: Tensor) -> None:
        """The rest of a block, in place: attention's output projection, then the MLP."""
        layer.o.add_to(x, mixed.to(self.weights.dtype))
        gate, up = layer.gate_up(self._norm(x, layer.mlp_norm)).chunk(2, dim=-1)
        layer.down.add_to(x, F.silu(gate).mul_(up))

    def _logits(self, x: Tensor) -> Tensor:
        return self.weights.head(self._norm(x, self.weights.norm)).float()


def _rotate_(heads: Tensor, turns: Tensor) -> None:
    """Rotate (token, kv head, head, head_dim) in place; rotary pairs are neighbours."""
    pairs = heads.view(*heads.shape[:-1], -1, 2)
    if heads.dtype == torch.float32 and heads.device.type != "mps":
        torch.view_as_complex(pairs).mul_(turns)
        return
    even, odd = pairs[..., 0].float(), pairs[..., 1].float()
    cos, sin = turns.real, turns.imag
    pairs[..., 0] = even * cos - odd * sin
    pairs[..., 1] = even * sin + odd * cos
