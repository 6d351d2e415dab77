"""Every notebook runs from top to bottom, and says what its kept outputs say.

A notebook is executed by the interpreter of the tests, in a folder of its own. To keep
the outputs of a run: `jupyter execute --inplace notebooks/NAME.ipynb`.
"""

import os
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

REASON = "runs notebooks; install the extra 'test'"
nbclient = pytest.importorskip("nbclient", reason=REASON)
nbformat = pytest.importorskip("nbformat", reason=REASON)
jupyter_client = pytest.importorskip("jupyter_client", reason=REASON)
pytest.importorskip("ipykernel", reason=REASON)
pytest.importorskip("matplotlib", reason=REASON)

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ERROR = re.compile(r"max relative error (\S+)")
RATE = re.compile(r"(\d+) tokens/s/GPU of at most (\d+)")
# Whole logits in float32, whose sums are taken in another order; see test_apply.
TOLERANCE = 1e-4


class ThisPython(jupyter_client.AsyncKernelManager):
    """Starts kernels with the running interpreter, whatever kernels are installed."""

    @property
    def kernel_spec(self):
        return jupyter_client.kernelspec.KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        )


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook) -> str:
    return "".join(
        output.text
        for cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "stream"
    )


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def kept(request):
    """A notebook as it is in the repository."""
    return nbformat.read(request.param, as_version=4)


@pytest.fixture(scope="module")
def executed(kept, tmp_path_factory) -> Iterator:
    """The same notebook after a run; a cell that raises fails it here."""
    notebook = nbformat.from_dict(kept)
    for cell in code_cells(notebook):
        cell.outputs = []
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_manager_class=ThisPython,
        resources={"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}},
    ).execute(env={**os.environ, "PYTHONPATH": path})
    return notebook


def test_there_is_a_notebook():
    assert [path.stem for path in NOTEBOOKS][:1] == ["01_first_plan"]


def test_kept_outputs_are_those_of_one_clean_run(kept):
    cells = code_cells(kept)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    assert kept.metadata.kernelspec.name == "python3"


def test_a_run_has_outputs_where_outputs_are_kept(kept, executed):
    # one print may come as several streams, as the kernel's buffer falls
    found, expected = (
        [
            [kind for kind, _ in groupby(o.output_type for o in cell.outputs)]
            for cell in code_cells(each)
        ]
        for each in (executed, kept)
    )
    assert found == expected


def test_sharded_results_are_the_unsharded_ones(executed):
    errors = [float(text) for text in ERROR.findall(printed(executed))]
    assert errors and max(errors) <= TOLERANCE


def test_rate_of_the_plan_found_is_the_kept_one(kept, executed):
    (found,), (expected,) = (RATE.findall(printed(each)) for each in (executed, kept))
    rate, bound = map(float, found)
    # Plans of near equal rate abound, and a policy trained on another CPU may settle on
    # another one of them; the bound is no search.
    assert rate == pytest.approx(float(expected[0]), rel=0.05)
    assert bound == pytest.approx(float(expected[1]), abs=1)
