"""Which path a model takes at load, what its line says, and what the switch accepts; the extension is a stand-in."""

from types import SimpleNamespace

import pytest
import torch
from reference_program import ReferenceCache, ReferenceProgram
from tiny_models import VOCABULARY, load_packed, save_tiny, tiny_config

from foredraft.core.errors import ConfigError, ModelError
from foredraft.engine.kept_record import circumstances_of
from foredraft.model import native_runtime, packed_model
from foredraft.model.devices import CpuDevice, find_device, find_dtype
from foredraft.model.loading import find_checkpoint
from foredraft.model.native_decoder import NativeDecoder, NativeHead
from foredraft.model.native_program import released
from foredraft.model.native_runtime import NotCovered, native_choice, runtime_for
from foredraft.model.packed_model import load_packed_model
from foredraft.model.target import load_beside, load_model, load_target
from foredraft.model.trial import agree

KERNELS = ["avx512-bf16", "avx512", "portable"]
MISSING = "foredraft-native is not installed"


@pytest.fixture
def extension(monkeypatch) -> SimpleNamespace:
    """An installed extension whose programs are the reference interpreter's, and what was made with it."""
    made = []

    def program(dtype: str, kernels: str, pool: object) -> ReferenceProgram:
        made.append((dtype, kernels, pool))
        return ReferenceProgram(dtype)

    module = SimpleNamespace(
        kernel_names=lambda: list(KERNELS),
        Program=program,
        Cache=ReferenceCache,
        Threads=lambda count: SimpleNamespace(count=count),
        made=made,
    )
    monkeypatch.delenv(native_runtime.VARIABLE, raising=False)
    monkeypatch.setattr(native_runtime, "absence", lambda: "")
    monkeypatch.setattr(native_runtime, "extension", lambda: module)
    native_runtime.thread_pool.cache_clear()
    yield module
    native_runtime.thread_pool.cache_clear()


@pytest.fixture
def no_extension(monkeypatch) -> None:
    monkeypatch.delenv(native_runtime.VARIABLE, raising=False)
    monkeypatch.setattr(native_runtime, "absence", lambda: MISSING)


@pytest.fixture
def llama(tmp_path) -> str:
    return save_tiny(tiny_config("llama"), tmp_path)


def test_a_covered_model_takes_the_native_path_and_gives_its_weights_up(llama, extension):
    plain = load_packed(llama)
    model = load_packed(llama, native="auto")
    threads = torch.get_num_threads()
    assert model.path == f"native path: avx512 kernels, {threads} thread{'s' if threads > 1 else ''}"
    assert isinstance(model.decoder, NativeDecoder) and released(model.module)
    assert isinstance(model.module.get_output_embeddings(), NativeHead)
    assert model.weight_bytes == plain.weight_bytes
    assert agree(plain.trial_logits(), model.trial_logits(), torch.float32)
    assert model.skippable.shares == plain.skippable.shares


def test_programs_share_one_pool(llama, extension):
    load_packed(llama, native="auto"), load_packed(llama, torch.bfloat16, native="avx512-bf16")
    (first, second) = extension.made
    assert first[:2] == ("fp32", "avx512") and second[:2] == ("bf16", "avx512-bf16")
    assert first[2] is second[2] and first[2].count == torch.get_num_threads()


@pytest.mark.parametrize(
    ("choice", "dtype", "kernels"),
    [
        ("auto", torch.bfloat16, "avx512-bf16"),
        ("auto", torch.float32, "avx512"),
        ("portable", torch.bfloat16, "portable"),
        ("portable", torch.float32, "portable"),
        ("avx512-bf16", torch.float32, "avx512"),
    ],
)
def test_kernels_by_choice_and_dtype(choice, dtype, kernels, extension):
    assert runtime_for(choice, dtype).kernels == kernels


def test_half_precision_stays_on_the_other_paths(extension):
    with pytest.raises(NotCovered, match="native kernels compute in bf16 or fp32, not in float16"):
        runtime_for("auto", torch.float16)


@pytest.mark.parametrize(
    ("kind", "native", "remark"),
    [
        ("gpt2", "auto", "native kernels do not cover GPT2LMHeadModel"),
        ("llama", "off", "native kernels are switched off"),
    ],
)
def test_other_paths_say_why(kind, native, remark, extension, tmp_path):
    model = load_packed(save_tiny(tiny_config(kind), tmp_path), native=native)
    assert model.path.endswith(f"; {remark}") and not isinstance(model.decoder, NativeDecoder)
    assert not released(model.module)


