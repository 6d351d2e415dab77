"""Finding a model by zoo name or by path."""

import json

import pytest

from lts.models import load, names

FIELDS = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def test_the_zoo_has_the_models_of_the_suite():
    assert names() == (
        "deepseek-v3",
        "kimi-k2",
        "llama-3.1-405b",
        "llama-3.1-70b",
        "llama-3.1-8b",
        "mixtral-8x22b",
        "mixtral-8x7b",
        "moe-1.6t",
        "qwen3-235b-a22b",
        "qwen3-32b",
        "qwen3-8b",
        "switch-c-2048",
    )
    for name in names():
        assert load(name).name == name


@pytest.mark.parametrize(
    "file", ["my-model.json", "my-model/config.json", "my-model_config.json"]
)
def test_a_config_file_is_read_and_named_after_its_path(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(FIELDS))
    model = load(str(path), layers="unrolled")
    assert model.name == "my-model" and model.layers == "unrolled"
    assert model.config.hidden_size == 16 and model.config.dtype == "bfloat16"
    assert load(path, layers="unrolled") == model


def test_a_folder_stands_for_its_config(tmp_path, monkeypatch):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(FIELDS))
    assert load(folder).name == "tiny"
    monkeypatch.chdir(tmp_path)
    assert load("tiny") == load(folder)


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(ValueError, match="unknown model 'llama-3.1-7b': did you mean"):
        load("llama-3.1-7b")
    with pytest.raises(ValueError, match="did you mean qwen3-32b"):
        load("Qwen3-32B")
    with pytest.raises(ValueError, match="unknown model 'zzz': have deepseek-v3, kimi"):
        load("zzz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read model config '.*': No such file"),
        ("{not json", "is not JSON"),
        ("\xff", "is not JSON"),
        ("[1, 2]", "must hold a JSON object, found list"),
        ("{}", "config of 'broken': field 'model_type' is missing"),
    ],
)
def test_a_bad_file_gives_one_line(tmp_path, content, message):
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "my-model_"])
def test_quantization_in_a_file_beside_the_config_is_not_missed(tmp_path, prefix):
    path = tmp_path / f"{prefix}config.json"
    path.write_text(json.dumps(FIELDS))
    beside = tmp_path / f"{prefix}hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    with pytest.raises(ValueError, match="quantization 'NVFP4' is not supported"):
        load(path)
    beside.write_text(json.dumps({"quantization": {}}))
    assert load(path).config.quantization is None


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read model config '.*config.json'"):
        load(tmp_path)


def test_an_unknown_layer_form_is_refused():
    with pytest.raises(ValueError, match="layers must be 'scan' or 'unrolled'"):
        load("llama-3.1-8b", layers="stacked")  # pyright: ignore[reportArgumentType]
