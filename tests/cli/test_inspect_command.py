import json


def test_inspect_tells_the_shape_and_what_fits(run, model):
    code, out, err = run("inspect", model, "--json", "--dtype", "fp32", "--cache-tokens", 50)
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["architecture"] == "LlamaForCausalLM"
    assert [report[key] for key in ("layers", "heads", "kv_heads", "key_sizes")] == [2, 4, 2, [8]]
    assert report["vocabulary_size"] == report["vocabulary_rows"] == 257
    assert report["stop_tokens"] == {"0": "</s>"}
    assert report["cache_bytes_per_token"] == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, size, bytes
    assert report["cache_tokens"] == 50
    assert report["feature_layers"] is None
    assert [name for name, reason in report["drafters"].items() if reason is None] == ["ngram", "none", "suffix"]
    assert "needs a draft model" in report["drafters"]["draft_model"]


def test_inspect_tries_a_draft_model(run, model, other_vocabulary):
    _, out, _ = run("inspect", model, "--json", "--draft-model", model)
    assert json.loads(out)["drafters"]["draft_model"] is None
    _, out, _ = run("inspect", model, "--json", "--draft-model", other_vocabulary)
    assert "tokenizer" in json.loads(out)["drafters"]["draft_model"]


def test_inspect_prints_a_table(run, model):
    code, out, err = run("inspect", model)
    assert (code, err) == (0, "")
    assert all(word in out for word in ("LlamaForCausalLM", "257", "'</s>' (0)", "ngram", "a token"))


def test_inspect_tells_attention_heads_from_trained_heads(run):
    code, out, _ = run("inspect", "tiny", "--dtype", "fp32", "--cache-tokens", 64)
    assert code == 0
    lines = out.splitlines()
    assert any(line.startswith("heads ") and "8, of keys and values 4" in line for line in lines)
    assert any(line.startswith("trained heads ") and "tiny-eagle3: eagle3, embedded" in line for line in lines)
