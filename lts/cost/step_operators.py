"""What one GPU does in a step of serving, and how long each kind of it takes.

In closed form from the sizes of a model (`lts.cost.served`) and the degrees of its
layout, through calibrated operators (`Kernels`). A step holds decoding sequences, each
with one new token, and prompts that are read whole: their products run over all tokens
at once, attention over each kind by itself.

Times are of the full depth: with pipeline stages, what a token takes from the first to
the last, every stage at its own micro-batch.
"""

import numpy as np

from lts.cost.served import (
    CompressedAttention,
    LinearAttention,
    ServedLayer,
    ServedModel,
    matrices,
)
from lts.cost.served_step import (
    ACTIVATION_BYTES,
    CLASSES,
    STATE_BYTES,
    Kernels,
    Layout,
    Precision,
    Step,
    per_rank,
)
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
)

CachedAttention = GroupedAttention | LatentAttention | CompressedAttention


def rank_step(
    model: ServedModel,
    layout: Layout,
    precision: Precision,
    kernels: Kernels,
    step: Step,
) -> dict[str, np.ndarray]:
    """Seconds of a step by class (`CLASSES`), on the busiest rank, full depth."""
    own = _Rank(model, layout, precision, kernels, step)
    none = np.zeros(np.shape(own.tokens))
    times: dict[str, np.ndarray] = dict.fromkeys(CLASSES, none)
    for layer in model.layers:
        for name, time in own.layer(layer).items():
            times[name] = times[name] + layer.repeats * time
    for name, time in own.ends().items():
        times[name] = times[name] + time
    return times


LATENT_WIDTH = 128 + 64 + 128
"""Of a head's query and value in the latent attention that was measured."""


def _latent_width(attention: LatentAttention | CompressedAttention) -> int:
    if isinstance(attention, CompressedAttention):
        return 2 * attention.head_dim
    return attention.nope_dim + attention.rope.size + attention.value_dim