def test_without_the_extension_all_is_as_before(llama, no_extension):
    model = load_packed(llama, native="auto")
    assert model.path.endswith("; foredraft-native is not installed") and not released(model.module)


def test_an_extension_of_another_version_is_not_used(llama, monkeypatch):
    monkeypatch.delenv(native_runtime.VARIABLE, raising=False)
    monkeypatch.setattr(native_runtime, "find_spec", lambda name: name)
    monkeypatch.setattr(native_runtime, "extension", lambda: SimpleNamespace(INTERFACE=1))
    native_runtime.absence.cache_clear()
    try:
        model = load_packed(llama, native="auto")
        assert model.path.endswith("of another version of foredraft: install it anew") and not released(model.module)
    finally:
        native_runtime.absence.cache_clear()


def test_a_native_path_that_differs_is_not_taken(llama, extension, monkeypatch):
    wanted = load_packed(llama).trial_logits()
    normed = ReferenceProgram.normed
    monkeypatch.setattr(ReferenceProgram, "normed", lambda *parts: 1.01 * normed(*parts))
    model = load_packed(llama, native="auto")
    assert model.path.endswith("; native kernels did not reproduce this model")
    assert not released(model.module) and not isinstance(model.decoder, NativeDecoder)
    assert agree(wanted, model.trial_logits(), torch.float32)


def test_an_extension_that_refuses_a_part_leaves_the_model_to_other_paths(llama, extension, monkeypatch):
    def refuse(self, *_) -> int:
        raise ValueError("rows of 48 do not fit\nmore")

    monkeypatch.setattr(ReferenceProgram, "gated_matrix", refuse)
    model = load_packed(llama, native="auto")
    assert model.path.endswith("; native kernels refuse LlamaForCausalLM: rows of 48 do not fit")
    assert not released(model.module) and model.trial_logits().isfinite().all()


def test_a_model_that_is_not_covered_is_loaded_once(extension, monkeypatch, tmp_path):
    folder = save_tiny(tiny_config("gpt2"), tmp_path)
    loads, load = [], packed_model.load_module
    monkeypatch.setattr(packed_model, "load_module", lambda *parts: loads.append(parts) or load(*parts))
    load_packed(folder, native="auto")
    assert len(loads) == 1


def test_the_switch_is_checked_at_once(extension, monkeypatch):
    names = "auto, off, avx512-bf16, avx512 or portable"
    with pytest.raises(ConfigError, match=f"^native is 'amx-bf16'; it must be {names}$"):
        native_choice("amx-bf16")
    monkeypatch.setenv(native_runtime.VARIABLE, "sse")
    with pytest.raises(ConfigError, match=f"^FOREDRAFT_NATIVE is 'sse'; it must be {names}$"):
        native_choice(None)
    with pytest.raises(ConfigError, match="FOREDRAFT_NATIVE is 'sse'"):
        load_target("tiny")


def test_the_argument_wins_over_the_environment(extension, monkeypatch):
    assert native_choice(None) == "auto"
    monkeypatch.setenv(native_runtime.VARIABLE, "portable")
    assert (native_choice(None), native_choice("auto"), native_choice("off")) == ("portable", "auto", "off")
    assert CpuDevice().native == "portable" and find_device("cpu", "off").native == "off"
    monkeypatch.setenv(native_runtime.VARIABLE, "")
    assert native_choice(None) == "auto"


def test_without_the_extension_no_kernels_can_be_had(no_extension):
    wanted = "^native is 'avx2'; it must be auto or off; foredraft-native is not installed$"
    with pytest.raises(ConfigError, match=wanted):
        native_choice("avx2")
    assert native_choice("auto") == "auto" and native_choice("off") == "off"


