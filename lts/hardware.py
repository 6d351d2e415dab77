"""The machine that a program is to run on: `Chip`, `Link`, `Cluster`.

Data only, in SI base units, with a source for every number. A cluster is `nodes` equal
nodes of `gpus_per_node` equal GPUs; GPUs of one node talk over the `intra` link, those
of different nodes over the `inter` link. The presets are the YAML files in `clusters/`,
read by the same code as a user's own file.

Schema of a cluster file:

    name: mine                  # any text
    nodes: 2
    gpus_per_node: 8
    reserve_fraction: 0.1       # optional: share of HBM that is never planned
    overlap_fraction: 0.0       # optional: share of collectives' time beside compute
    chip: h100                  # a preset's chip, or a mapping with the fields of Chip,
                                # peak_flops_per_s as {bfloat16: 989.4e+12, ...},
                                # calibration as a path seen from this file
    intra: {name: NVLink4, bandwidth_bytes_per_s: 340.0e+9, latency_s: 3.6e-6,
            hop_latency_s: 2.4e-6, source: "where the numbers come from"}
    inter: {...}                # as intra

`intra` and `inter` may be left out when `chip` names a preset: they are then that
preset's. YAML reads `3e9` as text; write `3.0e+9`.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import jax
import yaml

from lts import calibration

DEFAULT_RESERVE_FRACTION = 0.1
"""Share of HBM kept for the CUDA context, NCCL buffers and fragmentation.

Source: vLLM's default `gpu_memory_utilization` of 0.9.
"""

Record = TypeVar("Record", "Chip", "Link", "Cluster")

_PRESET_FOLDER = Path(__file__).with_name("clusters")
_SHAPE = re.compile(r"(?P<name>[^:]+):(?:(?P<nodes>[0-9]+)x)?(?P<gpus>[0-9]+)")
_PRESET_OF_DEVICE_KIND = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
}


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One GPU. Achievable rates are the peaks times the two efficiencies.

    Raises:
      ValueError: if a number is not positive and finite, or an efficiency above 1.
    """

    name: str
    hbm_bytes: int
    hbm_bandwidth_bytes_per_s: float
    # (dtype name, dense peak); float32 is the plain vector unit, without TF32
    peak_flops_per_s: tuple[tuple[str, float], ...]
    matmul_efficiency: float
    hbm_efficiency: float
    op_launch_s: float  # floor under the time of any kernel
    source: str
    num_sms: int = 132  # streaming multiprocessors: what a wave of tiles fills
    l2_bytes: int = 50 * 2**20
    calibration: str = "h100"  # fitted operator models: in calibrations/, or a path

    def __post_init__(self) -> None:
        _check_texts(self, "name", "source", "calibration")
        _check_counts(self, "hbm_bytes", "num_sms", "l2_bytes")
        for name in "hbm_bandwidth_bytes_per_s", "matmul_efficiency", "hbm_efficiency":
            _check_number(self, name, getattr(self, name))
        _check_number(self, "op_launch_s", self.op_launch_s, zero=True)
        for name in "matmul_efficiency", "hbm_efficiency":
            if getattr(self, name) > 1:
                raise _bad_field(self, name, "at most 1", getattr(self, name))
        if not self.peak_flops_per_s:
            raise _bad_field(self, "peak_flops_per_s", "given for some dtype", "none")
        for dtype, flops_per_s in self.peak_flops_per_s:
            if not isinstance(dtype, str):
                raise _bad_field(self, "peak_flops_per_s", "keyed by dtype name", dtype)
            _check_number(self, f"peak_flops_per_s[{dtype}]", flops_per_s)

    def peak(self, dtype: str) -> float:
        """Dense peak of matrix products in `dtype`, FLOP/s.

        Raises:
          ValueError: if the chip has no arithmetic in `dtype`.

        >>> Cluster.preset("h100").chip.peak("bfloat16")
        989400000000000.0
        """
        peaks = dict(self.peak_flops_per_s)
        if dtype not in peaks:
            raise ValueError(
                f"{self.name} has no peak for dtype '{dtype}'; known: "
                f"{', '.join(peaks)}. Ask for the dtype that the product runs in."
            )
        return peaks[dtype]

    def achieved_flops_per_s(self, dtype: str) -> float:
        """Rate of products in `dtype`; without matrix units for it, of the vector unit.

        >>> Cluster.preset("h100").chip.achieved_flops_per_s("int32") < 60e12
        True
        """
        known = dict(self.peak_flops_per_s)
        return self.matmul_efficiency * self.peak(
            dtype if dtype in known else "float32"
        )

    @property
    def achieved_bytes_per_s(self) -> float:
        """Rate at which kernels read and write memory."""
        return self.hbm_bandwidth_bytes_per_s * self.hbm_efficiency


