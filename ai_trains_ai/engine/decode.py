"""Decoder: a packed model that reads prompts and tokens into a KVCache and returns next-token logits.

    prefill  prompts ─> cache, logits_G_V       causal attention inside each prompt; a prompt is read once
    step     one token a row ─> logits_B_V      the loop that sampling lives in
    extend   some tokens a row ─> logits_B_V    what a tool answered, a second turn

New tokens are packed: a linear layer sees exactly those that exist, in row order. In attention the queries of
a group meet their prompt's keys in one product, each row meets its own keys, and one softmax covers both; see
`workspace`.

Every product goes through a `packed.Matrix` with all tokens of the call in row order. A Matrix that holds
several LoRA adapters side by side fits there: x · [a₁ᵀ a₂ᵀ ...], zeroed outside each row's own adapter, times
the b's stacked. An adapter that all rows share is merged into the weights when they are packed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ai_trains_ai.engine.kvcache import CacheShape, KVCache
from ai_trains_ai.engine.matrix import Precision
from ai_trains_ai.engine.model import Model
from ai_trains_ai.engine.packed import PackedLayer, pack, rotations
from ai_trains_ai.engine.plan import plan_tokens
from ai_trains_ai.engine.workspace import Workspace
from ai_trains_ai.errors import UsageError

_CHUNK = 64
"""`extend` reads at most this many tokens a row at once, which bounds the size of its attention scores."""


class Decoder:
    """A snapshot of a model's weights, ready to generate.

    precision: of the products, as in training; None: "fp32" or "bf16", as the model is. The residual stream
               is float32 whatever it is, and so is the cache on a CPU: narrower ones are not faster there.
    """

    def __init__(self, model: Model, *, precision: Precision | None = None) -> None:
        self.weights = pack(model, precision)
        self.config = model.config
        self.device = self.weights.device
        self._attention = torch.float32 if self.device.type == "cpu" else self.weights.dtype
        self._queries = self.config.num_heads // self.config.num_kv_heads
        self._eps = torch.full((1, 1), self.config.rms_eps, device=self.device)
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
        shape = CacheShape(c.num_layers, c.num_kv_heads, c.head_dim, self._attention, self.device)
        cache = KVCache.empty(shape, lengths, counts, room)
        tokens_N = torch.tensor([token for prompt in prompts for token in prompt], device=self.device)
        return cache, self._prefill(cache, tokens_N, lengths)

    @torch.inference_mode()
    def step(self, cache: KVCache, tokens_B: Tensor) -> Tensor:
        """Append one token to every row; float32 logits of the next ones, (rows, vocab)."""
        cache.reserve(1)
        space = cache.scratch
        if isinstance(space, Workspace) and space.plan.version == cache.version:
            space.advance(cache)
        else:
            space = Workspace(plan_tokens(cache), cache, self.weights)
            cache.scratch = space
        return self._logits(self._read(cache, space, tokens_B))

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
            plan = plan_tokens(cache, [len(part) for part in parts])
            hidden = self._read(cache, Workspace(plan, cache, self.weights), flat)
            end = 0
            for row, part in enumerate(parts):
                end += len(part)
                if part:
                    last[row] = hidden[end - 1]
        cache.scratch = None
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
        x = self.weights.embed.index_select(0, tokens_N)
        for i, layer in enumerate(self.weights.layers):
            qkv = layer.qkv(self._normed(x)).to(self._attention)
            qkv = qkv.view(len(x), self.config.num_kv_heads, queries + 2, self.config.head_dim)
            self._turn_(layer, qkv[:, :, : queries + 1], turns)
            padded = qkv.index_select(0, spread).view(groups, longest, *qkv.shape[1:])
            k, v = padded[..., queries, :].transpose(1, 2), padded[..., queries + 1, :].transpose(1, 2)
            cache.prefix_k[i, ..., :longest] = k.transpose(2, 3)
            cache.prefix_v[i, :, :, :longest] = v
            mixed = self._causal(padded)
            if i + 1 == len(self.weights.layers):  # from here on only the last tokens matter
                last = starts + sizes - 1
                packed, x = packed.index_select(0, last), x.index_select(0, last)
            self._finish(layer, x, mixed.view(groups * longest, -1).index_select(0, packed))
        return self._logits(x)

    def _causal(self, heads: Tensor) -> Tensor:
        """Causal attention inside each prompt: (group, position, kv head, [queries, key, value], dim) ->
        (group, position, heads, dim), in the products' dtype.
        """
        heads = heads.to(self.weights.dtype)
        queries = self._queries
        q = heads[..., :queries, :].flatten(2, 3).transpose(1, 2)
        k, v = heads[..., queries, :].transpose(1, 2), heads[..., queries + 1, :].transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=queries > 1)
        return mixed.transpose(1, 2).contiguous()

    def _read(self, cache: KVCache, space: Workspace, tokens_N: Tensor) -> Tensor:
        """Hidden states (before the final norm) of the plan's new tokens; the cache grows by them."""
        plan = space.plan
        turns = self._turns_at(plan.positions_N, max(cache.positions, default=0) + plan.tokens)
        x = self.weights.embed.index_select(0, tokens_N)
        for i, layer in enumerate(self.weights.layers):
            layer.qkv.into(space.qkv_rows, self._normed(x, space.normed))
            self._turn_(layer, space.turned, turns)
            self._finish(layer, x, space.attend(i), space.normed)
        for row, count in zip(cache.rows, plan.counts, strict=True):
            row.length += count
        return x

    def _turns_at(self, positions_N: Tensor, needed: int) -> Tensor:
        """Rotations of the positions, shaped to meet (token, kv head, query, pair)."""
        if needed > len(self._turns):
            self._turns = rotations(self.config, max(needed, 2 * len(self._turns)), self.device)
        return self._turns.index_select(0, positions_N).view(len(positions_N), 1, 1, -1)

    def _normed(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x / rms(x) in the products' dtype, in `out` if given; the gain is folded into the next matrix."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = torch.addcmul(self._eps, length, length, value=1.0 / x.shape[1]).rsqrt_()
        return torch.mul(
            x, inverse, out=torch.empty_like(x, dtype=self.weights.dtype) if out is None else out
        )

    def _turn_(self, layer: PackedLayer, heads: Tensor, turns: Tensor) -> None:
        """Normalise where the model does, and rotate (token, kv head, [queries, key], dim), in place."""
        if layer.qk_norm is not None:
            normed = F.rms_norm(heads.float(), heads.shape[-1:], None, self.config.rms_eps)
            heads.copy_(normed.mul_(layer.qk_norm))
        _rotate_(heads, turns)

    def _finish(self, layer: PackedLayer, x: Tensor, mixed: Tensor, normed: Tensor | None = None) -> None:
        """The rest of a block, in place: attention's output projection, then the MLP."""
        layer.o.add_to(x, mixed)
        both = layer.gate_up(self._normed(x, normed))
        inner = self.config.intermediate_size
        layer.down.add_to(x, F.silu(both[:, :inner]).mul_(both[:, inner:]))

    def _logits(self, x: Tensor) -> Tensor:
        return self.weights.head(self._normed(x)).float()


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
