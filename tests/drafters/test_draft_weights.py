"""Drafters keep int8 weights where that can be had: no text depends on it, and what cannot be had is said in a line."""

from functools import cache

import pytest
import torch

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.cli.network_path import network_path
from foredraft.core.errors import ConfigError
from foredraft.drafters.drafter import make_drafter
from foredraft.engine.step_costs import option_label
from foredraft.model.target import ModelTarget, load_target

INT8 = ", int8 weights"
NETWORKS = {
    "draft model": {"method": "draft_model", "model": "tiny-draft"},
    "draft model through text": {"method": "draft_model", "model": "tiny-draft", "vocabulary_matching": "strings"},
    "eagle3": {"method": "eagle3"},
    "medusa": {"method": "medusa"},
    "mtp": {"method": "mtp"},
    "dflash": {"method": "dflash"},
}
PROMPTS = ["def mean(values):", "Once upon a time there was a clockmaker", "The"]


@cache
def native_target(dtype: str = "bf16", native: str = "auto") -> ModelTarget:
    pytest.importorskip("foredraft_native", reason="foredraft-native is not installed")
    return load_target("tiny", device="cpu", dtype=dtype, native=native, threads=2, cache_tokens=2048)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(native_target(), speculation=SpeculationConfig(method="none"))


def texts(engine: Engine, config: SpeculationConfig, temperature: float) -> list[list[int]]:
    params = SamplingParams(max_new_tokens=24, temperature=temperature, seed=5, ignore_eos=True)
    with engine.cold():
        return [output.token_ids for output in engine.generate(PROMPTS, params, config)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_text_depends_on_the_weights_of_its_drafter(engine, name, temperature):
    plain = texts(engine, SpeculationConfig(method="none"), temperature)
    for weights in ("int8", "same"):
        config = SpeculationConfig(**NETWORKS[name], draft_weights=weights)
        assert texts(engine, config, temperature) == plain
        assert network_path(engine.drafter_for(config)).endswith(INT8) == (weights == "int8")


@pytest.mark.parametrize("name", NETWORKS)
def test_auto_is_int8_on_the_native_path_in_bf16(engine, name):
    assert network_path(engine.drafter_for(SpeculationConfig(**NETWORKS[name]))).endswith(INT8)


def test_drafters_of_other_weights_are_others():
    one, other = (SpeculationConfig(method="medusa", draft_weights=weights) for weights in ("int8", "same"))
    assert one.drafter_key != other.drafter_key
    assert (option_label(one), option_label(other)) == ("medusa 5 weights int8", "medusa 5 weights same")


@pytest.mark.parametrize("options", [{"dtype": "fp32"}, {"native": "off"}], ids=str)
def test_auto_is_the_targets_format_elsewhere(options):
    target = native_target(**options)
    for name in ("draft model", "medusa"):
        assert INT8 not in network_path(make_drafter(SpeculationConfig(**NETWORKS[name]), target))


@pytest.mark.parametrize("name", ["draft model", "medusa"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"native": "off"}, "that takes the native path, and native kernels are switched off"),
        ({"dtype": "fp32"}, "that takes bf16, and the target is in torch.float32"),
    ],
    ids=str,
)
def test_int8_where_it_cannot_be_had_is_refused(name, options, reason):
    config = SpeculationConfig(**NETWORKS[name], draft_weights="int8")
    with pytest.raises(ConfigError, match=f"^draft_weights is 'int8'; {reason}$"):
        make_drafter(config, native_target(**options))


def test_an_int8_head_that_runs_in_torch_is_refused(monkeypatch):
    target = native_target()
    monkeypatch.setattr(target.model, "decoder", None)
    path = "'tiny-medusa' runs in torch: its target does not take the native path"
    with pytest.raises(ConfigError, match=f"^draft_weights is 'int8'; that takes the native path, and {path}$"):
        make_drafter(SpeculationConfig(method="medusa", draft_weights="int8"), target)


def test_the_target_keeps_its_vocabulary_head(engine):
    """An int8 head that borrows it has a copy."""
    hidden = torch.ones(2, engine.target.model.capability.hidden_size, dtype=torch.bfloat16)
    head = engine.target.model.module.get_output_embeddings()
    before = head(hidden)
    engine.drafter_for(SpeculationConfig(method="dflash", draft_weights="int8"))
    assert torch.equal(head(hidden), before)
