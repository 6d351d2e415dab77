"""Do config.json files give the published numbers of parameters?

    python experiments/model_table.py [--configs DIR] [--out DIR]

Reads every config.json of a folder (without --configs the package's own models) and
prints total and active parameters and KV cache bytes per token, beside what was
published, or why a file is refused. Writes table.csv and summary.json. A second or two.

Totals count embedding, head and norms, and neither vision towers nor multi-token
prediction. Active ones count `top_k` of the routed experts and all else whole.
Published active figures are rounded to one or two digits, and differ in whether they
count embedding and head.

Found: of 24 files 20 load and 4 are refused by name (three for sparse attention, one
for linear attention). All totals are within 1% of a published figure but Llama 4
Scout's, whose 109B count its vision tower.
"""

import argparse
import csv
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lts.models import DecoderConfig, kv_bytes_per_token, load, names
from lts.models.architecture import ExpertFfn, GroupedAttention
from lts.models.totals import active_params, expert_params, num_params

TOLERANCE = 0.01


@dataclass(frozen=True, kw_only=True)
class Published:
    """Figures of a model's makers: parameters in all, and at work on one token."""

    total: float
    active: float | None = None
    source: str
    remark: str = ""


_LLAMA = "parameter count of the checkpoint on the hub"
_MIXTRAL = "mistral.ai, 'Mixtral of experts'"
_MIXTRAL_LARGE = "mistral.ai, 'Cheaper, better, faster, stronger'"
_DEEPSEEK = "arXiv 2412.19437, abstract"
_K2 = "sum over the checkpoint's safetensors headers; arXiv 2507.20534, section 2.3"
_K2_REMARK = "the card rounds to 1T; the report's 1.04T fits experts in all 61 layers"
_CARD = "model card"
_LLAMA4 = "ai.meta.com, 'The Llama 4 herd'; model card"
_V3 = Published(total=671e9, active=37e9, source=_DEEPSEEK)
_QWEN_235B = Published(total=235e9, active=22e9, source=_CARD)
_QWEN_32B = Published(total=32.8e9, source=_CARD)
PUBLISHED = {
    "llama-3.1-8b": Published(total=8.03e9, source=_LLAMA),
    "llama-3.1-70b": Published(total=70.6e9, source=_LLAMA),
    "llama-3.1-405b": Published(total=405e9, source=_LLAMA),
    "mixtral-8x7b": Published(total=46.7e9, active=12.9e9, source=_MIXTRAL),
    "mixtral-8x22b": Published(total=141e9, active=39e9, source=_MIXTRAL_LARGE),
    "qwen3-8b": Published(total=8.2e9, source=_CARD),
    "qwen3-32b": _QWEN_32B,
    "qwen3-32b-fp8": _QWEN_32B,
    "qwen3-30b-a3b": Published(total=30.5e9, active=3.3e9, source=_CARD),
    "qwen3-235b-a22b": _QWEN_235B,
    "qwen3-235b-a22b-fp8": _QWEN_235B,
    "qwen3-coder-480b-a35b-instruct": Published(total=480e9, active=35e9, source=_CARD),
    "deepseek-v3": _V3,
    "deepseek-r1": _V3,
    "kimi-k2": Published(
        total=1_026_408_232_448, active=32.6e9, source=_K2, remark=_K2_REMARK
    ),
    "kimi-k2.5": Published(
        total=1_026_879_376_368,
        active=32e9,
        source="sum over the checkpoint's safetensors headers; model card",
        remark="the checkpoint has a vision tower of 0.47B, which is not counted here",
    ),
    "minimax-m2.5": Published(
        total=230e9,
        active=10e9,
        source="model card of MiniMax-M2",
        remark="10B leave out embedding and head of 1.23B",
    ),
    "llama-4-scout-17b-16e-instruct": Published(
        total=109e9,
        active=17e9,
        source=_LLAMA4,
        remark="109B count the vision tower, which is not counted here",
    ),
    "llama-4-maverick-17b-128e-instruct": Published(
        total=400e9, active=17e9, source=_LLAMA4
    ),
    "llama-3_3-nemotron-super-49b": Published(
        total=49.87e9,
        source="size of its bfloat16 GGUF file, 99.74 GB; the card says 49B",
    ),
    "moe-1.6t": Published(total=1.6e12, source="the suite's own; made to have 1.6T"),
    "switch-c-2048": Published(
        total=1.571e12, source="arXiv 2101.03961, table 9 (Switch-C)"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One file; parameters, bytes, and relative differences from what was published."""

    model: str
    total: int | None = None
    active: int | None = None
    kv_bytes_per_token: int | None = None
    weights: str = ""
    published_total: float | None = None
    total_difference: float | None = None
    published_active: float | None = None
    active_difference: float | None = None
    source: str = ""
    remark: str = ""
    notes: str = ""
    refusal: str = ""


def row_of(name_or_path: str, model: str) -> Row:
    """The row of a model, or of its refusal."""
    try:
        config = load(name_or_path).config
    except ValueError as error:
        return Row(model=model, refusal=str(error).partition("; accepted types")[0])
    total, active = num_params(config), active_params(config)
    known = published(model)
    form = config.quantization
    return Row(
        model=model,
        total=total,
        active=active,
        kv_bytes_per_token=kv_bytes_per_token(config),
        weights=f"{form.dtype} ({form.scope})" if form else config.dtype,
        published_total=known.total if known else None,
        total_difference=_difference(total, known.total if known else None),
        published_active=known.active if known else None,
        active_difference=_difference(active, known.active if known else None),
        source=known.source if known else "",
        remark=known.remark if known else "",
        notes="; ".join(config.notes),
    )


def published(model: str) -> Published | None:
    """The figures of the longest known name that the model's name begins with."""
    name = model.rpartition("--")[2].lower().removeprefix("meta-")
    known = [stem for stem in PUBLISHED if name.startswith(stem)]
    return PUBLISHED[max(known, key=len)] if known else None


def _difference(found: int, figure: float | None) -> float | None:
    return None if figure is None else found / figure - 1.0


def arithmetic(config: DecoderConfig) -> list[str]:
    """How the total of a model of equal layers with experts comes about, as lines."""
    layer, d = config.layers[0], config.hidden_size
    attention, ffn = layer.attention, layer.ffn
    assert isinstance(attention, GroupedAttention) and isinstance(ffn, ExpertFfn)
    depth, head = config.num_hidden_layers, attention.head_dim
    queries, keys = attention.num_heads * head, attention.num_kv_heads * head
    matrices = 3 if ffn.gated else 2
    router = ffn.num_experts * (d + 1 if ffn.routing.biased else d)
    each = f"{ffn.num_experts} experts x {matrices} x {d} x {ffn.size}"
    terms = [
        (
            f"{depth} layers x {each}",
            depth * ffn.num_experts * expert_params(d, ffn),
        ),
        (
            f"{depth} layers x shared expert {matrices} x {d} x {ffn.shared_size}",
            depth * matrices * d * ffn.shared_size,
        ),
        (
            f"{depth} layers x attention (2 x {d} x {queries} + 2 x {d} x {keys})",
            depth * 2 * d * (queries + keys),
        ),
        (f"{depth} routers of {ffn.num_experts} experts", depth * router),
        (
            f"embedding and head 2 x {config.vocab_size} x {d}",
            2 * config.vocab_size * d,
        ),
        (f"norms ({2 * depth} + 1) x {d}", (2 * depth + 1) * d),
    ]
    total = num_params(config)
    assert sum(count for _, count in terms) == total, "the terms are the total"
    lines = [f"  {text:58} {count:>20,}" for text, count in terms if count]
    return [f"{config.name}", *lines, f"  {'in all':58} {total:>20,}"]


def summary(rows: list[Row]) -> dict[str, object]:
    """Flat keys: what each file gives, and how many load and are close."""
    loaded = [row for row in rows if not row.refusal]
    compared = [row for row in loaded if row.total_difference is not None]
    close = [row for row in compared if abs(row.total_difference or 0) <= TOLERANCE]
    found: dict[str, object] = {
        "models": len(rows),
        "loaded": len(loaded),
        "refused": len(rows) - len(loaded),
        "totals_compared": len(compared),
        "totals_within_1_percent": len(close),
    }
    for row in rows:
        for key, value in asdict(row).items():
            if key != "model" and value not in (None, ""):
                found[f"{row.model}/{key}"] = value
    return found


def text_of(row: Row) -> str:
    """One line of the printed table, or two."""
    if row.total is None:
        return f"{row.model:36} refused: {row.refusal}"
    shares = [row.total_difference, row.active_difference]
    total, active = ("" if s is None else f"{s:+.1%}" for s in shares)
    remark = f"\n{'':37}{row.remark}" if row.remark else ""
    return (
        f"{row.model:36} {row.total / 1e9:9.2f} {total:>6} "
        f"{(row.active or 0) / 1e9:8.2f} {active:>6} {row.kv_bytes_per_token:>10,}"
        f"  {row.weights}{remark}"
    )


def main() -> None:
    """Parse the knobs, read, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--configs", type=Path, help="folder of config.json files")
    parser.add_argument("--out", type=Path, default=Path("results/model_table"))
    args = parser.parse_args()
    if args.configs is None:
        asked = [(name, name) for name in names()]
    else:
        paths = sorted(args.configs.glob("*.json"))
        if not paths:
            parser.error(f"no .json files in {args.configs}; give a folder of them")
        asked = [(str(path), path.stem.removesuffix("_config")) for path in paths]
        asked = [(path, model.rpartition("--")[2]) for path, model in asked]
        asked += [(name, name) for name in ("moe-1.6t", "switch-c-2048")]
    rows = [row_of(name_or_path, model) for name_or_path, model in asked]
    heads = ("total, 1e9", "active, 1e9", "KV B/token")
    print(f"{'model':36} {heads[0]:>16} {heads[1]:>15} {heads[2]:>10}  weights")
    for row in rows:
        print(text_of(row))
    sums = [arithmetic(load(name).config) for name in ("moe-1.6t", "switch-c-2048")]
    print("", *(line for lines in sums for line in lines), sep="\n")
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    text = json.dumps(summary(rows), indent=1)
    (args.out / "summary.json").write_text(text + "\n")
    (args.out / "arithmetic.txt").write_text("\n".join(map("\n".join, sums)) + "\n")


if __name__ == "__main__":
    main()
