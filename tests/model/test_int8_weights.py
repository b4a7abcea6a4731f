"""int8 weights come back within half a step of each group's scale, and a broken write leaves the old file."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import load_packed, save_tiny, tiny_config

from foredraft.core.errors import ModelError
from foredraft.model import int8_weights
from foredraft.model.int8_weights import GROUP, INT8_FILE, read_int8, write_int8


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(6, 3 * GROUP, generator=generator) * torch.logspace(-4, 2, 6)[:, None]
    wide[2, :GROUP] = 0
    return {"wide": wide, "odd": torch.randn(5, 7, generator=generator), "vector": torch.randn(9, generator=generator)}


def test_round_trip_is_within_half_a_step_of_each_group(tmp_path):
    wanted = state()
    write_int8(wanted, tmp_path / INT8_FILE)
    got = read_int8(tmp_path / INT8_FILE, torch.float32)
    assert got.keys() == wanted.keys()
    assert torch.equal(got["odd"], wanted["odd"]) and torch.equal(got["vector"], wanted["vector"])
    error = (got["wide"] - wanted["wide"]).unflatten(1, (-1, GROUP)).abs().amax(-1)
    step = wanted["wide"].unflatten(1, (-1, GROUP)).abs().amax(-1) / 127
    assert (error <= step * 0.57 + 1e-6).all()  # half a step, and the rounding of the scale to fp16
    assert (error > 0.2 * step).any()  # it was rounded at all


def test_stored_in_half_the_bytes_of_bf16(tmp_path):
    write_int8({"matrix": torch.randn(256, 256)}, tmp_path / INT8_FILE)
    stored = load_file(tmp_path / INT8_FILE)
    assert stored["matrix.int8"].dtype == torch.int8
    assert sum(t.numel() * t.element_size() for t in stored.values()) < 0.52 * 256 * 256 * 2


def test_a_broken_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / INT8_FILE
    write_int8(state(), path)
    before = path.read_bytes()

    def half_written(tensors, where):
        where.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(int8_weights, "save_file", half_written)
    with pytest.raises(OSError, match="disk full"):
        write_int8({}, path)
    assert path.read_bytes() == before


def as_int8(folder, tied: bool) -> None:
    save_tiny(tiny_config("llama", hidden_size=64, intermediate_size=64, tie_word_embeddings=tied), folder)
    write_int8(load_file(folder / "model.safetensors"), folder / INT8_FILE)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_is_loaded_from_int8(tied, tmp_path):
    as_int8(tmp_path, tied)
    rounded = load_packed(str(tmp_path)).trial_logits()
    (tmp_path / INT8_FILE).unlink()
    exact = load_packed(str(tmp_path)).trial_logits()
    error = (rounded - exact).norm() / exact.norm()
    assert 0 < error < 0.1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda stored: stored.pop("model.norm.weight"), "model.norm.weight missing"),
        (lambda stored: stored.update(other=torch.zeros(1)), "the model has not: other"),
    ],
)
def test_int8_files_that_do_not_fit_are_refused(change, reason, tmp_path):
    as_int8(tmp_path, tied=True)
    stored = load_file(tmp_path / INT8_FILE)
    change(stored)
    save_file(stored, tmp_path / INT8_FILE)
    with pytest.raises(ModelError, match=reason):
        load_packed(str(tmp_path))
