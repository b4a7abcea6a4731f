"""`foredraft export` and what `foredraft inspect` says of heads."""

import json
from dataclasses import replace
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_heads import DFLASH, EAGLE3, MEDUSA, SIZES, publish, random_head, same

from foredraft.checkpoints.head_checkpoint import find_head
from foredraft.checkpoints.head_writer import write_head
from foredraft.heads.eagle import EagleConfig
from foredraft.heads.mtp import MtpConfig
from foredraft.model.loading import find_checkpoint

WIDE = replace(SIZES, hidden_size=32)
HEADS = {
    "eagle": EagleConfig(sizes=WIDE, vocabulary=257),
    "eagle3": replace(
        EAGLE3, sizes=WIDE, vocabulary=257, draft_vocabulary=257, target_hidden_size=32, feature_layers=(2, 3)
    ),
    "medusa": replace(MEDUSA, hidden_size=32, vocabulary=257, draft_vocabulary=257),
    "mtp": MtpConfig(sizes=WIDE, vocabulary=257),
    "dflash": replace(
        DFLASH, sizes=replace(WIDE, head_norms=True), vocabulary=257, target_hidden_size=32, feature_layers=(1, 3, 5)
    ),
}
STORED = {"eagle": "eagle", "eagle3": "speculators", "medusa": "medusa", "mtp": "speculators", "dflash": "dflash"}


@pytest.fixture
def head(tmp_path):
    """Writes a head of a method; returns its folder."""

    def make(method):
        options = {"target_name": "t", "target_architectures": ["LlamaForCausalLM"], "speculative_tokens": 3}
        write_head(random_head(HEADS[method]), tmp_path / method, format=STORED[method], **options)
        return str(tmp_path / method)

    return make


@pytest.mark.parametrize(
    ("method", "form", "commands"),
    [
        ("eagle3", "eagle", ["--speculative-algorithm EAGLE3 ", "--speculative-num-steps 5 ", "draft-tokens 6"]),
        ("eagle3", "speculators", ['"method": "eagle3"', '"num_speculative_tokens": 5']),
        ("eagle", "eagle", ["--speculative-algorithm EAGLE "]),
        ("medusa", "medusa-vllm", ['"method": "medusa"']),
        ("medusa", "medusa", ["neither vLLM nor SGLang loads the medusa format"]),
        ("mtp", "speculators", ['"method": "mtp"', "vLLM feeds the normed hidden state back"]),
        ("dflash", "speculators", ['"method": "dflash"']),
        ("dflash", "dflash", ["--speculative-algorithm DFLASH", "vllm serve"]),
    ],
)
def test_export_writes_a_head_and_says_how_to_serve_it(run, target, head, tmp_path, method, form, commands):
    folder, output = head(method), tmp_path / "out"
    code, out, err = run(
        "export", folder, "--target", target, "--format", form, "--output", output, "--speculative-tokens", 5
    )
    assert (code, err) == (0, "")
    assert f"read {folder}: {method}" in out and f"wrote {output}: " in out and "config.json" in out
    assert all(words in out for words in commands)
    shape = find_checkpoint(target).capability
    first, second = (find_head(str(name), method=method, target=shape) for name in (folder, output))
    assert first.config == second.config and same(first.tensors, second.tensors)


def test_export_reads_as_it_is_told(run, target, head, tmp_path):
    flags = (
        "--feature-layers",
        4,
        "--feature-layers",
        5,
        "--rope-theta",
        "500000",
        "--norm-output=true",
        "--norm-before-residual=false",
    )
    code, out, _ = run(
        "export", head("eagle3"), "--target", target, "--format", "speculators", "--output", tmp_path / "o", *flags
    )
    values = json.loads((tmp_path / "o" / "config.json").read_text())
    assert code == 0 and "boundaries 4, 5 as asked for" in out
    assert values["eagle_aux_hidden_state_layer_ids"] == [4, 5] and values["norm_output"] is True
    assert values["norm_before_residual"] is False
    assert values["transformer_layer_config"]["rope_theta"] == 500000.0


