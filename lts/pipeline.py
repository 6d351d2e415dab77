"""A phase with pipeline stages: one jit per stage, micro-batches handed over.

Each stage has a mesh of its own, with the same axes; its arguments are its share of the
layers. A call splits the batch into as many micro-batches as there are stages (one, if
that does not divide), and issues them stage by stage; JAX runs the stages side by side,
since every hand-over is an asynchronous `device_put`.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lts.applied import AppliedStep, auto_mesh, put
from lts.assignment import Assignment
from lts.models import Decoder

RESIDUAL = "embed:"
"""Name of the residual stream in the graphs of `lts.models`."""


@dataclass(eq=False, kw_only=True)
class PipelinedStep:
    """A served model's phase over pipeline stages; call it as the model's function.

    Parameters and cache are those that `device_put` returned: a list over stages (of
    the cache, over stages and micro-batches). The cache is donated.
    """

    model: Decoder
    assignment: Assignment
    phase: str
    dims: Mapping[str, Sequence[str]]
    devices: Sequence[Any]
    _stages: list[AppliedStep] = field(init=False)

    def __post_init__(self) -> None:
        degrees = self.assignment.degrees
        states = dict(self.assignment.states[self.phase])
        states["hidden"] = states[RESIDUAL]  # it enters later stages as an argument
        own = Assignment(
            degrees=degrees,
            roles=self.assignment.roles,
            states={self.phase: states},
        )
        size, stages = degrees.mesh_size, degrees.stages
        self._stages = []
        for number in range(stages):
            ends = {"first": number == 0, "last": number == stages - 1}
            step = functools.partial(self.model.stage_step, phase=self.phase, **ends)
            mine = self.devices[number * size : (number + 1) * size]
            tokens = self.dims.get("tokens", ())
            entering = tokens if ends["first"] else ("batch", "sequence", "hidden")
            self._stages.append(
                AppliedStep(
                    function=step,
                    assignment=own,
                    phase=self.phase,
                    dims={**self.dims, "hidden": entering},
                    mesh=auto_mesh(mine, degrees.shape),
                    donated=("cache",),
                    weights=("params",),
                )
            )

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        """The mesh of every stage."""
        return tuple(cast(Mesh, step.mesh) for step in self._stages)

    def num_micro_batches(self, batch: int) -> int:
        """Micro-batches of a call."""
        stages = len(self._stages)
        return stages if batch % stages == 0 else 1

    def device_put(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """`(params, cache, *rest)` with parameters and cache split and placed."""
        params, cache, tokens, *rest = args
        stages = len(self._stages)
        micro = self.num_micro_batches(tokens.shape[0])
        depth = self.model.config.num_hidden_layers // stages
        placed_params, placed_cache = [], []
        for number, step in enumerate(self._stages):
            own = self.model.stage_params(params, number, stages)
            layers = slice(number * depth, (number + 1) * depth)
            parts = [
                {
                    name: jnp.split(array[layers], micro, axis=1)[i]
                    for name, array in cache.items()
                }
                for i in range(micro)
            ]
            share = tokens[: tokens.shape[0] // micro]
            hidden = self._entering(number, share, params["embed"].dtype)
            call = (own, parts[0], hidden, jnp.int32(0))
            specs = step.prepared(call, {}).specs.arguments
            counts = [len(jax.tree.leaves(x)) for x in (own, parts[0])]
            placed_params.append(put(own, specs[: counts[0]], step.mesh))
            taken = specs[counts[0] : sum(counts)]
            placed_cache.append([put(part, taken, step.mesh) for part in parts])
        return (placed_params, placed_cache, tokens, *rest)

    def _entering(self, stage: int, tokens: Any, dtype: Any) -> Any:
        """Abstract argument that a stage takes for these tokens."""
        tokens = jnp.asarray(tokens)
        shape = tokens.shape if tokens.ndim == 2 else (*tokens.shape, 1)
        if stage == 0:
            return jax.ShapeDtypeStruct(shape, jnp.int32)
        if dtype.itemsize < 2:  # 8-bit weights: activations stay in the config's
            dtype = jnp.dtype(self.model.config.dtype)
        return jax.ShapeDtypeStruct((*shape, self.model.config.hidden_size), dtype)

    def __call__(
        self, params: Any, cache: Any, tokens: Any, position: Any = 0
    ) -> tuple[jax.Array, Any]:
        """Logits `[b, vocab]` and the cache, in the order of `tokens`."""
        micro = len(cache[0])
        tokens, position = jnp.asarray(tokens), jnp.int32(position)
        tokens = tokens if tokens.ndim == 2 else tokens[:, None]
        cache, logits = [list(parts) for parts in cache], []
        for number, hidden in enumerate(jnp.split(tokens, micro)):
            for stage, step in enumerate(self._stages):
                own = params[stage], cache[stage][number]
                found = step.prepared((*own, hidden, position), {})
                mesh = cast(Mesh, step.mesh)
                entering = NamedSharding(mesh, found.specs.arguments[-2])
                hidden = jax.device_put(hidden, entering)
                where = NamedSharding(mesh, PartitionSpec())
                where = jax.device_put(jnp.int32(position), where)
                hidden, cache[stage][number] = step(*own, hidden, where)
            logits.append(hidden)
        return jnp.concatenate(logits), cache
