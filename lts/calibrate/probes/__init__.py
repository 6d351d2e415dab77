"""What `lts calibrate` measures, an operator at a time."""

from collections.abc import Sequence
from typing import Any

from lts.calibrate.probes.attention import decode_family, prefill_family
from lts.calibrate.probes.base import Family
from lts.calibrate.probes.collectives import collective_families
from lts.calibrate.probes.products import copy_family, gemm_family


def families(devices: Sequence[Any], *, quick: bool, fp8: bool) -> tuple[Family, ...]:
    """All that can be measured on some devices; collectives of more than one.

    Args:
      quick: fewer sizes, and collectives of all devices only.
      fp8: products of float8, too.
    """
    forms = ("bfloat16", "fp8") if fp8 else ("bfloat16",)
    return (
        copy_family(quick=quick),
        *(gemm_family(form, quick=quick) for form in forms),
        prefill_family(quick=quick),
        decode_family(quick=quick),
        *(collective_families(devices, quick=quick) if len(devices) > 1 else ()),
    )