@dataclass(frozen=True, kw_only=True)
class Link:
    """What joins GPUs: an achievable rate and the fixed cost of one collective.

    A collective over `n` GPUs that moves `nbytes` through the busiest GPU takes
    `latency_s + hop_latency_s * log2(n) + nbytes / bandwidth_bytes_per_s`.

    Raises:
      ValueError: if the bandwidth is not positive or a latency is negative.
    """

    name: str
    bandwidth_bytes_per_s: float  # achievable, one way, per GPU
    latency_s: float
    hop_latency_s: float
    source: str

    def __post_init__(self) -> None:
        _check_texts(self, "name", "source")
        _check_number(self, "bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)
        _check_number(self, "latency_s", self.latency_s, zero=True)
        _check_number(self, "hop_latency_s", self.hop_latency_s, zero=True)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs. `str(cluster)` is `name:nodesxgpus_per_node`.

    Attributes:
      reserve_fraction: of HBM, that is never planned.
      overlap_fraction: of the time of every collective, that runs beside compute and
        is not paid for; 0 is what XLA and the engines were measured with.

    Raises:
      ValueError: if a count is no positive integer or a fraction is not in [0, 1).

    >>> cluster = Cluster.parse("h100:2x8")
    >>> cluster.num_gpus, str(cluster)
    (16, 'h100:2x8')
    """

    name: str
    chip: Chip
    nodes: int
    gpus_per_node: int
    intra: Link
    inter: Link
    reserve_fraction: float = DEFAULT_RESERVE_FRACTION
    overlap_fraction: float = 0.0

    def __post_init__(self) -> None:
        _check_texts(self, "name")
        _check_counts(self, "nodes", "gpus_per_node")
        for name in ("reserve_fraction", "overlap_fraction"):
            _check_number(self, name, getattr(self, name), zero=True)
            if getattr(self, name) >= 1:
                raise _bad_field(self, name, "below 1", getattr(self, name))

    def __str__(self) -> str:
        return f"{self.name}:{self.nodes}x{self.gpus_per_node}"

    @property
    def num_gpus(self) -> int:
        """GPUs in all nodes together."""
        return self.nodes * self.gpus_per_node

    @property
    def usable_bytes(self) -> int:
        """HBM of one GPU that a plan may fill, bytes."""
        return int(self.chip.hbm_bytes * (1 - self.reserve_fraction))

    def resized(self, nodes: int, gpus_per_node: int) -> Self:
        """The same chips and links in another number."""
        return replace(self, nodes=nodes, gpus_per_node=gpus_per_node)

    @staticmethod
    def presets() -> tuple[str, ...]:
        """Names that `preset` and `parse` know, sorted."""
        return tuple(sorted(path.stem for path in _PRESET_FOLDER.glob("*.yaml")))

    @classmethod
    def preset(cls, name: str, nodes: int = 1, gpus_per_node: int = 8) -> "Cluster":
        """A cluster of a known GPU.

        Raises:
          ValueError: if the name is unknown, a count is no positive integer, or a node
            would hold more GPUs than its NVLink switch joins.
        """
        if name not in cls.presets():
            near = get_close_matches(name.lower(), cls.presets(), n=2, cutoff=0.3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
            raise ValueError(
                f"unknown cluster preset {name!r}{hint} Presets: "
                f"{', '.join(cls.presets())}; any other cluster can be a YAML file."
            )
        one_node = _load_preset(name)
        cluster = one_node.resized(nodes, gpus_per_node)
        limit = one_node.gpus_per_node
        if gpus_per_node > limit:
            full_nodes = -(-cluster.num_gpus // limit)
            raise ValueError(
                f"a node of {name} holds at most {limit} GPUs, not {gpus_per_node}; "
                f"for {full_nodes * limit} GPUs ask for '{name}:{full_nodes}x{limit}'."
            )
        return cluster

    @classmethod
    def parse(cls, text: str) -> "Cluster":
        """A cluster from `NAME:NODESxGPUS`, `NAME:GPUS` (one node) or a YAML path.

        Raises:
          ValueError: as `preset` and `load`, or if the text has none of these forms.
        """
        text = text.strip()
        if text.lower().endswith((".yaml", ".yml")):
            return cls.load(text)
        match = _SHAPE.fullmatch(text.lower())
        if match is None:
            raise ValueError(
                f"cannot read cluster {text!r}: expected NAME:NODESxGPUS, as in "
                "'h100:2x8' (2 nodes of 8 GPUs), or the path of a .yaml file."
            )
        nodes = int(match["nodes"] or 1)
        return cls.preset(match["name"].strip(), nodes, int(match["gpus"]))

    @classmethod
    def load(cls, path: str | Path) -> "Cluster":
        """A cluster from a YAML file (schema: the docstring of this module).

        Raises:
          ValueError: one line that names the file and the field, if the file cannot be
            read, is no YAML, or misses, adds or mistypes a field.
        """
        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"cannot read cluster file '{path}': {reason}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"cluster file '{path}' is no YAML: {reason}") from error
        try:
            cluster = cls.from_dict(data)
            named = cluster.chip.calibration
            if not calibration.is_path(named):
                return cluster
            absolute = str(Path(path).absolute().parent / named)
            calibration.load(absolute)
        except ValueError as error:
            raise ValueError(f"cluster file '{path}': {error}") from error
        return replace(cluster, chip=replace(cluster.chip, calibration=absolute))

    @classmethod
    def detect(cls) -> "Cluster":
        """The cluster that JAX runs on now.

        Raises:
          ValueError: if JAX sees no GPU, a GPU without a preset, GPUs of two kinds, or
            nodes of unequal size.
        """
        devices = jax.devices()
        kinds = sorted({device.device_kind for device in devices})
        preset = _PRESET_OF_DEVICE_KIND.get(kinds[0]) if len(kinds) == 1 else None
        if preset is None:
            raise ValueError(
                f"no cluster known for the devices that JAX sees ({', '.join(kinds)}); "
                f"known: {', '.join(_PRESET_OF_DEVICE_KIND)}. Name the cluster, as in "
                "Cluster.parse('h100:2x8'), or describe it in a YAML file."
            )
        # on GPUs a slice is an NVLink domain, which several processes may share
        nodes = Counter(getattr(d, "slice_index", d.process_index) for d in devices)
        sizes = sorted(set(nodes.values()))
        if len(sizes) > 1:
            raise ValueError(
                f"JAX sees nodes of {' and '.join(map(str, sizes))} GPUs; a Cluster "
                "has equal nodes. Start JAX with equal nodes, or name the cluster."
            )
        return cls.preset(preset, len(nodes), sizes[0])

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, strings and numbers; `from_dict` gives an equal cluster back."""
        data = asdict(self)
        data["chip"]["peak_flops_per_s"] = dict(self.chip.peak_flops_per_s)
        return data

    @classmethod
    def from_dict(cls, data: object) -> "Cluster":
        """A cluster from the mapping that `to_dict` gives or a cluster file holds.

        Raises:
          ValueError: one line that names the field, if one is missing, unknown or bad.
        """
        data = dict(_mapping(data, "cluster"))
        if isinstance(chip := data.get("chip"), str):
            base = cls.preset(chip)
            data = {"intra": base.intra, "inter": base.inter, **data, "chip": base.chip}
        elif "chip" in data:
            chip = dict(_mapping(chip, "chip"))
            if "peak_flops_per_s" in chip:
                peaks = _mapping(chip["peak_flops_per_s"], "chip: peak_flops_per_s")
                chip["peak_flops_per_s"] = tuple(peaks.items())
            data["chip"] = _build(Chip, chip, "chip")
        for name in "intra", "inter":
            if name in data and not isinstance(data[name], Link):
                data[name] = _build(Link, _mapping(data[name], name), name)
        return _build(cls, data, "cluster")


@cache
def _load_preset(name: str) -> Cluster:
    return Cluster.load(_PRESET_FOLDER / f"{name}.yaml")


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a mapping of fields, got {value!r}")
    return value


def _build(cls: type[Record], data: Mapping[str, Any], where: str) -> Record:
    """The record of `data`, after a check that its fields are those of `cls`."""
    known = [field.name for field in fields(cls)]
    optional = {field.name for field in fields(cls) if field.default is not MISSING}
    if unknown := [name for name in data if name not in known]:
        raise ValueError(
            f"{where}: unknown field {unknown[0]!r}; known: {', '.join(known)}"
        )
    if missing := [name for name in known if name not in data and name not in optional]:
        raise ValueError(f"{where}: field {missing[0]!r} is missing")
    return cls(**data)


def _bad_field(record: object, name: str, wanted: str, found: object) -> ValueError:
    kind = type(record).__name__.lower()
    hint = "; YAML reads 3e9 as text, write 3.0e+9" if isinstance(found, str) else ""
    return ValueError(f"{kind}: {name} must be {wanted}, got {found!r}{hint}")


def _check_texts(record: object, *names: str) -> None:
    for name in names:
        text = getattr(record, name)
        if not isinstance(text, str) or not text:
            raise _bad_field(record, name, "a text", text)


def _check_counts(record: object, *names: str) -> None:
    for name in names:
        count = getattr(record, name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise _bad_field(record, name, "a positive integer", count)


def _check_number(
    record: object, name: str, value: object, *, zero: bool = False
) -> None:
    wanted = "a number of at least 0" if zero else "a positive number"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _bad_field(record, name, wanted, value)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise _bad_field(record, name, wanted, value)