class _Rank:
    """One rank of a layout in one step."""

    def __init__(
        self,
        model: ServedModel,
        layout: Layout,
        precision: Precision,
        kernels: Kernels,
        step: Step,
    ) -> None:
        self.model, self.layout, self.kernels = model, layout, kernels
        self.precision, self.step = precision, step
        self.sequences = per_rank(step.sequences, layout.dp)
        self.prompts = per_rank(step.prompts, layout.dp)
        self.rows = self.sequences + self.prompts
        self.tokens = self.sequences + self.prompts * step.prompt_len
        self.all_tokens = np.asarray(step.sequences + step.prompts * step.prompt_len)

    def layer(self, layer: ServedLayer) -> dict[str, np.ndarray]:
        """Seconds of one layer by class."""
        parts = matrices(layer, self.model.hidden_size)
        gemm = self._gemms(parts["attention"], self.precision.attention, layer)
        gemm = gemm + self._gemms(parts["ffn"], self.precision.ffn, layer)
        gemm = gemm + self._gemms(parts.get("router", []), "bfloat16", layer)
        times = {
            "gemm": gemm,
            "attention": self._attention(layer),
            "elementwise": self._elementwise(layer),
        }
        routed = isinstance(layer.ffn, ExpertFfn)
        if isinstance(layer.ffn, ExpertFfn):
            times["moe"] = self.kernels.experts(
                self.all_tokens,
                layer.expert_input or self.model.hidden_size,
                layer.ffn.size,
                layer.ffn.top_k,
                layer.ffn.num_experts,
                self.layout.expert_tensor_ways,
                self.layout.ep,
                self.precision.experts,
            )
        reduced = self._sum(self.tokens)
        sums = (layer.attention is not None) + (layer.ffn is not None)
        times["all_reduce"] = sums * reduced
        if routed and self.layout.dp > 1:
            times["dispatch"] = self._around_experts()
        return times

    def ends(self) -> dict[str, np.ndarray]:
        """Seconds of the head and of handing over between stages."""
        layout, hidden = self.layout, self.model.hidden_size
        vocab = self.model.vocab_size / layout.tp
        head = self.kernels.gemm(self.rows, vocab, hidden, "bfloat16")
        if layout.tp > 1:
            nbytes = self.rows * self.model.vocab_size * ACTIVATION_BYTES
            head = head + self._collective("all_gather", nbytes, layout.tp, 1)
        sent = np.zeros(())
        if layout.pp > 1:
            nbytes = self.tokens * hidden * ACTIVATION_BYTES
            across = layout.num_gpus > layout.gpus_per_node
            sent = (layout.pp - 1) * self.kernels.pass_on(nbytes, across)
        return {"lm_head": head, "all_reduce": sent}

    def _gemms(
        self, found: list[tuple[int, int, str]], form: str, layer: ServedLayer
    ) -> np.ndarray:
        total, tp = np.zeros(()), self.layout.tp
        for inputs, outputs, split in found:
            n, k = float(outputs), float(inputs)
            if split == "out":
                n /= tp
            elif split == "in":
                k /= tp
            elif split == "kv":
                assert isinstance(layer.attention, GroupedAttention)
                n /= min(tp, layer.attention.num_kv_heads)
            total = total + self.kernels.gemm(self.tokens, n, k, form)
        return total

    def _attention(self, layer: ServedLayer) -> np.ndarray:
        attention, step = layer.attention, self.step
        if attention is None:
            return np.zeros(())
        context, prompt = np.asarray(step.context), np.asarray(step.prompt_len)
        time = np.zeros(())
        if layer.indexer is not None:
            time = self._indexer(layer)
            if not isinstance(attention, CompressedAttention):
                most = layer.indexer.top_k
                seen = np.minimum(prompt, most)
                prompt = np.sqrt(np.maximum(2 * prompt * seen - seen**2, 1.0))
                context = np.minimum(context, most)
        if isinstance(attention, LinearAttention):
            return time + self._linear(attention)
        time = time + self._prompts(attention, prompt)
        return time + self._decode(attention, layer, context / self.layout.cp)

    def _grouped(self, attention: GroupedAttention) -> tuple:
        """Heads of one rank, and what else a kernel is told."""
        return (
            max(1.0, attention.num_heads / self.layout.tp),
            max(1.0, attention.num_kv_heads / self.layout.tp),
            attention.head_dim,
            attention.window,
            self.precision.cache,
        )

    def _prompts(self, attention: CachedAttention, length: np.ndarray) -> np.ndarray:
        read = self.prompts > 0
        if not read.any():
            return np.zeros(())
        prompts, length = np.maximum(self.prompts, 1e-9), np.maximum(length, 1.0)
        if isinstance(attention, GroupedAttention):
            time = self.kernels.prefill_attention(
                prompts, length, *self._grouped(attention)
            )
        else:
            if isinstance(attention, CompressedAttention):
                # as many pairs of positions as in a causal prompt of this length
                far = length / (2 * attention.ratio) if attention.ratio else 0.0
                near = np.minimum(length, attention.window)
                length = np.sqrt(2 * length * (near + far))
            heads = attention.num_heads / self.layout.tp
            wide = heads * _latent_width(attention) / LATENT_WIDTH
            time = self.kernels.latent_attention(
                "prefill", prompts, length, wide, self.precision.cache
            )
        return np.where(read, time, 0.0)

    def _decode(
        self, attention: CachedAttention, layer: ServedLayer, context: np.ndarray
    ) -> np.ndarray:
        runs = self.sequences > 0
        if not runs.any():
            return np.zeros(())
        sequences = np.maximum(self.sequences, 1e-9)
        if isinstance(attention, GroupedAttention):
            time = self.kernels.decode_attention(
                sequences, context, *self._grouped(attention)
            )
        else:
            if isinstance(attention, CompressedAttention):
                far = context / attention.ratio if attention.ratio else 0.0
                if layer.indexer is not None:
                    far = np.minimum(far, layer.indexer.top_k)
                context = np.minimum(context, attention.window) + far
            heads = attention.num_heads / self.layout.tp
            time = self.kernels.latent_attention(
                "decode", sequences, context, heads, self.precision.cache
            )
        return np.where(runs, time, 0.0)

    def _indexer(self, layer: ServedLayer) -> np.ndarray:
        index, step = layer.indexer, self.step
        assert index is not None
        ratio = getattr(layer.attention, "ratio", 1) or 1
        # one key head that all index heads share, as a product of queries and keys
        queries = self.sequences * index.num_heads
        decode = self.kernels.gemm(
            np.maximum(queries, 1.0), step.context / ratio, index.head_dim, "bfloat16"
        )
        rows = self.prompts * step.prompt_len * index.num_heads
        length = np.maximum(np.asarray(step.prompt_len) / (2 * ratio), 1.0)
        prefill = self.kernels.gemm(
            np.maximum(rows, 1.0), length, index.head_dim, "bfloat16"
        )
        return np.where(queries > 0, decode, 0.0) + np.where(rows > 0, prefill, 0.0)

    def _linear(self, attention: LinearAttention) -> np.ndarray:
        values = attention.num_value_heads / self.layout.tp
        state = values * attention.key_dim * attention.value_dim * STATE_BYTES
        moved = 2 * state * (self.sequences + self.prompts)
        width = values * (2 * attention.key_dim + 2 * attention.value_dim)
        moved = moved + 4 * width * ACTIVATION_BYTES * self.tokens
        return self.kernels.elementwise(moved)

    def _elementwise(self, layer: ServedLayer) -> np.ndarray:
        """Norms with their residuals, rotary embedding, and gated activations."""
        moved = 0.0
        hidden, tp = self.model.hidden_size, self.layout.tp
        if layer.attention is not None:
            moved += 4 * hidden
        if isinstance(layer.attention, GroupedAttention):
            own = layer.attention
            moved += 2 * (own.num_heads + own.num_kv_heads) * own.head_dim / tp
        if layer.ffn is not None:
            moved += 4 * hidden
        if isinstance(layer.ffn, DenseFfn):
            moved += (3 if layer.ffn.gated else 2) * layer.ffn.size / tp
        return self.kernels.elementwise(moved * ACTIVATION_BYTES * self.tokens)

    def _sum(self, tokens: np.ndarray) -> np.ndarray:
        if self.layout.tp == 1:
            return np.zeros(np.shape(tokens))
        nbytes = tokens * self.model.hidden_size * ACTIVATION_BYTES
        return self._collective("all_reduce", nbytes, self.layout.tp, 1)

    def _around_experts(self) -> np.ndarray:
        """Every rank gets the tokens of all replicas, and sums of its own back.

        Ranks at the same place of each replica exchange; inside a replica, a sum over
        its tensor-parallel ranks follows, as after any feed-forward part.
        """
        layout = self.layout
        nbytes = self.all_tokens * self.model.hidden_size * ACTIVATION_BYTES
        gather = self._collective("all_gather", nbytes, layout.dp, layout.tp)
        back = self._collective("reduce_scatter", nbytes, layout.dp, layout.tp)
        return gather + back

    def _collective(
        self, kind: str, nbytes: np.ndarray, ways: int, stride: int
    ) -> np.ndarray:
        inside, across = self.layout.group(ways, stride)
        custom = kind == "all_reduce" and across == 1
        return self.kernels.collective(kind, nbytes, inside, across, custom)
