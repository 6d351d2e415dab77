"""The command line: output, exit status, and one clear line for each kind of error."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import lts.cli
from lts import options
from lts.cli import main
from lts.metrics import ShapeMetrics
from lts.models import DecoderConfig, config_to_dict
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
    Quantization,
    Rope,
)
from lts.models.rope import LinearRope, Llama3Rope, YarnRope
from lts.operations import Array, Collective, Operation
from lts.plan import Plan
from lts.prepare import NoFeasiblePlanError
from lts.report.text import plan_text

ROOT = Path(__file__).parents[1]
SCHEMAS = (ROOT / "docs" / "schemas.md").read_text(encoding="utf-8")

TINY = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}
LOAD = ["--input-len", "64", "--output-len", "16"]
CLUSTER = ["--cluster", "h100:1x2"]
QUICK = ["--method", "random", "--budget", "64"]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """`python -m lts`, as a user's shell would start it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    # as conftest has it: optimised code differs in the last digit
    env["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "lts", *args],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture(scope="module")
def saved(config: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan.json of a search that ran in a process of its own."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    done = run("search", config, *CLUSTER, *LOAD, *QUICK, "--out", str(path), "--json")
    assert done.returncode == 0, done.stderr
    # in a pipe there is no progress bar, and JAX and XLA keep quiet
    assert done.stderr == ""
    # exactly one object, and the same as in the file, byte for byte
    assert done.stdout == path.read_text()
    return path


def fails(capsys: pytest.CaptureFixture[str], status: int, *args: str) -> str:
    """The one line on stderr of a command that exits with `status`."""
    assert main(args) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_same_seed_gives_the_same_file_in_another_process(
    config: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again.json"
    assert main(["search", config, *CLUSTER, *LOAD, *QUICK, "--out", str(again)]) == 0
    assert again.read_bytes() == saved.read_bytes()
    out = capsys.readouterr().out
    assert out == plan_text(json.loads(saved.read_text())) + "\n"


def test_show_prints_all_of_a_saved_plan(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(saved)]) == 0
    out = capsys.readouterr().out
    data = json.loads(saved.read_text())
    assert out == plan_text(data, full=True) + "\n"
    for part in data["metrics"]["breakdown"]:
        assert part["name"] in out


def test_priced_plan_of_prefill_alone_can_be_verified(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "plan.json")
    prompts = ["--input-len", "64", "--output-len", "0", "--weight-dtype", "fp32"]
    args = ["price", config, *CLUSTER, *prompts, "--tp", "2", "--out", path, "--json"]
    assert main(args) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["degrees"]["tp"] == 2
    assert data["search"]["method"] == "price"
    assert data["model"]["weight_dtype"] == "float32"
    assert main(["verify", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert_documented(found, "Verification")
    (report,) = found["phases"]
    assert report["phase"] == "prefill"
    assert report["argument_bytes"] == report["predicted_argument_bytes"]
    assert {"all_reduce"} <= {row["kind"] for row in report["rows"]}


@pytest.mark.parametrize(
    "short, name",
    [
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("fp32", "float32"),
        ("fp8", "float8_e4m3fn"),
        ("float16", "float16"),
    ],
)
def test_dtypes_have_short_forms(short: str, name: str) -> None:
    assert options.dtype_of(short) == name


@pytest.mark.parametrize(
    "agrees, strict, status", [(True, True, 0), (False, False, 0), (False, True, 1)]
)
def test_strict_verify_exits_with_one_if_anything_differs(
    agrees: bool,
    strict: bool,
    status: int,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Found:
        def to_dict(self) -> dict[str, Any]:
            return {"ok": agrees, "phases": []}

    monkeypatch.setattr(Plan, "verify", lambda self, *, target: Found())
    args = ["verify", str(saved), "--json", *(["--strict"] if strict else [])]
    assert main(args) == status
    assert json.loads(capsys.readouterr().out) == {"ok": agrees, "phases": []}


def test_plan_that_does_not_compile_is_one_line(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Plan, *, target: str) -> None:
        raise RuntimeError(f"compiling for {target}\nfailed")

    monkeypatch.setattr(Plan, "verify", broken)
    assert fails(capsys, 1, "verify", str(saved)) == "lts: compiling for cpu failed"


def test_pools_are_searched_saved_and_shown(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "plan.json")
    args = ["search", config, *CLUSTER, *LOAD, *QUICK, "--serving", "pools"]
    assert main([*args, "--out", path, "--json"]) == 0
    out = capsys.readouterr().out
    assert out == Path(path).read_text()
    data = json.loads(out)
    assert_documented(data, "plan.json", "Cluster")
    assert data["serving"] == "pools"
    assert data["metrics"]["kv_transfer_s"] > 0
    # one GPU each: all that a cluster of two can be divided into
    assert {p["instances"] * p["gpus"] for p in data["phases"].values()} == {1}
    assert main(["show", path]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"instances +1 instance of 1 GPU +1 instance of 1 GPU\n", shown)


def test_priced_degrees_of_pools_are_those_of_an_instance(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["price", config, "--cluster", "h100:1x4", *LOAD, "--serving", "pools"]
    assert main([*args, "--tp", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    for phase in data["phases"].values():
        assert (phase["gpus"], phase["degrees"]["tp"]) == (2, 2)
    line = fails(capsys, 1, *args, "--tp", "2", "--tpot-ms", "0.001")
    assert line.startswith("lts: no feasible plan on h100:1x4 as pools; to decode, the")
    assert "--tpot-ms" in line


def test_models_and_clusters_as_json_are_documented(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)
    assert_documented(models, "Models")
    sizes = {model["name"]: model["num_params"] for model in models["models"]}
    assert sizes["llama-3.1-8b"] == 8_030_261_248
    assert main(["clusters", "--json"]) == 0
    clusters = json.loads(capsys.readouterr().out)["clusters"]
    assert [cluster["name"] for cluster in clusters] == ["a100", "h100", "h200"]
    for cluster in clusters:
        assert_documented({"cluster": cluster}, "Cluster")


def test_models_and_clusters_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert re.search(r"llama-3.1-70b +70.55 B +70.55 B +80 ", capsys.readouterr().out)
    assert main(["clusters"]) == 0
    assert "H100-SXM5-80GB" in capsys.readouterr().out


def grouped(scaling: LinearRope | Llama3Rope) -> Layer:
    rope = Rope(size=16, scaling=scaling)
    attention = GroupedAttention(num_heads=8, num_kv_heads=2, head_dim=16, rope=rope)
    return Layer(attention=attention, ffn=DenseFfn(size=64))


LATENT = LatentAttention(
    num_heads=4,
    query_rank=None,
    kv_rank=16,
    nope_dim=16,
    value_dim=16,
    rope=Rope(size=8, scaling=YarnRope(factor=2, original_max_position_embeddings=64)),
)
EVERY_KIND = DecoderConfig(
    name="every kind of record that a config may have",
    vocab_size=64,
    hidden_size=32,
    layers=(
        grouped(LinearRope(factor=2)),
        grouped(
            Llama3Rope(
                factor=8,
                low_freq_factor=1,
                high_freq_factor=4,
                original_max_position_embeddings=64,
            )
        ),
        Layer(attention=LATENT, ffn=ExpertFfn(num_experts=4, top_k=2, size=32)),
    ),
    max_position_embeddings=128,
    quantization=Quantization(dtype="float8_e4m3fn", block=(8, 8)),
)

ARRAY = Array(of="x", shape=(8, 16), spec=("x", None))
SUM = Collective(kind="all_reduce", axes=("x",), nbytes=4, count=1, reason="a -> b")
OPERATION = Operation(
    phase="step",
    name="a",
    source="mine.py:3",
    primitive="dot_general",
    trips=1,
    operands=(ARRAY,),
    results=(ARRAY,),
    collectives=(SUM,),
)
SHAPE = ShapeMetrics(name="step", arguments={"x": (8, 16)}, step_time_s=1e-3)

# Keys that are names of things, by the path of the object that holds them.
NAMED = {
    "phases.<phase>.assignment.roles": "<group>",
    "phases.<phase>.assignment.states": "<phase>",
    "phases.<phase>.assignment.states.<phase>": "<node>",
    "cluster.chip.peak_flops_per_s": "<dtype>",
    "phases": "<phase>",
    "phases.<phase>.dims": "<path>",
    "metrics.shapes[].arguments": "<path>",
}


def fields(data: Any, path: str = "") -> set[str]:
    """Paths of all fields of JSON data, in the notation of docs/schemas.md."""
    if isinstance(data, list):
        return set().union(*(fields(item, f"{path}[]") for item in data), set())
    if not isinstance(data, dict):
        return set()
    found: set[str] = set()
    for key, value in data.items():
        own = f"{path}.{NAMED.get(path, key)}" if path else key
        found |= {own} | fields(value, own)
    return found


def documented(heading: str) -> set[str]:
    """Fields in the tables below a heading, up to the next of its rank."""
    (rank,) = re.findall(rf"^(#+) {re.escape(heading)}$", SCHEMAS, re.MULTILINE)
    section = SCHEMAS.split(f"{rank} {heading}\n")[1]
    section = re.split(rf"^#{{1,{len(rank)}}} ", section, flags=re.MULTILINE)[0]
    found, inside = set(), ""
    for line in section.splitlines():
        if header := re.match(r"\| field(?: of `(.*?)`)? \|", line):
            inside = f"{header[1]}." if header[1] else ""
        if cell := re.match(r"\| (`[^|]*) \|", line):
            found |= {inside + name for name in re.findall(r"`([^`]*)`", cell[1])}
    return found


def assert_documented(data: Any, *headings: str) -> None:
    known = set().union(*map(documented, headings))
    assert fields(data) - known - {"cluster", "models"} == set()


def test_every_field_of_a_plan_is_documented_and_every_documented_one_is_there(
    saved: Path,
) -> None:
    written = fields(json.loads(saved.read_text()))
    written |= fields({"config": config_to_dict(EVERY_KIND)}, "model")
    written |= fields({"shapes": [asdict(SHAPE)]}, "metrics")
    written |= fields({"operations": [OPERATION.to_dict()]})
    written |= fields({"target": "mine:step", "args": "mine:step_args"}, "origin")
    known = documented("plan.json") | documented("Cluster")
    assert written - {"cluster"} == known - {"cluster"}


def test_no_feasible_plan_exits_with_one_and_says_what_would_do() -> None:
    done = run("search", "llama-3.1-70b", "--cluster", "h100:1x1", *LOAD)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "lts: llama-3.1-70b does not fit h100:1x1: the weights need 141.1 GB per GPU "
        "at least, of 76.4 GB usable; the smallest cluster of these GPUs that would do "
        "is h100:1x2\n"
    )


def test_limits_that_cannot_be_kept_exit_with_one(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["price", config, *CLUSTER, *LOAD, "--tp", "2", "--ttft-ms", "0.0001"]
    line = fails(capsys, 1, *args)
    assert line.startswith("lts: no feasible plan on h100:1x2")
    assert "--ttft-ms" in line


BAD = {
    "no command": ([], "the following arguments are required: COMMAND"),
    "unknown command": (["serch"], "invalid choice: 'serch'"),
    "unknown flag": (["models", "--jsn"], "unrecognized arguments: --jsn"),
    "abbreviated flag": (["models", "--js"], "unrecognized arguments: --js"),
    "unknown model": (
        ["search", "llama-3-70b", *CLUSTER, *LOAD],
        "unknown model 'llama-3-70b': did you mean llama-3.1-70b",
    ),
    "function": (
        ["search", "no_such_module:step", *CLUSTER],
        "no module 'no_such_module': Modules are looked for in the current folder",
    ),
    "option of functions": (
        ["search", "llama-3.1-8b", *CLUSTER, *LOAD, "--state", "cache"],
        "drop --state: a model to serve says itself what they are",
    ),
    "trips": (
        ["search", "llama-3.1-8b", *CLUSTER, *LOAD, "--trips", "mine.py:3"],
        "cannot read --trips mine.py:3: expected a positive number for all while loops",
    ),
    "malformed cluster": (
        ["search", "llama-3.1-8b", "--cluster", "h100:2y8", *LOAD],
        "cannot read cluster 'h100:2y8': expected NAME:NODESxGPUS",
    ),
    "unknown cluster": (
        ["search", "llama-3.1-8b", "--cluster", "h10:2x8", *LOAD],
        "unknown cluster preset 'h10'; did you mean 'h100'",
    ),
    "cluster file": (
        ["search", "llama-3.1-8b", "--cluster", "none.yaml", *LOAD],
        "cannot read cluster file 'none.yaml': No such file or directory",
    ),
    "no cluster": (
        ["search", "llama-3.1-8b", *LOAD],
        "the following arguments are required: --cluster (see lts search --help)",
    ),
    "no length": (
        ["search", "llama-3.1-8b", *CLUSTER, "--output-len", "16"],
        "the following arguments are required: --input-len: llama-3.1-8b is a model to",
    ),
    "zero input": (
        ["search", "llama-3.1-8b", *CLUSTER, "--input-len", "0", "--output-len", "16"],
        "workload: input_len must be at least 1, got 0",
    ),
    "negative input": (
        ["search", "llama-3.1-8b", *CLUSTER, "--input-len", "-5", "--output-len", "16"],
        "workload: input_len must be at least 1, got -5",
    ),
    "negative output": (
        ["search", "llama-3.1-8b", *CLUSTER, "--input-len", "5", "--output-len", "-1"],
        "workload: output_len must be at least 0, got -1",
    ),
    "length that is no number": (
        ["search", "llama-3.1-8b", *CLUSTER, "--input-len", "5", "--output-len", "x"],
        "argument --output-len: invalid int value: 'x'",
    ),
    "negative limit": (
        ["search", "llama-3.1-8b", *CLUSTER, *LOAD, "--tpot-ms", "-1"],
        "workload: tpot_ms must be a positive number of milliseconds, got -1.0",
    ),
    "zero concurrency": (
        ["search", "llama-3.1-8b", *CLUSTER, *LOAD, "--concurrency", "0"],
        "workload: concurrency must be at least 1, got 0",
    ),
    "dtype": (
        ["search", "llama-3.1-8b", *CLUSTER, *LOAD, "--kv-dtype", "int3"],
        "argument --kv-dtype: unknown dtype 'int3'; known: bf16 (bfloat16), fp16 "
        "(float16), fp32 (float32), fp8 (float8_e4m3fn)",
    ),
    "method": (
        ["search", "llama-3.1-8b", *CLUSTER, *LOAD, "--method", "rnd"],
        "unknown method 'rnd'; there are random, annealing",
    ),
    "budget": (
        ["search", "llama-3.1-8b", *CLUSTER, *LOAD, "--budget", "0"],
        "budget must be a positive integer, got 0",
    ),
    "serving": (
        ["search", "llama-3.1-8b", *CLUSTER, *LOAD, "--serving", "pool"],
        "serving is 'pool'; there are colocated, pools",
    ),
    "no degrees": (
        ["price", "llama-3.1-8b", *CLUSTER, *LOAD],
        "price needs at least one of --tp, --pp, --dp, --cp",
    ),
    "missing plan": (
        ["show", "none.json"],
        "cannot read plan 'none.json': No such file or directory",
    ),
    "model file": (
        ["search", "none/config.json", *CLUSTER, *LOAD],
        "cannot read model config 'none/config.json': No such file or directory",
    ),
    "target": (["verify", "none.json", "--target", "h100"], "cannot read plan"),
}


@pytest.mark.parametrize("args, message", BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_status_two(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = fails(capsys, 2, *args)
    assert line.startswith("lts: ")
    assert message in line


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden_size": None}, "field 'hidden_size' is missing"),
        ({"num_hidden_layers": 2.5}, "'num_hidden_layers' must be an integer, got 2.5"),
        ({"vocab_size": "big"}, "field 'vocab_size' must be an integer, got 'big'"),
        ({"num_attention_heads": -8}, "must be at least 1, got -8"),
    ],
)
def test_bad_config_is_one_line_that_names_the_field(
    change: dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY | change))
    line = fails(capsys, 2, "search", str(tmp_path), *CLUSTER, *LOAD)
    assert message in line


@pytest.mark.parametrize(
    "text, message",
    [
        ("not json", "is not JSON"),
        ("[1]", "is not a plan of format 2"),
        ('{"format": 99}', "is not a plan of format 2 (found 99)"),
        ('{"format": 2}', "malformed plan: 'serving' is missing or wrong"),
    ],
)
def test_file_that_is_no_plan_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    for command in "show", "verify":
        assert message in fails(capsys, 2, command, str(path))


def test_target_that_this_version_lacks_is_one_line(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = fails(capsys, 2, "verify", str(saved), "--target", "tpu")
    assert line.startswith("lts: target is 'tpu'")


def test_place_that_cannot_be_written_is_refused_before_the_search(
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(lts.cli, "search", lambda *_, **__: pytest.fail("searched"))
    for place, reason in (
        (tmp_path / "none" / "plan.json", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        line = fails(capsys, 2, "search", config, *CLUSTER, *LOAD, "--out", str(place))
        assert line.startswith(f"lts: cannot write plan '{place}': {reason}")


def test_search_without_a_plan_leaves_no_file_and_spoils_none(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hopeless(*_: Any, **__: Any) -> None:
        raise NoFeasiblePlanError("nothing fits")

    monkeypatch.setattr(lts.cli, "search", hopeless)
    fresh, old = tmp_path / "fresh.json", tmp_path / "old.json"
    old.write_text("kept")
    for path in fresh, old:
        assert main(["search", config, *CLUSTER, *LOAD, "--out", str(path)]) == 1
    assert not fresh.exists()
    assert old.read_text() == "kept"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_plan_survives_a_disk_that_fills_up(
    config: str,
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(lts.cli.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(lts.cli, "search", lambda *_, **__: Plan.load(saved))
    args = ["search", config, *CLUSTER, *LOAD, "--out", "/dev/full", "--json"]
    assert main(args) == 2
    captured = capsys.readouterr()
    (rescued,) = tmp_path.iterdir()
    assert captured.err == (
        f"lts: cannot write plan '/dev/full': No space left on device; it is in "
        f"{rescued}\n"
    )
    assert rescued.read_bytes() == saved.read_bytes()
    assert captured.out == saved.read_text()


def test_ctrl_c_ends_quietly(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lts.cli, "search", interrupted)
    assert main(["search", config, *CLUSTER, *LOAD]) == 130
    assert capsys.readouterr() == ("", "")


def test_broken_pipe_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.run(
        [sys.executable, "-m", "lts", "models"],
        cwd=ROOT,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (child.returncode, child.stderr) == (141, b"")


def test_traceback_is_shown_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTS_TRACEBACK", "1")
    with pytest.raises(ValueError, match="cannot read plan"):
        main(["show", "none.json"])


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for command in "search", "price", "show", "explain", "verify", "models", "clusters":
        assert f"    {command} " in out
