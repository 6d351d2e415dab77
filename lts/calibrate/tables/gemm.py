"""Matrix products of a folder of measured tables: `gemm.csv` (H100), `gemm_h200.csv`,
`gemm_a100.csv`.

Columns: dtype, m, n, k, time_us. `fp8` and `fp8_block` rows include the quantisation of
the bfloat16 activations.
"""

from collections.abc import Iterator
from pathlib import Path

from lts.calibrate.fit import Series, shape_numbers
from lts.calibrate.tables.reading import column, groups, rows_of, seconds
from lts.cost.operators.gemm import GEMMS

_FILES = {"h100": "gemm.csv", "h200": "gemm_h200.csv", "a100": "gemm_a100.csv"}
_FORM_OF = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block"}


def series(folder: Path) -> Iterator[tuple[str, Series]]:
    """Calibration name and points, per form of product.

    Keys: `gemm/bfloat16`, `gemm/fp8`, `gemm/fp8_block`. All rows of one weight matrix
    (n, k) are held out together.
    """
    for chip, name in _FILES.items():
        path = folder / name
        if not path.exists():
            continue
        for (dtype,), rows in groups(rows_of(path), "dtype").items():
            sizes = {size: column(rows, size) for size in ("m", "n", "k")}
            form = _FORM_OF[dtype]
            yield (
                chip,
                Series(
                    key=f"gemm/{form}",
                    operator=GEMMS[form],
                    sizes=sizes,
                    time_s=seconds(rows),
                    shapes=shape_numbers(sizes["n"], sizes["k"]),
                ),
            )
