"""Measured rows of published serving benchmarks, in SI units and one spelling.

Columns as in `measured.csv` (see `e2e_accuracy.py`): a row is one metric of one
deployment under one load. What a source leaves out stays None.
"""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Quantity = Literal["tokens_per_s", "tpot_s", "ttft_s", "other"]
Load = Literal["closed", "max", "open", "at_once", "static", "other"]

_ENGINES = {
    "trtllm": ("trtllm", "tensorrt-llm", "trt-llm", "tensorrt_llm"),
    "nim": ("docs.nvidia.com/nim",),
    "vllm": ("vllm",),
    "sglang": ("sglang",),
    "splitwise": ("splitwise",),
}
_METRICS: dict[str, Quantity] = {
    "ttft": "ttft_s",
    "ttft_mean": "ttft_s",
    "ttft_p50": "ttft_s",
    "prefill_time": "ttft_s",
    "tpot": "tpot_s",
    "tpot_mean": "tpot_s",
    "itl_mean": "tpot_s",
    "output_throughput_total": "tokens_per_s",
    "output_throughput_per_gpu": "tokens_per_s",
    "output_throughput_per_node": "tokens_per_s",
    "total_token_throughput": "tokens_per_s",
    "input_throughput_total": "tokens_per_s",
    "input_throughput_per_node": "tokens_per_s",
    "request_throughput": "tokens_per_s",
}
_UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured metric.

    Attributes:
      num_gpus, tp, pp, dp, ep: of the whole deployment; `dp` counts attention replicas
        and independent servers alike; None where the source is silent.
      servers: independent servers; experts are not shared between them.
      input_len, output_len: tokens of a request (means), None if not given.
      load: what drives the server: a closed loop of `requests`, as many as it takes
        ("max"), an open rate, all `requests` at once, or a static batch of `requests`.
      quantity, value: seconds, or generated tokens per second of the whole deployment
        (of prefill, one per prompt).
      group: the key of rows that differ in the configuration alone; None for none.
      label: of the configuration inside a group.
      engine, version, year: as far as the row says; version "" if not.
      kind: of source, the part of the id before its number.
      queueing: the source says that the time to first token is queueing.
      low_confidence: a single user report, or cells that the collector doubts.
    """

    id: str
    model: str
    gpu: str
    num_gpus: int
    precision: str
    tp: int
    pp: int
    dp: int | None
    ep: int | None
    servers: int
    phase: str
    input_len: float | None
    output_len: float | None
    load: Load
    requests: float | None
    rate: float | None
    metric: str
    quantity: Quantity
    value: float
    group: str | None
    label: str
    engine: str
    version: str
    year: int
    kind: str
    queueing: bool
    low_confidence: bool
    notes: str

    @property
    def profile(self) -> str:
        """Engine, version and source: what one profile is fitted on."""
        version = self.version or str(self.year)
        return f"{self.engine} {version} {self.kind}"

    @property
    def engine_year(self) -> str:
        """Name of the shipped profile that the row falls to."""
        return f"{self.family}-{self.year}"

    @property
    def engine_version(self) -> str:
        """As `engine_year`, where the source names a release; else empty."""
        if not re.match(r"\d+\.", self.version):
            return ""
        # one release goes by 0.14 and by 0.14.0
        release = re.sub(r"^(\d+\.\d+)\.0$", r"\1", self.version)
        return f"{self.family}-{release}"

    @property
    def family(self) -> str:
        """The engine that serves: NIM packs TensorRT-LLM."""
        return "trtllm" if self.engine == "nim" else self.engine

    @property
    def shape(self) -> tuple:
        """What is held out together: model and lengths."""
        return self.model, self.input_len, self.output_len


def read(path: Path) -> list[Row]:
    """Rows of a file in the format of `measured.csv`.

    Raises:
      ValueError: if a column is missing.
    """
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    try:
        return [_row(line) for line in lines]
    except KeyError as error:
        raise ValueError(f"{path}: column {error} is missing") from None


def _row(line: dict[str, str]) -> Row:
    notes, source = line["notes"], line["source"]
    kind = line["id"].rpartition("-")[0]
    match = re.match(r"cmp=([^;]*)(?:;\s*([^;]*))?", notes)
    group, label = (match[1], match[2] or "") if match else (None, "")
    phase, metric = line["phase"], line["metric"]
    num_gpus = int(line["n_gpus"])
    input_len, output_len = _number(line["input_len"]), _number(line["output_len"])
    load, requests, rate = _load(line["batch_or_concurrency"], phase, notes)
    engine, version = _engine(group or "", notes, source)
    dp = _number(line["dp"])
    tp, pp = int(line["tp"]), int(line["pp"])
    return Row(
        id=line["id"],
        model=line["model"],
        gpu=line["gpu"],
        num_gpus=num_gpus,
        precision=line["precision"],
        tp=tp,
        pp=pp,
        dp=None if dp is None else int(dp),
        ep=None if not line["ep"] else int(line["ep"]),
        servers=int(found[1]) if (found := re.match(r"(\d+) x ", label)) else 1,
        phase=phase,
        input_len=input_len,
        output_len=output_len,
        load=load,
        requests=requests,
        rate=rate,
        metric=metric,
        quantity=_METRICS.get(metric, "other"),
        value=_value(line, num_gpus, input_len, output_len),
        group=group,
        label=label,
        engine=engine,
        version=version,
        year=int(found[0])
        if (found := re.search(r"20\d\d", line["source_date"]))
        else 0,
        kind=kind,
        queueing="queueing" in notes and "no queueing" not in notes,
        low_confidence=_is_doubtful(kind, dp),
        notes=notes,
    )


def _value(
    line: dict[str, str],
    num_gpus: int,
    input_len: float | None,
    output_len: float | None,
) -> float:
    value, metric = float(line["value"]), line["metric"]
    if metric.startswith("input_throughput") and input_len:
        nodes = num_gpus / 8 if metric.endswith("per_node") else 1.0
        return value * nodes / input_len * (output_len or 1)
    if metric.endswith("per_gpu"):
        return value * num_gpus
    if metric.endswith("per_node"):
        return value * num_gpus / 8
    if metric == "request_throughput":
        return value * (output_len or 1)
    if metric == "total_token_throughput" and input_len and output_len:
        return value * output_len / (input_len + output_len)
    return value * _UNITS.get(line["unit"], 1.0)


def _load(text: str, phase: str, notes: str) -> tuple[Load, float | None, float | None]:
    """Kind of load, requests in flight or sent, requests per second."""
    if match := re.fullmatch(r"(\d+) requests at once", text):
        return "at_once", float(match[1]), None
    if match := re.search(r"(?:qps=|rate )?([\d.]+)( req/s)?", text):
        number = float(match[1])
        if "qps" in text or "rate" in text or "req/s" in text:
            return "open", None, number
        if "static batch" in notes or phase != "mixed" or "prefill_time" in notes:
            return "static", number, None
        return "closed", number, None
    return ("max" if "max-load" in notes else "other"), None, None


def _engine(group: str, notes: str, source: str) -> tuple[str, str]:
    """Engine and version."""
    fields = group.split("|")
    if fields[0] == "aic" and len(fields) > 6:
        version = fields[5] if fields[5] != "ver?" else ""
        return fields[3], version
    own = re.sub(r"github\.com/\S+/blob", "", source)
    for text in (own, group, notes):
        low = text.lower()
        found = {
            name: min(low.find(w) for w in words if w in low)
            for name, words in _ENGINES.items()
            if any(w in low for w in words)
        }
        # a laboratory's own repository is no engine: its notes name it
        if found:
            name = min(found, key=lambda n: found[n])
            return name, _version(name, f"{notes} {source}")
    return "unknown", ""


def _version(engine: str, text: str) -> str:
    words = {"trtllm": r"TensorRT-LLM|trtllm", "nim": "NIM"}.get(engine, engine)
    match = re.search(rf"(?:{words})[ /]v?(\d+\.\d+[\w.+]*)", text, re.IGNORECASE)
    match = match or re.search(r"\(v(\d+\.\d+[\d.]*)|\bv(\d+\.\d+\.\d+)", text)
    return next((part for part in match.groups() if part), "") if match else ""


def _is_doubtful(kind: str, dp: float | None) -> bool:
    single = {"iss", "eq-sgcp", "eq-k2t", "eq-d4b2"}
    return kind in single or (kind == "eq-q3n" and dp != 1)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def without_repeats(rows: list[Row], key_of: Callable[[str], str]) -> list[Row]:
    """Rows without those that repeat an earlier one digit for digit.

    Sources list one measurement under several names of an architecture.

    Args:
      key_of: the same for all names of one architecture.
    """
    kept: dict[tuple, Row] = {}
    for row in rows:
        own = replace(row, id="", model=key_of(row.model), group=None, notes="")
        kept.setdefault(tuple(vars(own).values()), row)
    return [*kept.values()]
