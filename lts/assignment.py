"""The `Assignment`: degrees, and for every node which factor each mesh axis shards.

Data only. Cost, search, apply and a file on disk all speak it, so that a saved plan
runs without any search code. Factors and nodes stand in it by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lts.mesh import Degrees, MeshAxis

States = tuple[str | None, ...]
"""Per mesh axis, the name of the factor that it shards, or None."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A complete answer, apart from the batch.

    Attributes:
      degrees: stages and mesh.
      roles: per group of ops, what each axis does by default (a factor's name).
      states: per phase and node, what each axis shards.
    """

    degrees: Degrees
    roles: Mapping[str, States]
    states: Mapping[str, Mapping[str, States]]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; `from_dict` is its inverse."""
        degrees = self.degrees
        return {
            "stages": degrees.stages,
            "stages_inside": degrees.stages_inside,
            "axes": [
                {"name": axis.name, "size": axis.size, "inside": axis.inside}
                for axis in degrees.axes
            ],
            "roles": {group: list(states) for group, states in self.roles.items()},
            "states": {
                phase: {name: list(states) for name, states in nodes.items()}
                for phase, nodes in self.states.items()
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Assignment":
        """The assignment that `to_dict` wrote.

        Raises:
          ValueError: if a field is missing, naming it.
        """
        try:
            degrees = Degrees(
                stages=data["stages"],
                stages_inside=data["stages_inside"],
                axes=tuple(MeshAxis(**axis) for axis in data["axes"]),
            )
            return cls(
                degrees=degrees,
                roles={group: tuple(row) for group, row in data["roles"].items()},
                states={
                    phase: {name: tuple(row) for name, row in nodes.items()}
                    for phase, nodes in data["states"].items()
                },
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"not an assignment: {error} is missing or malformed; use a plan.json "
                "that lts wrote"
            ) from error
