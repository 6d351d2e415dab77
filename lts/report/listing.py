"""Tables of the command line other than a plan: models, clusters, a verification."""

from collections.abc import Mapping, Sequence
from typing import Any

from lts.report.text import screen_width, table_text
from lts.report.units import counted, size


def models_text(
    models: Sequence[Mapping[str, Any]], *, width: int | None = None
) -> str:
    """Zoo models: name, parameters, layers, KV cache per token, longest context.

    Args:
      models: each with the fields that `lts models --json` documents.
    """
    rows = [
        (
            model["name"],
            f"{model['num_params'] / 1e9:.2f} B",
            f"{model['active_params'] / 1e9:.2f} B",
            str(model["num_layers"]),
            model["dtype"],
            size(model["kv_bytes_per_token"]),
            f"{model['max_position_embeddings']:,}",
        )
        for model in models
    ]
    header = (
        "model",
        "parameters",
        "active",
        "layers",
        "weights",
        "KV/token",
        "context",
    )
    right = (1, 2, 3, 5, 6)
    return table_text(rows, width or screen_width(), header=header, right=right)


def clusters_text(
    clusters: Sequence[Mapping[str, Any]], *, width: int | None = None
) -> str:
    """Cluster presets: chip, HBM, peaks, links, and where the numbers come from.

    Args:
      clusters: each as `Cluster.to_dict`.
    """
    width = width or screen_width()
    return "\n\n".join(_cluster_text(cluster, width) for cluster in clusters)


def _cluster_text(cluster: Mapping[str, Any], width: int) -> str:
    chip = cluster["chip"]
    peaks = ", ".join(
        f"{dtype} {peak / 1e12:.0f}" for dtype, peak in chip["peak_flops_per_s"].items()
    )
    rate = f"{chip['hbm_bandwidth_bytes_per_s'] / 1e12:.2f} TB/s"
    hbm = f"{size(chip['hbm_bytes'])}, {rate}"
    rows = [("chip", chip["name"]), ("HBM", hbm), ("peak TFLOP/s", peaks)]
    for place, words in ("intra", "inside a node"), ("inter", "across nodes"):
        link = cluster[place]
        rows.append(
            (
                words,
                f"{link['name']}, {link['bandwidth_bytes_per_s'] / 1e9:g} GB/s per GPU "
                f"one way, {link['latency_s'] * 1e6:g} us",
            )
        )
    rows += [
        (f"{what} source", cluster[place]["source"])
        for what, place in (("chip", "chip"), ("inside", "intra"), ("across", "inter"))
    ]
    name, gpus = cluster["name"], counted(cluster["gpus_per_node"], "GPU")
    head = f"{name} (up to {gpus} per node; --cluster {name}:NODESxGPUS)"
    body = table_text(rows, width - 2)
    return "\n".join([head, *("  " + line for line in body.splitlines())])


def verification_text(
    verification: Mapping[str, Any], *, width: int | None = None
) -> str:
    """What the compiler emitted against the prediction, kinds that differ listed.

    Args:
      verification: as `Verification.to_dict`.
    """
    width = width or screen_width()
    return "\n\n".join(_report_text(report, width) for report in verification["phases"])


def _bytes_lines(report: Mapping[str, Any]) -> list[str]:
    """What a device holds: arguments, results, those in place, scratch, the peak."""
    lines = []
    for name, field in (
        ("arguments", "argument"),
        ("results", "output"),
        ("in place", "alias"),
    ):
        nbytes, predicted = report[f"{field}_bytes"], report[f"predicted_{field}_bytes"]
        against = "as predicted" if nbytes == predicted else f"{predicted:,} predicted"
        lines.append(f"  {name}: {nbytes:,} bytes per device, {against}")
    if report["target"] == "cpu":
        return lines  # its scratch is not a GPU's
    for name, field in (("scratch", "temp"), ("peak", "peak")):
        found, predicted = report[f"{field}_bytes"], report[f"predicted_{field}_bytes"]
        lines.append(f"  {name}: {size(found)} per device, {size(predicted)} predicted")
    return lines


def _report_text(report: Mapping[str, Any], width: int) -> str:
    rows = report["rows"]
    differing = [row for row in rows if row["predicted"] != row["emitted"]]
    lines = [
        f"{report['phase']}, compiled for {report['target']}",
        f"  collectives: {len(rows) - len(differing)} of {len(rows)} kinds as "
        f"predicted, {len(differing)} {'differs' if len(differing) == 1 else 'differ'}",
        *_bytes_lines(report),
    ]
    if report["unknown_trips"]:
        lines.append(
            f"  {counted(report['unknown_trips'], 'collective')} in loops of unknown "
            "trip count, counted once"
        )
    lines += [f"  warning: {' '.join(text.split())}" for text in report["warnings"]]
    if differing:
        cells = [
            (
                row["kind"],
                "*".join(row["axes"]),
                size(row["nbytes"]),
                str(row["predicted"]),
                str(row["emitted"]),
                "; ".join(row["reasons"]),
            )
            for row in differing
        ]
        header = ("differing", "axes", "result", "predicted", "emitted", "for")
        table = table_text(cells, width - 2, header=header, right=(2, 3, 4))
        lines += ["", *("  " + line for line in table.splitlines())]
    return "\n".join(lines)
