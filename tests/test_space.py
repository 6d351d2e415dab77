"""The space of candidates: what genes mean, what is repaired, what can be pinned."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lts.graph import NONE, NodeKind, OpGraph
from lts.hardware import Cluster
from lts.layout import spec_of, state_numbers
from lts.mesh import Degrees, MeshAxis, enumerate_degrees
from lts.models import Decoder, dense_decoder
from lts.pins import pin
from lts.problem import TRACED_BATCH, linked, trace_problem, zoo_problem
from lts.space import Space, build_space
from lts.tracing import link_phases, trace_program
from lts.workload import Workload

TINY = dense_decoder(
    name="tiny",
    vocab_size=96,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=128,
)


@pytest.fixture(scope="module")
def graphs() -> Mapping[str, OpGraph]:
    problem = zoo_problem(Decoder(config=TINY), Workload(input_len=24, output_len=8))
    traced = trace_problem(problem, ("prefill", "decode"), TRACED_BATCH)
    return linked(traced, problem.dim_names)


@pytest.fixture(scope="module")
def space(graphs) -> Space:
    degrees = enumerate_degrees(Cluster.parse("h100:2x8"), num_layers=4)
    return build_space(graphs, degrees)


def random_picks(space: Space, count: int, inherit: float = 0.5) -> np.ndarray:
    """Candidates `[count, genes]`; about `inherit` of the overrides inherit."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, space.cardinalities, (count, space.num_genes))
    plain = rng.random(picks.shape) < inherit
    plain[:, : space.first_override] = False
    return np.where(plain, 0, picks)


@pytest.mark.parametrize("inherit", [0.0, 0.5, 0.95])
def test_encoding_what_was_decoded_decodes_to_the_same(space, inherit) -> None:
    for picks in random_picks(space, 60, inherit):
        assignment = space.decode(picks)
        assert space.decode(space.encode(assignment)) == assignment


def test_an_assignment_that_follows_its_roles_needs_no_overrides(space) -> None:
    for picks in random_picks(space, 20, inherit=1.0):
        picks[space.first_override :] = 0
        again = space.encode(space.decode(picks))
        assert not again[space.first_override :].any()
        assert (again == picks).all()


def test_an_override_may_make_room_for_a_role_that_was_dropped(space) -> None:
    # KV heads split 2 ways: of two axes of size 2 with that role, one is dropped.
    picks = np.zeros(space.num_genes, np.int64)
    picks[0] = next(i for i, d in enumerate(space.degrees) if d.stages == 2)
    group = space.groups.index("attention")
    label = next(x for x, name in space.label_names.items() if name == "kv_heads")
    start = space.first_role + group * space.num_axes
    picks[start : start + 3] = 1 + space.role_labels[group].index(label)
    before = space.decode(picks).states["decode"]["attention/key"]
    assert before.count("kv_heads") == 1
    number = next(
        i for i, v in enumerate(space.variables) if v.name == "decode/attention/key"
    )
    last = before.index("kv_heads")
    picks[space.first_override + number * space.num_axes + last] = 1  # nothing
    after = space.decode(picks)
    assert after.states["decode"]["attention/key"][last] is None
    assert space.decode(space.encode(after)) == after


def test_every_decoded_choice_divides_and_leaves_unit_axes_alone(space, graphs) -> None:
    for picks in random_picks(space, 60, inherit=0.2):
        assignment = space.decode(picks)
        axes = assignment.degrees.axes
        for phase, states in assignment.states.items():
            for name, own in states.items():
                node = graphs[phase].node(name)
                ways: dict[str, int] = {}
                for axis, factor in zip(axes, own, strict=True):
                    if factor is not None:
                        assert axis.size > 1
                        ways[factor] = ways.get(factor, 1) * axis.size
                for factor in node.factors:
                    if not factor.batched:
                        assert factor.units % ways.get(factor.name, 1) == 0


def test_repair_keeps_what_divides(space) -> None:
    for number, variable in enumerate(space.variables):
        states = space.choice_states(number)
        for d, sizes in enumerate(space.sizes):
            for choice, row in enumerate(states):
                legal = (
                    all(
                        sizes[row == i + 1].prod() == 1
                        or factor.batched
                        or factor.units % sizes[row == i + 1].prod() == 0
                        for i, factor in enumerate(variable.factors)
                    )
                    and not (row[sizes == 1] > 0).any()
                )
                assert (space.repaired[number][d, choice] == choice) == legal