@pytest.mark.parametrize("fast", [torch.float32, torch.bfloat16])
def test_auto_is_the_dtype_that_is_fast_on_the_path_that_runs_the_model(extension, monkeypatch, tmp_path, fast):
    """The native path reads bf16 on any CPU; torch is slow in it on many."""
    monkeypatch.setattr(CpuDevice, "fast_dtype", lambda self: fast)
    covered = find_checkpoint(save_tiny(tiny_config("llama"), tmp_path / "covered"))
    other = find_checkpoint(save_tiny(tiny_config("gpt2"), tmp_path / "other"))
    assert load_model(covered, "auto", CpuDevice("auto")).dtype is torch.bfloat16
    assert load_model(covered, "auto", CpuDevice("off")).dtype is fast
    assert load_model(other, "auto", CpuDevice("auto")).dtype is fast
    assert load_model(covered, "fp32", CpuDevice("auto")).dtype is torch.float32


def test_a_draft_model_off_the_native_path_is_in_what_torch_is_fast_in(extension, monkeypatch, tmp_path):
    monkeypatch.setattr(CpuDevice, "fast_dtype", lambda self: torch.float32)
    target = load_target("tiny", cache_tokens=64, native="auto")
    covered = find_checkpoint(save_tiny(tiny_config("llama"), tmp_path / "covered"))
    other = find_checkpoint(save_tiny(tiny_config("gpt2"), tmp_path / "other"))
    assert load_beside(target, covered, "same").dtype is target.model.dtype is torch.bfloat16
    assert load_beside(target, other, "auto").dtype is torch.float32
    with pytest.raises(ModelError, match="cannot be run in int8: native kernels do not cover GPT2LMHeadModel$"):
        load_beside(target, other, "int8")


def test_int8_weights(extension, tmp_path):
    folder = save_tiny(tiny_config("llama", hidden_size=64, intermediate_size=128), tmp_path)
    device = find_device("cpu", "auto", "int8")
    model = load_packed_model(find_checkpoint(folder), find_dtype("int8", device), device)
    assert model.path.startswith("native path: avx512-bf16 kernels") and model.path.endswith(", int8 weights")
    assert model.dtype is torch.bfloat16
    assert model.weight_bytes < 0.65 * load_packed(folder, torch.bfloat16).weight_bytes


def test_int8_weights_without_the_native_path_are_refused(extension, monkeypatch, tmp_path):
    with pytest.raises(
        ConfigError, match="^dtype is 'int8'; that takes the native path, and native kernels are switched off$"
    ):
        load_target("tiny", dtype="int8", native="off")
    folder = save_tiny(tiny_config("gpt2"), tmp_path)
    device = find_device("cpu", "auto", "int8")
    with pytest.raises(ModelError, match="cannot be run in int8: native kernels do not cover GPT2LMHeadModel$"):
        load_packed_model(find_checkpoint(folder), torch.bfloat16, device)
    monkeypatch.setattr(native_runtime, "absence", lambda: MISSING)
    with pytest.raises(ConfigError, match="^dtype is 'int8'; that .* path, and foredraft-native is not installed$"):
        load_target("tiny", dtype="int8")


def test_drafters_take_int8_weights_where_they_can(extension, tmp_path):
    place = CpuDevice("auto").for_drafts("auto", torch.bfloat16)
    folder = save_tiny(tiny_config("llama", hidden_size=64, intermediate_size=128), tmp_path / "covered")
    assert load_packed_model(find_checkpoint(folder), torch.bfloat16, place).path.endswith(", int8 weights")
    folder = save_tiny(tiny_config("gpt2"), tmp_path / "other")
    model = load_packed_model(find_checkpoint(folder), torch.bfloat16, place)
    assert model.path.endswith("; native kernels do not cover GPT2LMHeadModel")
    strict = CpuDevice("auto").for_drafts("int8", torch.bfloat16)
    with pytest.raises(ModelError, match="cannot be run in int8: native kernels do not cover GPT2LMHeadModel$"):
        load_packed_model(find_checkpoint(folder), torch.bfloat16, strict)


def test_drafters_models_take_what_their_target_takes(extension):
    target = load_target("tiny", dtype="fp32", cache_tokens=64, native="portable")
    assert target.model.path.startswith("native path: portable kernels")
    assert target.place.native == "portable" and target.vocabulary.rows > VOCABULARY


def test_measured_costs_belong_to_the_kernels(extension):
    ways = [load_target("tiny", dtype="fp32", cache_tokens=64, native=way) for way in ("off", "avx512", "portable")]
    keys = [circumstances_of(target) for target in ways]
    assert len({key["path"] for key in keys}) == 3
    assert ["native" in key for key in keys] == [False, True, True]
