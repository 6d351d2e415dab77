"""Learning to Shard: how to split LLM inference over a GPU cluster.

    trace -> space -> cost -> search -> plan -> apply

`lts.search` finds a `Plan` for a JAX function or a model to serve; `Plan.apply` gives
the sharded, jitted function, `Plan.verify` what XLA makes of it.

Shapes in comments and docstrings use: candidates (plans scored together), batch
(requests in flight), genes, variables, ops, edges, choices, states, axes (mesh axes),
factors, degrees, batches (sizes of a grid).
"""

from lts import models
from lts.api import price, search
from lts.hardware import Chip, Cluster, Link
from lts.models.experts import expert_ffn
from lts.phase import PhasePlan
from lts.plan import Metrics, Plan
from lts.prepare import NoFeasiblePlanError
from lts.problem import Problem
from lts.tracing import UnsupportedOpError, register_rule, trace
from lts.workload import Workload

__version__ = "0.1.0"

__all__ = [
    "Chip",
    "Cluster",
    "Link",
    "Metrics",
    "NoFeasiblePlanError",
    "PhasePlan",
    "Plan",
    "Problem",
    "UnsupportedOpError",
    "Workload",
    "expert_ffn",
    "models",
    "price",
    "register_rule",
    "search",
    "trace",
]
