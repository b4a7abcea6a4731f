"""Where heads are looked for, and files that cannot be read."""

import json
import pickle

import pytest
import torch
from tiny_heads import LLAMA_VALUES, TARGET, eagle3_tensors, found, publish

from foredraft.checkpoints import head_checkpoint, head_source
from foredraft.checkpoints.head_checkpoint import EMBEDDED_HEADS, default_head, holds_head
from foredraft.core.errors import ModelError


def test_embedded_targets_have_default_heads():
    assert default_head("tiny", "eagle3") == "tiny-eagle3"
    assert default_head("tiny", "mtp") == "tiny-mtp"
    assert default_head("tiny", "ngram") is None
    assert default_head("elsewhere", "eagle3") is None


def test_an_embedded_name_leads_to_its_folder(tmp_path, monkeypatch):
    folder = publish(tmp_path / "tiny-eagle3", LLAMA_VALUES, eagle3_tensors())
    monkeypatch.setattr(head_source, "embedded_folder", lambda name: tmp_path / name)
    head = found("tiny-eagle3", "eagle3")
    assert head.name == "tiny-eagle3" and head.config == found(folder).config
    with pytest.raises(ModelError, match="nor one of tiny-eagle3"):
        found("tiny-medusa")


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "/no/where", *EMBEDDED_HEADS])
def test_unknown_names_are_refused(name, monkeypatch, tmp_path):
    monkeypatch.setattr(head_source, "embedded_folder", lambda name: tmp_path / name)
    with pytest.raises(ModelError, match=f"no head '{name}': neither a folder"):
        found(name)


def test_a_hub_id_that_cannot_be_reached_is_refused(monkeypatch):
    monkeypatch.setattr("foredraft.model.loading.hub_answers", lambda: False)
    with pytest.raises(ModelError, match="no head 'owner/name'"):
        found("owner/name")


def test_a_hub_id_is_fetched(monkeypatch, tmp_path):
    folder = publish(tmp_path, LLAMA_VALUES, eagle3_tensors())
    monkeypatch.setattr("foredraft.model.loading.hub_answers", lambda: True)
    monkeypatch.setattr(head_source, "snapshot_download", lambda name, **_: folder)
    assert found("owner/name").method == "eagle3"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, r"holds no config\.json"),
        ({"config.json": b"{}"}, "holds no weights"),
        ({"config.json": b"{"}, r"cannot read config\.json"),
        ({"config.json": b"[]"}, r"config\.json holds no JSON object"),
        ({"config.json": b"{}", "model.safetensors": b"nonsense"}, r"cannot read model\.safetensors"),
        ({"config.json": b"{}", "pytorch_model.bin": b"nonsense"}, r"cannot read pytorch_model\.bin"),
        (
            {"config.json": b"{}", "pytorch_model.bin": pickle.dumps(print, protocol=2)},
            r"cannot read pytorch_model\.bin",
        ),
        ({"config.json": b"{}", "model.safetensors.index.json": b"{"}, r"cannot read model\.safetensors\.index"),
    ],
)
def test_broken_folders_are_refused_in_one_line(tmp_path, files, words):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=words) as refusal:
        found(str(tmp_path))
    assert "\n" not in str(refusal.value)


def test_files_of_something_else_are_refused(tmp_path):
    folder = publish(tmp_path, LLAMA_VALUES, {"model.norm.weight": torch.ones(4), "lm_head.weight": torch.ones(4, 4)})
    with pytest.raises(ModelError, match="hold no head, none of speculators"):
        found(folder)
    assert not holds_head(folder, target=TARGET)
    assert not holds_head("nowhere", target=TARGET)


def test_a_head_that_does_not_fit_is_a_head_still(tmp_path):
    folder = publish(tmp_path, LLAMA_VALUES | {"vocab_size": 7}, eagle3_tensors())
    assert holds_head(folder, target=TARGET)


def test_pickles_hold_tensors_only(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_VALUES))
    torch.save({"epoch": 3}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="other than a dictionary of tensors"):
        found(str(tmp_path))


def test_readers_do_not_claim_each_others_files(tmp_path):
    folder = publish(tmp_path, LLAMA_VALUES, eagle3_tensors())
    source = head_checkpoint.source_of(folder, tmp_path, TARGET, None, head_checkpoint.AS_READ)
    claims = [reader.__name__.rpartition(".")[2] for reader in head_checkpoint.READERS if reader.holds(source)]
    assert claims == ["eagle_layout"]
