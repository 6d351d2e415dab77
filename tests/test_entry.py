"""`module:function` on the command line: found, planned, saved, verified, refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lts.cli import main
from lts.entry import find
from lts.plan import Plan
from tests.test_cli import assert_documented, fails

QUICK = ["--cluster", "h100:1x2", "--method", "random", "--budget", "8"]
OWN = """
import jax
import jax.numpy as jnp

import lts

array = jax.ShapeDtypeStruct


def step(x, up, down):
    return jnp.tanh(x @ up) @ down


def step_args():
    shapes = (16, 32), (32, 64), (64, 32)
    return tuple(array(shape, "float32") for shape in shapes)


def buckets():
    x, up, down = step_args()
    return [(x, up, down), ((array((64, 32), "float32"), up), {"down": down})]


def cell(params, h):
    return jnp.tanh(h @ params)


def cell_args():
    return array((32, 32), "float32"), array((16, 32), "float32")


def grow(x):
    return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: jnp.tanh(c @ c), x)


def grow_args():
    return (array((64, 64), "float32"),)


class Model:
    @staticmethod
    def call(x):
        return x @ x

    call_args = staticmethod(grow_args)


BIG = jnp.ones((512, 1024))


def closing(x):
    return x @ BIG


def closing_args():
    return (array((16, 512), "float32"),)


def prefill(params, cache, tokens):
    x = params[tokens]
    cache = jax.lax.dynamic_update_slice(cache, x, (0, 0, 0))
    return jnp.einsum("bd,vd->bv", x[:, -1], params), cache


def decode(params, cache, tokens):
    x = params[tokens] + cache.sum(1)
    cache = jax.lax.dynamic_update_slice(cache, x[:, None], (0, 8, 0))
    return jnp.einsum("bd,vd->bv", x, params), cache


def model_args(phase, batch):
    tokens = array((batch, 8) if phase == "prefill" else (batch,), "int32")
    return array((64, 32), "float32"), array((batch, 16, 32), "float32"), tokens


def problem():
    return lts.Problem(prefill=prefill, decode=decode, args=model_args)


def bare(x, y):
    return x @ y


def number():
    return 3


def wrong(x):
    return x


def wrong_args():
    return [array((8, 8), "float32")]


def failing(x):
    return {}[x.shape]


def failing_args():
    return (array((8, 8), "float32"),)


def raising(x):
    return x


def raising_args():
    raise KeyError("no such file")