def test_repair_drops_the_outermost_axis_first() -> None:
    traced = trace_program(jnp.tanh, (jax.ShapeDtypeStruct((4, 3), "float32"),))
    axes = [MeshAxis(name=n, size=2, inside=True) for n in "xyz"]
    space = build_space(
        link_phases({"step": traced.graph}), [Degrees(stages=1, axes=tuple(axes))]
    )
    factors = [f.size for f in space.variables[0].factors]
    picks = np.array([0] + [2 + factors.index(4)] * 3)
    (states,) = space.decode(picks).states["step"].values()
    assert [state is None for state in states] == [True, False, False]


def test_phases_share_layouts_of_parameters_and_caches(space, graphs) -> None:
    for picks in random_picks(space, 30):
        states = space.decode(picks).states
        for node in graphs["decode"].values:
            if node.kind in (NodeKind.PARAMETER, NodeKind.CACHE):
                assert states["prefill"][node.name] == states["decode"][node.name]


def test_shared_variables_have_the_coarsest_units_of_their_phases(
    space, graphs
) -> None:
    for variable in space.variables:
        for factor in variable.factors:
            for phase, index in variable.members:
                own = {f.name: f for f in graphs[phase].nodes[index].factors}
                assert own[factor.name].units % factor.units == 0


def test_every_node_is_in_one_variable(space, graphs) -> None:
    members = [member for v in space.variables for member in v.members]
    every = [(p, node.index) for p, graph in graphs.items() for node in graph.nodes]
    assert sorted(members) == sorted(every)


def test_roles_are_inherited_by_ops_and_values_that_have_the_factor(space) -> None:
    picks = np.zeros(space.num_genes, np.int64)
    picks[0] = next(i for i, d in enumerate(space.degrees) if d.stages == 1)
    group = space.groups.index("mlp")
    label = next(x for x, name in space.label_names.items() if name == "ffn")
    last = space.num_axes - 1
    place = space.first_role + group * space.num_axes + last
    picks[place] = 1 + space.role_labels[group].index(label)
    states = space.decode(picks).states["decode"]
    for name in ("mlp/gate", "mlp/up", "mlp/down", "mlp/gate:"):
        assert states[name][last] == "ffn"
    assert states["params/layers/down"][last] == "ffn"
    assert states["attention/query"][last] is None
    assert space.decode(picks).roles["mlp"][last] == "ffn"


def test_a_role_takes_rows_before_sums() -> None:
    def attend(q: jax.Array, k: jax.Array) -> jax.Array:
        return jax.nn.softmax(q @ k.T, -1) @ k

    x = jax.ShapeDtypeStruct((16, 8), "float32")
    traced = trace_program(lambda x: attend(x, x), (x,))
    axis = MeshAxis(name="x", size=2, inside=True)
    graphs = link_phases({"step": traced.graph})
    space = build_space(graphs, [Degrees(stages=1, axes=(axis,))])
    _, out = graphs["step"].ops
    variable = next(v for v in space.variables if v.members == (("step", out.index),))
    labels = [factor.label for factor in variable.factors]
    twice = next(label for label in labels if labels.count(label) == 2)
    state = variable.states_of(twice)
    assert not variable.factors[state - 1].reduction
    assert variable.states_of(-5) == NONE


def test_sizes_multiply(space) -> None:
    product = math.prod(int(gene.cardinality) for gene in space.genes)
    assert space.log10_size() == pytest.approx(math.log10(product))
    assert space.num_genes == len(space.genes) == len(space.cardinalities)
    for number, variable in enumerate(space.variables):
        assert space.num_choices(number) == (1 + len(variable.factors)) ** 3
        assert len(space.choice_states(number)) == space.num_choices(number)


