"""How a measured row was deployed: layout, forms of weights, and load, for the model.

Everything that the file leaves open is decided here, in one place, with its reason.
"""

import re
from dataclasses import dataclass

from experiments.e2e.rows import Row
from lts.cost.profile import MEMORY_RULES, MemoryRule
from lts.cost.served import ServedModel
from lts.cost.served_step import Layout, Precision

_BLOCKED = re.compile(r"deepseek|qwen3|minimax|kimi|glm-5", re.IGNORECASE)
"""Models whose float8 weights are published with a scale per block of 128 x 128."""

_ENTRIES = ("trt09", "trt014", "trt017", "trt10", "trt10rtx", "trtonline")

REQUESTS_AT_MAX_LOAD = {(128, 128): 30000, (20000, 2000): 1000}
"""Requests of a maximum-load run by lengths; `DEFAULT_REQUESTS` for others. Source:
commands in TensorRT-LLM's performance overview; not in the rows."""
DEFAULT_REQUESTS = {"short": 3000, "long": 1500}
LONG_TOKENS = 4000
"""Input and output tokens from which a run had half as many requests."""

RANDOM_LENGTHS = 0.9
"""Mean over nominal lengths of InferenceMAX runs, which draw from 80% to 100%."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One server of a row, and its share of the load.

    `requests` in flight or sent, per server; None for as many as fit.
    """

    model: ServedModel
    layout: Layout
    precision: Precision
    memory: MemoryRule
    servers: int
    input_len: float
    output_len: float
    requests: float | None


def deployment_of(row: Row, model: ServedModel) -> Deployment:
    """The deployment of a row.

    Raises:
      ValueError: in one line, if the row does not say enough.
    """
    if row.input_len is None or (row.output_len is None and row.phase != "prefill"):
        raise ValueError("lengths not given")
    if row.quantity == "other":
        raise ValueError(f"metric {row.metric!r} is not predicted")
    if row.load == "other":
        raise ValueError("load not given")
    if row.dp is None:
        raise ValueError("attention data parallel degree not given")
    if row.kind == "dsday6":
        raise ValueError("a production average")
    scale = RANDOM_LENGTHS if "InferenceMAX" in row.notes else 1.0
    layout, servers = layout_of(row, model)
    requests = row.requests
    if requests is not None:
        requests = max(requests / servers, 1.0)
    return Deployment(
        model=model,
        layout=layout,
        precision=precision_of(row),
        memory=MEMORY_RULES.get(_maker(row.engine), MemoryRule()),
        servers=servers,
        input_len=row.input_len * scale,
        output_len=max((row.output_len or 1.0) * scale, 1.0),
        requests=requests,
    )


def _maker(engine: str) -> str:
    return "trtllm" if engine == "nim" else engine


def layout_of(row: Row, model: ServedModel) -> tuple[Layout, int]:
    """Layout of one server, and the number of servers."""
    dp = row.dp or 1
    given = row.tp * row.pp * dp
    servers = max(row.servers, row.num_gpus // given if row.num_gpus > given else 1)
    if row.servers > 1:
        dp //= row.servers
    ep, tp = row.ep, row.tp
    if not model.num_expert_layers:
        servers, dp, ep = servers * dp, 1, 1
    elif ep is None and row.kind == "trt10":
        # its command for mixtures of experts sets --ep and attention DP over all GPUs
        tp, dp, ep = 1, tp, tp
    match = re.search(r"dcp=(\d+)", row.notes)
    layout = Layout(
        tp=tp,
        pp=row.pp,
        dp=dp,
        ep=min(ep or 1, tp * dp),
        cp=int(match[1]) if match else 1,
    )
    return layout, servers


def precision_of(row: Row) -> Precision:
    """Forms of weights and cache that the engines use for the row's precision."""
    text = row.precision.lower()
    maker = _maker(row.engine)
    blocked = _BLOCKED.search(row.model) and row.kind not in _ENTRIES
    if "mxfp4" in text or text.startswith("int4") or "fp4 experts" in text:
        # experts alone are of few bits in the published checkpoints
        rest = "fp8" if "fp8" in text else "bfloat16"
        return Precision(
            attention=rest,
            ffn=rest,
            experts="fp4" if "fp4" in text else "int4",
            cache="fp8" if "fp8 kv" in text else "bfloat16",
        )
    if "fp4" in text:
        cache = "fp8" if maker == "trtllm" else "bfloat16"
        rest = "bfloat16" if "V4" in row.model else "fp4"
        return Precision(attention=rest, ffn="fp4", experts="fp4", cache=cache)
    if text == "fp8-weights" or (text.startswith("fp8") and row.gpu.startswith("A")):
        return Precision(attention="w8", ffn="w8", experts="w8")
    if text.startswith("fp8"):
        form = "fp8_block" if blocked else "fp8"
        # TensorRT-LLM's float8 checkpoints ask for a float8 cache, but those in blocks
        # (DeepSeek) do not
        cache = "fp8" if maker == "trtllm" and not blocked else "bfloat16"
        return Precision(attention=form, ffn=form, experts=form, cache=cache)
    return Precision()