count = 3
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `own.py`, as the current one; nothing of it stays imported."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("import jax\n\nx = 1 / 0\n")
    (tmp_path / "needy.py").write_text("import no_such_package\n")
    (tmp_path / "unread.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("own", "broken", "needy", "unread"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def searched(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main(["search", *args, *QUICK, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert_documented(data, "plan.json", "Cluster")
    return data


def test_a_function_is_searched_saved_explained_and_verified(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = searched(capsys, "own:step", "--weights", "up,down", "--out", "plan.json")
    assert data["origin"] == {"target": "own:step", "args": "own:step_args"}
    assert [path for path, _ in data["phases"]["step"]["in_specs"]] == [
        "x",
        "up",
        "down",
    ]
    assert Plan.load("plan.json").to_dict() == data
    assert main(["explain", "plan.json", "--op", "down", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"operations": []}
    assert main(["explain", "plan.json"]) == 0
    line = OWN.splitlines().index("    return jnp.tanh(x @ up) @ down") + 1
    assert f"own.py:{line} dot_general" in capsys.readouterr().out
    assert main(["verify", "plan.json", "--json", "--strict"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["phases"]
    assert report["argument_bytes"] == report["predicted_argument_bytes"]


def test_a_file_and_a_callable_of_several_shapes_may_be_given(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = searched(capsys, f"{own}/own.py:step", "--args", ":buckets")
    assert [s["arguments"] for s in data["metrics"]["shapes"]] == [
        {"x": [16, 32]},
        {"x": [64, 32]},
    ]
    assert data["metrics"]["worst_shape"] in ("step", "step#2")
    assert data["origin"]["args"] == f"{own}/own.py:buckets"


def test_state_is_named_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = searched(capsys, "own:cell", "--weights", "params", "--state", "h=out")
    phase = data["phases"]["step"]
    assert phase["donated"] == ["h"] and phase["weights"] == ["params"]
    assert data["metrics"]["cache_bytes"] in (4 * 16 * 32, 4 * 16 * 32 / 2)
    assert dict(phase["in_specs"])["h"] == dict(phase["out_specs"])["out"]


def test_trips_are_given_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    priced = ["price", "own:grow", "--cluster", "h100:1x2", "--tp", "2", "--json"]
    times = []
    for more in ([], ["--trips", "64"]):
        assert main([*priced, *more]) == 0
        data = json.loads(capsys.readouterr().out)
        (op,) = (p for p in data["metrics"]["breakdown"] if p["kind"] == "op")
        times.append(op["time_s"])
    assert times[1] == pytest.approx(64 * times[0], rel=1e-6)


def test_a_dotted_name_is_found_with_its_neighbour() -> None:
    found = find("own:Model.call")
    assert found.origin == {"target": "own:Model.call", "args": "own:Model.call_args"}
    ((args, kwargs),) = found.calls
    assert (args[0].shape, kwargs) == ((64, 64), {})


def test_closed_over_arrays_are_one_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["search", "own:closing", *QUICK]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lts: warning: the function closes over")
    assert f"{4 * 512 * 1024:,} bytes" in line


def test_a_problem_is_made_searched_and_verified(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ["--input-len", "8", "--output-len", "8", "--concurrency", "4"]
    data = searched(capsys, "own:problem", *load, "--out", "plan.json")
    assert data["phase_order"] == ["prefill", "decode"]
    assert data["origin"] == {"target": "own:problem"}
    line = fails(capsys, 2, "search", "own:problem", *QUICK)
    assert "are required: --input-len, --output-len: own:problem is a model" in line
    assert main(["verify", "plan.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [report["phase"] for report in found["phases"]] == ["prefill", "decode"]


BAD = {
    "no module": (["owm:step"], "no module 'owm': did you mean 'own'? Modules are"),
    "no file": (["none/own.py:step"], "no file 'none/own.py'; give path/to/file.py"),
    "no function": (["own:stop"], "'own:stop': no 'stop'; did you mean step"),
    "no callable": (["own:count"], "'own:count' is int, neither a function nor an"),
    "no name": (["own:"], "cannot read 'own:': expected module:function"),
    "no giver": (
        ["own:step", "--args", ":bucket"],
        "'own:bucket': no 'bucket'; did you mean buckets",
    ),
    "wrong return": (
        ["own:wrong"],
        "'own:wrong_args' returned no arguments: the arguments of a call are a tuple",
    ),
    "no problem": (
        ["own:number"],
        "'own:number' has no parameters, so it must return an lts.Problem; it returned "
        "int",
    ),
    "raising": (
        ["own:raising"],
        "calling 'own:raising_args' failed at own.py:",
    ),
    "failing": (["own:failing"], "tracing 'own:failing' failed at own.py:"),
    "broken": (
        ["broken:step"],
        "importing 'broken' failed at broken.py:3: ZeroDivisionError: division by zero;"
        " LTS_TRACEBACK=1 shows the whole way",
    ),
    "needy": (
        ["needy:step"],
        "importing 'needy' failed at needy.py:1: ModuleNotFoundError: No module named "
        "'no_such_package'",
    ),
    "unread": (["unread.py:step"], "importing 'unread.py' failed at unread.py:1: Synt"),
    "lengths": (
        ["own:step", "--input-len", "8"],
        "drop --input-len: own:step is a function, which has no workload",
    ),
    "pools": (["own:step", "--serving", "pools"], "drop --serving: a function has one"),
    "state": (["own:step", "--state", "q"], "state='q' is no argument of the function"),
}


@pytest.mark.parametrize("args, message", BAD.values(), ids=BAD)
def test_what_is_wrong_is_one_line(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = fails(capsys, 2, "search", *args, *QUICK)
    assert line.startswith("lts: ")
    assert message in line


def test_missing_arguments_are_shown_as_lines_to_write(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["search", "own:bare", *QUICK]) == 2
    first, *example = capsys.readouterr().err.splitlines()
    assert first == (
        "lts: 'own:bare' needs arguments: write bare_args beside it, which returns "
        "them, or name what does with --args module:callable"
    )
    assert example == [
        "",
        "def bare_args():",
        "    array = jax.ShapeDtypeStruct  # shapes and dtypes are enough",
        '    return array((8, 1024), "bfloat16"), ...  # x, y',
    ]


def test_the_users_own_error_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTS_TRACEBACK", "1")
    with pytest.raises(ValueError, match="importing 'broken'") as caught:
        main(["search", "broken:step", *QUICK])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_plan_of_an_unknown_function_asks_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = searched(capsys, "own:step")
    Path("plan.json").write_text(json.dumps({**data, "origin": None}))
    line = fails(capsys, 2, "verify", "plan.json")
    assert "say which it is with --function module:function" in line
    assert main(["verify", "plan.json", "--function", "own:step", "--json"]) == 0