def test_an_assignment_of_another_space_is_refused(space) -> None:
    other = space.decode(random_picks(space, 1)[0])
    degrees = Degrees(stages=3, axes=other.degrees.axes)
    with pytest.raises(ValueError, match="degrees 3 stages .* not in this space"):
        space.encode(type(other)(degrees=degrees, roles={}, states={}))
    with pytest.raises(ValueError, match="group 'mlp' has no role 'heads'"):
        space.encode(
            type(other)(
                degrees=other.degrees, roles={"mlp": ("heads", None, None)}, states={}
            )
        )
    with pytest.raises(ValueError, match="'mlp/gate' has no factor 'heads'"):
        space.encode(
            type(other)(
                degrees=other.degrees,
                roles={},
                states={"decode": {"mlp/gate": ("heads", None, None)}},
            )
        )


@pytest.fixture(scope="module")
def meshed(graphs) -> Space:
    axes = tuple(
        MeshAxis(name=name, size=size, inside=True)
        for name, size in (("dp", 2), ("tp", 4))
    )
    return build_space(graphs, [Degrees(stages=1, axes=axes)])


def leaf_spec(space: Space, picks: np.ndarray, path: str) -> P:
    assignment = space.decode(picks)
    graph = space.graphs["decode"]
    node, leaf = next(
        (node, leaf)
        for node in graph.values
        for leaf in node.leaves
        if leaf.path == path
    )
    numbers = state_numbers(node, assignment.states["decode"][node.name])
    return spec_of(leaf.factors, numbers, assignment.degrees.axes)


@pytest.mark.parametrize(
    "spec",
    [
        P(),
        P(None, "tp"),
        P(None, None, "tp"),
        P(None, ("dp", "tp")),
        P(None, "tp", "dp"),
    ],
)
def test_pinned_specs_are_honoured_whatever_the_genes_say(meshed, spec) -> None:
    pinned = pin(meshed, {"params/layers/gate": spec})
    for picks in random_picks(pinned, 20):
        assert leaf_spec(pinned, picks, "params/layers/gate") == spec
        assignment = pinned.decode(picks)
        assert pinned.decode(pinned.encode(assignment)) == assignment


def test_pins_add_up(meshed) -> None:
    specs = {"params/layers/gate": P(None, None, "tp"), "params/embed": P("dp")}
    both = pin(meshed, specs)
    one_by_one = meshed
    for path, spec in specs.items():
        one_by_one = pin(one_by_one, {path: spec})
    assert both.pinned == one_by_one.pinned
    assert len(both.pinned) == 4


def test_an_argument_of_both_phases_is_pinned_in_both(meshed) -> None:
    pinned = pin(meshed, {"tokens": P("dp", "tp")})
    for picks in random_picks(pinned, 5):
        states = pinned.decode(picks).states
        assert states["prefill"]["tokens"] == ("batch", "sequence")
        assert states["decode"]["tokens"] == ("batch", None)  # one token, no positions


@pytest.mark.parametrize(
    ("path", "spec", "message"),
    [
        ("params/layer/gate", P(), "no argument 'params/layer/gate'; did you mean par"),
        ("nothing like it at all", P(), "no argument .*; there are params/embed, "),
        ("params/embed", P("ep"), "the mesh has no axis 'ep'; it has dp, tp"),
        ("params/layers/gate", P("tp"), "dim 0 cannot be sharded"),
        ("params/norm", P(None, "tp"), "dim 1 cannot be sharded"),
        ("params/layers/key", P(None, None, "tp"), "4 ways do not divide dim 'kv_hea"),
        ("params/embed", P(("tp", "dp")), "must stand in mesh order: dp, tp"),
    ],
)
def test_bad_pins_are_refused(meshed, path: str, spec: P, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pin(meshed, {path: spec})


def test_arguments_of_one_layout_cannot_be_pinned_apart() -> None:
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    traced = trace_program(lambda a, b: a + b, (x, x))
    axis = MeshAxis(name="x", size=2, inside=True)
    graphs = link_phases({"step": traced.graph})
    space = build_space(graphs, [Degrees(stages=1, axes=(axis,))])
    assert pin(space, {"0": P("x"), "1": P("x")}).pinned
    with pytest.raises(ValueError, match="shares its layout is pinned to another"):
        pin(space, {"0": P("x"), "1": P(None, "x")})