@pytest.mark.parametrize(
    ("method", "flags", "words"),
    [
        ("medusa", ["--format", "eagle"], "formats that can: medusa, medusa-vllm"),
        ("eagle", ["--format", "eagles"], "did you mean 'eagle'"),
        ("eagle", ["--format", "eagle", "--norm-output=true"], "norm_output says nothing"),
        ("eagle", ["--format", "eagle", "--speculative-tokens", "0"], "speculative_tokens"),
        ("eagle", ["--format", "eagle", "--output", "."], "not an empty folder"),
    ],
)
def test_export_refuses_mistakes_in_one_line(run, target, head, tmp_path, method, flags, words):
    where = [] if "--output" in flags else ["--output", tmp_path / "out"]
    code, out, err = run("export", head(method), "--target", target, *flags, *where)
    assert (code, out) == (2, "")
    assert words in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_inspect_describes_a_head(run, target, head):
    folder = head("eagle3")
    _, out, err = run("inspect", target, "--json", "--dtype", "fp32", "--draft-model", folder)
    report = json.loads(out)["head"]
    assert err == ""
    assert (report["name"], report["method"], report["format"]) == (folder, "eagle3", "speculators")
    assert report["facts"]["feature_layers"] == [2, 3] and report["facts"]["hidden_size"] == 32
    assert "layer ids 2, 3 read as boundaries: the inputs of layers" in report["notes"]
    code, out, _ = run("inspect", target, "--dtype", "fp32", "--draft-model", folder)
    assert code == 0
    assert all(
        words in " ".join(out.split()) for words in ("eagle3, speculators", "feature_layers 2 3", "layer ids 2, 3")
    )


def test_inspect_says_why_a_head_does_not_fit(run, target, tmp_path):
    config = replace(HEADS["eagle"], vocabulary=40)
    options = {"target_name": "t", "target_architectures": [], "speculative_tokens": 3}
    write_head(random_head(config), tmp_path, format="eagle", **options)
    _, out, _ = run("inspect", target, "--json", "--dtype", "fp32", "--draft-model", tmp_path)
    assert "a vocabulary of 40; the target's logits have 257 rows" in json.loads(out)["head"]["problem"]


def test_inspect_tells_a_draft_model_from_a_head(run, target):
    _, out, _ = run("inspect", target, "--json", "--dtype", "fp32", "--draft-model", target)
    report = json.loads(out)
    assert report["head"] is None and report["own_heads"] == {}


def test_inspect_finds_the_module_in_a_targets_own_checkpoint(run, target, tmp_path):
    module = random_head(HEADS["mtp"]).tensors
    names = {"eh_proj.weight": "fc.weight", "enorm.weight": "pre_fc_norm_embedding.weight"}
    names |= {"hnorm.weight": "pre_fc_norm_hidden.weight"}
    mtp = {f"mtp.{names.get(n, n.replace('layer.', 'layers.0.'))}": tensor for n, tensor in module.items()}
    copytree(target, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    save_file(load_file(weights) | mtp, weights, {"format": "pt"})
    _, out, _ = run("inspect", tmp_path, "--json", "--dtype", "fp32")
    assert json.loads(out)["own_heads"] == {"its checkpoint": "mtp, MTP tensors as in Qwen3-Next"}
    _, out, _ = run("inspect", tmp_path, "--dtype", "fp32")
    assert "its checkpoint: mtp" in out


def test_inspect_names_embedded_heads(run, target, tmp_path, monkeypatch):
    publish(tmp_path / "tiny-medusa", {}, {"x": torch.ones(1)})
    monkeypatch.setattr("foredraft.cli.head_report.embedded_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(
        "foredraft.cli.head_report.EMBEDDED_HEADS", {"tiny-medusa": (target, "medusa"), "x": (target, "mtp")}
    )
    _, out, _ = run("inspect", target, "--json", "--dtype", "fp32")
    assert json.loads(out)["own_heads"] == {"tiny-medusa": "medusa, embedded"}
