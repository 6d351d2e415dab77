"""What a report says of a plan, read from the data of plan.json.

Text and HTML show the same facts: operators that shard alike in one row, arguments
whose specs are alike in one row, and where the time of a step goes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lts.report.units import counted, size

Data = Mapping[str, Any]
Sharded = tuple[tuple[str, tuple[str, ...]], ...]
"""Per sharded factor or dim, in the order of the axes: its name and its axes."""

KINDS = {
    "op": "operators",
    "value": "elementwise and cache",
    "reshard": "communication",
    "hand-over": "pipeline hand-over",
    "engine": "launches and host",
}
"""Kinds of time, and what reports call them."""

_DEGREE_WORDS = {"dp": "data", "tp": "tensor", "cp": "context"}
_EXPERT_WORDS = {"moe_tp": "tensor", "moe_ep": "expert"}
_GAP_KINDS = {
    "relaxed": "a relaxation: every operator at its fastest, all reshards free",
}


@dataclass(frozen=True, kw_only=True)
class OpRow:
    """Operators of one group that shard alike in every phase.

    Attributes:
      group: prefix that their names share, or "".
      names: without the prefix.
      sharded: by phase; None where the phase has no such operator.
    """

    group: str
    names: tuple[str, ...]
    sharded: Mapping[str, Sharded | None]

    @property
    def label(self) -> str:
        """`group: name, name`."""
        names = ", ".join(self.names)
        return f"{self.group}: {names}" if self.group else names


@dataclass(frozen=True, kw_only=True)
class ArgumentRow:
    """Arguments (or results) with one spec; `*` in a path stands for every number.

    Attributes:
      path: of the array in the arguments.
      phases: that it is an argument of.
      dims: name of every dim, "" for one without.
      spec: per dim, the axes that shard it.
    """

    path: str
    phases: tuple[str, ...]
    dims: tuple[str, ...]
    spec: tuple[tuple[str, ...], ...]

    @property
    def partition_spec(self) -> str:
        """As it is written in Python."""
        entries = [
            "None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes)
            for axes in self.spec
        ]
        return f"P({', '.join(entries)})"

    @property
    def sharded(self) -> Sharded:
        """Dims that are sharded, and by which axes; a dim without a name by number."""
        names = [name or f"dim {i}" for i, name in enumerate(self.dims)]
        return tuple(
            (name, axes) for name, axes in zip(names, self.spec, strict=False) if axes
        )

    @property
    def named(self) -> str:
        """Dims with their axes, `[vocab, hidden@x]`; "-" for one without a name.

        "" for a result, whose dims have no names.
        """
        if not self.dims and self.spec:
            return ""
        padded = (*self.spec, *((),) * (len(self.dims) - len(self.spec)))
        entries = [
            at(name or "-", axes) for name, axes in zip(self.dims, padded, strict=True)
        ]
        return f"[{', '.join(entries)}]"


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """A node or reshard of one phase, and its share of the phase's step."""

    name: str
    kind: str
    time_s: float
    share: float


def at(name: str, axes: Sequence[str]) -> str:
    """`name@x*y`, or the bare name.

    >>> at("batch", ("x", "y"))
    'batch@x*y'
    """
    return f"{name}@{'*'.join(axes)}" if axes else name


def is_pools(data: Data) -> bool:
    """Whether every phase has instances of its own."""
    return data["serving"] == "pools"


def main_phase(data: Data) -> str:
    """Name of the phase that counts most."""
    return data["phase_order"][-1]


def assignment(data: Data, phase: str | None = None) -> Data:
    """Mesh and states of a phase; by default of the main one."""
    return data["phases"][phase or main_phase(data)]["assignment"]


def sharded(states: Sequence[str | None], axes: Sequence[Data]) -> Sharded:
    """Which axes shard each factor, from what each axis shards."""
    found: dict[str, list[str]] = {}
    for axis, state in zip(axes, states, strict=True):
        if state is not None:
            found.setdefault(state, []).append(axis["name"])
    return tuple((name, tuple(axes)) for name, axes in found.items())


def sharded_text(found: Sharded | None) -> str:
    """`[batch@x*y, kv_heads@z]`; `[]` where nothing is sharded."""
    if found is None:
        return "-"
    return f"[{', '.join(at(name, axes) for name, axes in found)}]"


def title(data: Data) -> str:
    """What the plan is of."""
    return data["model"]["name"] if data["model"] else "a function"


