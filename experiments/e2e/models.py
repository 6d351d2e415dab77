"""Model names of measured rows to the sizes that a step of them costs.

Names resolve through `ALIASES` to a configuration: a file `<owner>--<name>_config.json`
of a folder given with `--configs`, the zoo of `lts.models`, or sizes in `published.py`.
"""

import json
import re
from functools import cache
from pathlib import Path

from experiments.e2e.published import PUBLISHED
from experiments.e2e.sizes import read_sizes
from lts.cost.served import ServedModel, served_model
from lts.models import load, names

_DROPPED = re.compile(
    r"(-instruct|-chat|-hf|-base|-preview|-nvfp4|-mxfp4|-fp8|-bf16|-fp4|-int4|-awq"
    r"|-\d{4}|-v0\.1|-v1|-(17|109|400)b-\d+e)(?=-|$)"
)

ALIASES = {
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3/r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "kimi-k2.5": "kimi-k2",
    "kimi-k2-thinking": "kimi-k2",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3-8b": "llama-3.1-8b",
    "llama-3.3-70b": "llama-3.1-70b",
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-405b": "llama-3.1-405b",
    "glm-4.5": "glm-4.6",
    "glm-5.1": "glm-5",
    "minimax-m2": "minimax-m2.5",
    "minimax-m2.1": "minimax-m2.5",
    "bloom": "bloom-176b",
}
"""Names of one architecture, all in the spelling of `plain`."""


def plain(name: str) -> str:
    """A model's name without its owner, form of weights and tuning, in lower case.

    >>> plain("meta-llama--Meta-Llama-3.1-8B-Instruct"), plain("Qwen3-235B-A22B-FP8")
    ('meta-llama-3.1-8b', 'qwen3-235b-a22b')
    """
    short = re.split(r"--|/(?!r1)", name.strip().lower())[-1]
    while (shorter := _DROPPED.sub("", short)) != short:
        short = shorter
    return short


class Models:
    """Finds models by name; `configs` is a folder of config.json files, or None."""

    def __init__(self, configs: Path | None) -> None:
        files = sorted(configs.glob("**/*config.json")) if configs else []
        self._files = {}
        for path in files:
            stem = path.name.removesuffix("config.json").rstrip("_")
            key = self.key(stem or path.parent.name)
            self._files.setdefault(key, path)

    @staticmethod
    def key(name: str) -> str:
        """The same for all names of one architecture."""
        short = plain(name)
        return ALIASES.get(short, short)

    @cache  # noqa: B019 (few instances, each for the life of the program)
    def find(self, name: str) -> ServedModel:
        """The sizes of a model.

        Raises:
          ValueError: in one line, if no configuration of that name is known.
        """
        key = self.key(name)
        if key in self._files:
            return _read(self._files[key])
        if key in names():
            return served_model(load(key).config)
        if key in PUBLISHED:
            return read_sizes(PUBLISHED[key], key)
        raise ValueError(f"no configuration of {name!r}: give one with --configs")


def _read(path: Path) -> ServedModel:
    """Through `lts.models`, or by its sizes alone where that lacks a feature."""
    try:
        return served_model(load(path).config)
    except ValueError:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return read_sizes(fields, path.name.removesuffix("_config.json"))
