"""What a plan for several shapes reaches at each, read from the data of plan.json."""

from dataclasses import dataclass

from lts.report.facts import Data


@dataclass(frozen=True, kw_only=True)
class ShapeRow:
    """One of the shapes that a plan is for.

    Attributes:
      label: shapes of the arguments that differ, `x [64, 512]`.
      time_s: of a step.
      over_alone: `1.20x` the time of the best plan found for it alone; "" where that
        is not known.
      worst: whether it loses most by sharing a plan (or else is the slowest).
    """

    label: str
    time_s: float
    over_alone: str
    worst: bool


def shape_rows(data: Data) -> list[ShapeRow]:
    """Shapes in the order of the calls; none for a plan of one."""
    metrics = data["metrics"]
    rows = []
    for own in metrics.get("shapes", ()):
        shapes = [f"{path} {list(shape)}" for path, shape in own["arguments"].items()]
        many = f", {len(shapes) - 2} more" if len(shapes) > 2 else ""
        over = ""
        if own["alone_s"] is not None:
            ratio = own["step_time_s"] / own["alone_s"]
            over = f"{ratio:.2f}x"
        rows.append(
            ShapeRow(
                label=(", ".join(shapes[:2]) + many) or own["name"],
                time_s=own["step_time_s"],
                over_alone=over,
                worst=own["name"] == metrics["worst_shape"],
            )
        )
    return rows