def cluster_name(data: Data) -> str:
    """`h100:2x8`."""
    cluster = data["cluster"]
    return f"{cluster['name']}:{cluster['nodes']}x{cluster['gpus_per_node']}"


def num_gpus(data: Data) -> int:
    """GPUs of the cluster."""
    return data["cluster"]["nodes"] * data["cluster"]["gpus_per_node"]


def usable_bytes(data: Data) -> int:
    """HBM of one GPU that a plan may fill."""
    cluster = data["cluster"]
    return int(cluster["chip"]["hbm_bytes"] * (1 - cluster["reserve_fraction"]))


def idle_gpus(data: Data) -> int:
    """GPUs that no instance has."""
    used = sum(phase["instances"] * phase["gpus"] for phase in data["phases"].values())
    return num_gpus(data) - used if is_pools(data) else 0


def instance_words(data: Data, phase: str) -> str:
    """`3 instances of 4 GPUs`."""
    found = data["phases"][phase]
    instances = counted(found["instances"], "instance")
    return f"{instances} of {counted(found['gpus'], 'GPU')}"


def batch_words(data: Data, phase: str) -> str:
    """`steps of 8`; of each stage, if there are several."""
    many = assignment(data, phase)["stages"] > 1
    return f"steps of {data['phases'][phase]['batch']}" + (" a stage" if many else "")


def memory_parts(data: Data, phase: str | None = None) -> dict[str, float]:
    """Bytes per GPU by what fills them, summing to the peak; of the fullest phase."""
    held = data["metrics"] if phase is None else data["phases"][phase]
    first = "weights" if data["workload"] else "arguments and results"
    second = "KV cache" if data["workload"] else "state"
    parts = {first: held["weight_bytes"], second: held["cache_bytes"]}
    parts["activations"] = max(0.0, held["peak_bytes"] - sum(parts.values()))
    return {name: nbytes for name, nbytes in parts.items() if nbytes}


def memory_words(data: Data, phase: str | None = None) -> str:
    """`weights 40.0 GB, KV cache 15.0 GB`, per GPU; of the fullest phase by default."""
    parts = memory_parts(data, phase)
    return ", ".join(f"{name} {size(nbytes)}" for name, nbytes in parts.items())


def workload_words(data: Data) -> str:
    """Lengths and dtypes of a served model in words; "" for a function."""
    workload, model = data["workload"], data["model"]
    if workload is None:
        return ""
    words = [f"{workload['input_len']} tokens in, {workload['output_len']} out"]
    if model:
        own = model["config"]["dtype"]
        words.append(f"{model['weight_dtype'] or _published_dtype(model)} weights")
        words.append(f"{model['kv_dtype'] or own} KV cache")
    if workload["routing_skew"] != 1:
        words.append(f"routing skew {workload['routing_skew']:g}")
    return ", ".join(words)


def _published_dtype(model: Data) -> str:
    """What weights are published in; `int4 experts, bfloat16 other`."""
    own, form = model["config"]["dtype"], model["config"]["quantization"]
    if form is None:
        return own
    if form["scope"] == "experts":
        return f"{form['dtype']} expert and {own} other"
    return form["dtype"]


def degree_words(data: Data, phase: str | None = None) -> str:
    """Degrees above 1 in words; a function's axes have no such names."""
    degrees = data["phases"][phase or main_phase(data)]["degrees"]
    words = [counted(degrees["pp"], "pipeline stage")] if degrees["pp"] > 1 else []
    words += [
        f"{degrees[name]}-way {word}"
        for name, word in _DEGREE_WORDS.items()
        if degrees[name] > 1
    ]
    shown = ["pp", *_DEGREE_WORDS]
    text = " x ".join(words) or "one GPU"
    experts = [
        f"{degrees[name]}-way {word}"
        for name, word in _EXPERT_WORDS.items()
        if degrees[name] > 1
    ]
    if experts:
        text, shown = f"{text}, experts {' x '.join(experts)}", [*shown, *_EXPERT_WORDS]
    return f"{text} ({', '.join(f'{name} {degrees[name]}' for name in shown)})"


def link_words(inside: bool, data: Data) -> str:
    """Where traffic runs, and on what."""
    cluster = data["cluster"]
    if inside:
        return f"inside a node ({cluster['intra']['name']})"
    return f"across nodes ({cluster['inter']['name']})"


