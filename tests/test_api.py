"""`lts.search`, `lts.price` and the plan that they give."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import lts
from lts.cost import profile
from lts.cost.collective import collective_time_s
from lts.cost.pricing import Pricing
from tests.tiny import CLUSTER, WORKLOAD, model_of, priced

SERVED = {"target": model_of("dense"), "cluster": CLUSTER, "workload": WORKLOAD}


def mlp(x, up, down):
    return jnp.tanh(x @ up) @ down


def mlp_args(rows: int = 64):
    shapes = (rows, 32), (32, 128), (128, 32)
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


def search_mlp(**options) -> lts.Plan:
    options = {"cluster": CLUSTER, "method": "random", "budget": 64, **options}
    return lts.search(mlp, mlp_args(), **options)


def auto_mesh(shape: dict[str, int], devices=None) -> Mesh:
    devices = np.array(jax.devices() if devices is None else devices)
    axis_types = (AxisType.Auto,) * len(shape)
    return Mesh(devices.reshape(tuple(shape.values())), tuple(shape), axis_types)


def test_same_seed_gives_the_same_file_byte_for_byte(tmp_path):
    files = []
    for number in range(2):
        plan = lts.search(
            model_of("dense"),
            cluster=CLUSTER,
            workload=WORKLOAD,
            method="annealing",
            budget=128,
            seed=3,
        )
        files.append(tmp_path / f"{number}.json")
        plan.save(files[-1])
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_loaded_plan_is_the_saved_one(tmp_path):
    plan = priced("tied", tp=4, dp=2)
    plan.save(tmp_path / "plan.json")
    loaded = lts.Plan.load(tmp_path / "plan.json")
    assert loaded.to_dict() == plan.to_dict() == json.loads(json.dumps(plan.to_dict()))
    for phase in ("prefill", "decode"):
        assert loaded.phase(phase).in_specs == plan.phase(phase).in_specs
        assert loaded.phase(phase).out_specs == plan.phase(phase).out_specs


def test_a_loaded_plan_of_a_function_is_bound_to_its_arguments(tmp_path):
    plan = search_mlp()
    plan.save(tmp_path / "plan.json")
    loaded = lts.Plan.load(tmp_path / "plan.json")
    with pytest.raises(ValueError, match=r"plan.bind\(function, args\)"):
        _ = loaded.in_specs
    assert loaded.bind(mlp, mlp_args()).in_specs == plan.in_specs
    with pytest.raises(ValueError, match="the plan has arguments x, up, down; these"):
        loaded.bind(lambda x, y, z: x, mlp_args())


def test_tensor_parallel_specs_by_hand_are_priced_as_one_all_reduce():
    mesh = auto_mesh({"tp": 8})
    specs = {
        "x": PartitionSpec(),
        "up": PartitionSpec(None, "tp"),
        "down": PartitionSpec("tp", None),
    }
    plan = lts.price(mlp, mlp_args(), mesh=mesh, cluster=CLUSTER, specs=specs)
    reshards = [p for p in plan.metrics.breakdown if p.kind == "reshard"]
    assert len(reshards) == 1
    # all-reduce of the result [64, 32] float32 over 8 GPUs of one node: a knot of bytes
    nbytes, group = np.array(64 * 32 * 4.0), (np.array(8), np.array(1))
    pricing = Pricing(cluster=CLUSTER)
    expected = collective_time_s("all_reduce", nbytes, *group, pricing)
    assert reshards[0].time_s == pytest.approx(float(expected), rel=1e-6)
    assert reshards[0].provenance == "measured"
    fit = pricing.fit("all_reduce/nccl/8")
    assert reshards[0].error == fit.median_error
    assert plan.in_specs == (
        PartitionSpec(),
        PartitionSpec(None, "tp"),
        PartitionSpec("tp"),
    )


def test_a_search_on_a_mesh_keeps_its_axes_devices_and_pins():
    devices = jax.devices()[::-1]
    mesh = auto_mesh({"dp": 2, "tp": 4}, devices)
    pin = {"up": PartitionSpec(None, "tp"), "x": PartitionSpec("dp")}
    plan = search_mlp(cluster=None, mesh=mesh, pin=pin)
    assert plan.in_specs[:2] == (PartitionSpec("dp"), PartitionSpec(None, "tp"))
    assert plan.mesh().shape == {"dp": 2, "tp": 4}
    assert list(plan.mesh().devices.flat) == devices
    args = [jnp.ones(leaf.shape) for leaf in mlp_args()]
    found = plan.apply(mlp)(*plan.device_put(args))
    np.testing.assert_allclose(found, mlp(*args), rtol=1e-5)


@pytest.mark.parametrize(
    "pin, message",
    [
        ({"upp": PartitionSpec("tp")}, "no argument 'upp'; did you mean up"),
        ({"up": PartitionSpec("ep")}, "no axis 'ep'; it has dp, tp"),
        ({"x": PartitionSpec(None, None, "tp")}, "dim 2 cannot be sharded"),
    ],
)
def test_a_pin_that_cannot_be_is_refused(pin, message):
    with pytest.raises(ValueError, match=message):
        search_mlp(cluster=None, mesh=auto_mesh({"dp": 2, "tp": 4}), pin=pin)


def test_the_objective_never_exceeds_the_bound_and_gap_follows():
    plan = priced("dense", tp=8)
    assert plan.objective <= plan.bound
    assert plan.gap == pytest.approx(1 - plan.objective / plan.bound)
    assert plan.gap_kind == "relaxed"


def test_metrics_are_consistent():
    plan = priced("dense", dp=2, tp=4)
    metrics, output_len = plan.metrics, WORKLOAD.output_len
    assert metrics.concurrency == WORKLOAD.concurrency
    assert metrics.tokens_per_s_per_gpu == plan.objective
    prefill, decode = plan.phase("prefill"), plan.phase("decode")
    assert metrics.step_time_s == pytest.approx(decode.step_time_s, rel=1e-5)
    prompt_s = prefill.step_time_s / prefill.batch
    further = output_len - 1
    tpot_s = decode.step_time_s + (metrics.concurrency - 1) / further * prompt_s
    assert metrics.tpot_s == pytest.approx(tpot_s, rel=1e-5)
    engine = profile.load()
    ttft_s = engine.host_s + engine.alone * prefill.step_time_s
    ttft_s += engine.waiting * metrics.concurrency * prompt_s
    ttft_s += engine.running * decode.step_time_s
    rate = plan.objective * CLUSTER.num_gpus / 1e4
    ttft_s += engine.saturation_s * rate**4
    assert (metrics.engine, metrics.error) == ("middle", engine.tpot_error)
    assert metrics.ttft_s == pytest.approx(ttft_s, rel=1e-5)
    cycle_s = further * decode.step_time_s + metrics.concurrency * prompt_s
    tokens = metrics.concurrency * output_len / cycle_s / CLUSTER.num_gpus
    assert plan.objective == pytest.approx(tokens, rel=1e-5)


def test_a_problem_of_ones_own_is_searched_and_applied():
    width, heads = 32, 8

    def prefill(params, cache, tokens):
        x = params["embed"][tokens]
        keys = jnp.einsum("bsd,dhk->bhsk", x, params["key"])
        cache = jax.lax.dynamic_update_slice(cache, keys, (0, 0, 0, 0))
        return jnp.einsum("bsd,vd->bsv", x, params["embed"])[:, -1], cache

    def decode(params, cache, tokens, position):
        x = params["embed"][tokens]
        keys = jnp.einsum("bd,dhk->bhk", x, params["key"])[:, :, None]
        cache = jax.lax.dynamic_update_slice(cache, keys, (0, 0, position, 0))
        score = jnp.einsum("bd,dhk,bhtk->bht", x, params["key"], cache)
        x = x + jnp.einsum("bht,bhtk,dhk->bd", score, cache, params["key"])
        return jnp.einsum("bd,vd->bv", x, params["embed"]), cache

    def args(phase, batch):
        array = jax.ShapeDtypeStruct
        params = {
            "embed": array((64, width), jnp.float32),
            "key": array((width, heads, 4), jnp.float32),
        }
        cache = array((batch, heads, 16, 4), jnp.float32)
        if phase == "prefill":
            return params, cache, array((batch, 8), jnp.int32)
        return params, cache, array((batch,), jnp.int32), array((), jnp.int32)

    problem = lts.Problem(prefill=prefill, decode=decode, args=args)
    plan = lts.search(
        problem,
        cluster=CLUSTER,
        workload=lts.Workload(8, 8, concurrency=16),
        method="random",
        budget=64,
    )
    key = jax.random.key(0)
    params = {
        "embed": jax.random.normal(key, (64, width)),
        "key": jax.random.normal(key, (width, heads, 4)) / 8,
    }
    cache = jnp.zeros((16, heads, 16, 4))
    tokens = jnp.arange(128, dtype=jnp.int32).reshape(16, 8) % 64
    expected, after = prefill(params, cache, tokens)
    placed = plan.phase("prefill").device_put((params, cache, tokens))
    logits, sharded = plan.apply(prefill)(*placed)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    following = expected.argmax(-1).astype(jnp.int32)
    expected, _ = decode(params, after, following, jnp.int32(8))
    logits, _ = plan.apply(decode)(placed[0], sharded, following, jnp.int32(8))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-3)


def test_stages_divide_the_layers_and_keep_their_limit():
    """Two layers: of 1, 2, 4 and 8 stages only 1 and 2 are."""
    found = set()
    for seed in range(6):
        options = {"method": "random", "budget": 1, "seed": seed}
        found.add(lts.search(**SERVED, **options).degrees["pp"])
        assert lts.search(**SERVED, **options, max_stages=1).degrees["pp"] == 1
    assert found == {1, 2}


def test_limits_that_cannot_be_kept_name_the_limit_and_the_relaxation():
    workload = lts.Workload(1024, 128, ttft_ms=1000, tpot_ms=0.5)
    with pytest.raises(lts.NoFeasiblePlanError, match=r"TPOT: .* ms against a limit"):
        lts.search(
            "llama-3.1-8b",
            cluster=CLUSTER,
            workload=workload,
            method="random",
            budget=64,
        )


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: lts.search("llama-3.1-8b", cluster=CLUSTER), "pass workload="),
        (lambda: lts.search(mlp, mlp_args()), "no cluster"),
        (lambda: search_mlp(method="magic"), "unknown method 'magic'; there are ran"),
        (lambda: search_mlp(budget=0), "budget must be a positive integer, got 0"),
        (lambda: search_mlp(workload=WORKLOAD), "a workload needs a model to serve"),
        (lambda: search_mlp(pin={"x": PartitionSpec()}), "pin needs mesh="),
        (lambda: search_mlp(serving="pool"), "serving is 'pool'; there are colocated,"),
        (lambda: search_mlp(serving="pools"), "pools serve a model; a function has"),
        (
            lambda: search_mlp(
                serving="pools", cluster=None, mesh=auto_mesh({"dp": 2, "tp": 4})
            ),
            "pools have a mesh each, which is found; drop mesh=",
        ),
        (lambda: lts.search(**SERVED, max_stages=0), "max_stages must be at least 1"),
        (lambda: priced("dense", tp=3), r"no mesh has degrees .*tp.*: 3"),
        (lambda: priced("dense", ep=8), "unknown degree 'ep'; there are pp, dp, tp"),
        (
            lambda: lts.search("llama-3.1-7b", cluster=CLUSTER, workload=WORKLOAD),
            "unknown model 'llama-3.1-7b': did you mean llama-3.1-70b",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_too_few_devices_are_named_with_the_remedy():
    plan = lts.search(
        mlp,
        mlp_args(),
        cluster=lts.Cluster.parse("h100:2x8"),
        method="random",
        budget=8,
    )
    with pytest.raises(ValueError, match=r"needs 16 devices .* found 8; .*16\) first"):
        plan.mesh()


def test_a_phase_that_the_function_does_not_name_is_asked_for():
    plan = priced("dense", tp=8)
    with pytest.raises(ValueError, match="which phase is .*plan.phase"):
        plan.apply(lambda params: params)
    with pytest.raises(ValueError, match="no phase 'train'; it has prefill, decode"):
        plan.phase("train")


@pytest.mark.parametrize("damage", ["format", "phases", "bound", "serving"])
def test_a_damaged_file_is_refused_in_one_line(damage, tmp_path):
    data = priced("dense", tp=8).to_dict()
    data[damage] = 0
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError) as error:
        lts.Plan.load(path)
    assert "\n" not in str(error.value)