def stage_words(data: Data, phase: str | None = None) -> str:
    """`2, handing over across nodes (...)`; "" without pipeline stages."""
    found = assignment(data, phase)
    if found["stages"] == 1:
        return ""
    return f"{found['stages']}, handing over {link_words(found['stages_inside'], data)}"


def mesh_words(data: Data, phase: str | None = None) -> str:
    """Axes with their sizes, by link: `x=2 across nodes (...), y=8 inside a node`."""
    axes = assignment(data, phase)["axes"]
    words = []
    for inside in (False, True):
        named = [f"{a['name']}={a['size']}" for a in axes if a["inside"] == inside]
        if named:
            words.append(f"{', '.join(named)} {link_words(inside, data)}")
    return "; ".join(words) or "one GPU"


def bound_words(data: Data) -> str:
    """How the bound was proven."""
    return _GAP_KINDS.get(data["gap_kind"]) or data["gap_kind"]


def search_words(data: Data) -> str:
    """How the plan was found."""
    search = data["search"]
    if search["method"] == "price":
        return "no search: the layout was given"
    return (
        f"{search['method']}, {search['evaluations']:,} evaluations of a budget of "
        f"{search['budget']:,}, seed {search['seed']}"
    )


def op_rows(data: Data, *, values: bool = False) -> list[OpRow]:
    """Operators in program order; with `values`, other nodes that are no arguments."""
    kinds = {p["name"]: p["kind"] for p in data["metrics"]["breakdown"]}
    found = {phase: assignment(data, phase) for phase in data["phase_order"]}
    states = {phase: own["states"][phase] for phase, own in found.items()}
    arguments = {path for p in data["phases"].values() for path, _ in p["in_specs"]}
    # of the file only the breakdown is in program order; what takes no time comes last
    names = dict.fromkeys([*kinds, *sorted(set().union(*states.values()))])
    rows: dict[tuple, list[str]] = {}
    for name in names:
        if name in arguments or not any(name in nodes for nodes in states.values()):
            continue
        is_value = name.endswith(":") or name.startswith("closed/")
        is_op = kinds.get(name, "value" if is_value else "op") == "op"
        if not (is_op or values):
            continue
        group, _, short = name.rpartition("/")
        cells = tuple(
            sharded(nodes[name], found[phase]["axes"]) if name in nodes else None
            for phase, nodes in states.items()
        )
        rows.setdefault((group, cells), []).append(short)
    return [
        OpRow(
            group=group,
            names=tuple(names),
            sharded=dict(zip(data["phase_order"], cells, strict=True)),
        )
        for (group, cells), names in rows.items()
    ]


def argument_rows(data: Data, key: str = "in_specs") -> list[ArgumentRow]:
    """Arguments (`key` "out_specs": results) of all phases, those alike in one row.

    With pools, axes of one name are others in each phase, so no two share a row.
    """
    paths: dict[tuple, dict[str, None]] = {}
    phases: dict[tuple, dict[str, None]] = {}
    dims: dict[tuple, tuple[str, ...]] = {}
    for phase in data["phase_order"]:
        found = data["phases"][phase]
        for path, entries in found[key]:
            spec = tuple(_axes(entry) for entry in entries)
            names = tuple(found["dims"].get(path, ()))
            # a list of layers has a path per layer: "params/layers/0/query"
            shown = re.sub(r"(?<=/)\d+(?=/)", "*", path)
            row = (shown, spec, len(names), phase if is_pools(data) else "")
            paths.setdefault(row, {})[path] = None
            phases.setdefault(row, {})[phase] = None
            dims.setdefault(row, names)
    return [
        ArgumentRow(
            path=row[0] if len(found) > 1 else next(iter(found)),
            phases=tuple(phases[row]),
            dims=dims[row],
            spec=row[1],
        )
        for row, found in paths.items()
    ]


def _axes(entry: str | Iterable[str] | None) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def time_rows(data: Data, phase: str) -> list[TimeRow]:
    """Where a step of a phase spends its time, in program order."""
    parts = [
        (part["name"], part["kind"], part["time_s"])
        for part in data["metrics"]["breakdown"]
        if part["phase"] == phase
    ]
    total_s = sum(time_s for *_, time_s in parts)
    return [
        TimeRow(name=name, kind=kind, time_s=time_s, share=time_s / total_s)
        for name, kind, time_s in parts
    ]
