"""Every mistake of a user is one line on standard error and exit code 2."""

import json
import shutil
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no prompt"),
        (["hi", "-"], "several prompts"),
        (["Once", "upon", "a"], "needs quotes"),
        (["hi", "--temprature", "1"], "--temprature"),
        (["hi", "--temperature", "warm"], "warm"),
        (["hi", "--temperature", "-1"], "temperature is -1.0"),
        (["hi", "--top-p", "1.5"], "top_p is 1.5"),
        (["hi", "--seed", "1.5"], "'1.5' is not a whole number"),
        (["hi", "--top-k"], "--top-k"),
        (["hi", "--logit-bias", "5"], "JSON object"),
        (["hi", "--num-speculative-tokens", "0"], "num_speculative_tokens is 0"),
        (["hi", "--num-speculative-tokens", "1000"], "from 1 to 64"),
        (["hi", "--speculative-config", "{"], "not JSON"),
        (["hi", "--speculative-config", "[]"], "JSON object"),
        (["hi", "--speculative-config", '{"num_speculative_token": 3}'], "'num_speculative_tokens'"),
        (["hi", "--prompts", "/no/such/file"], "several prompts"),
        (["--prompts", "/no/such/file"], "No such file"),
    ],
)
def test_bad_arguments(refused, arguments, said):
    assert said in refused("generate", *arguments, "--model", "/nothing/is/loaded")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hi", "--drafter", "ngrm"], "'ngram'"),
        (["hi", "--drafter", "draft_model"], "needs a draft model"),
        (["hi", "--drafter", "draft_model", "--draft-model", "/no/such/model"], "/no/such/model"),
        ([""], "the prompt is empty"),
        (["long " * 300], "the context"),
        (["hi", "--cache-tokens", "10"], "cache slots"),
        (["hi", "--dtype", "int3"], "dtype"),
        (["hi", "--device", "tpu"], "device"),
        (["hi", "--threads", "0"], "threads is 0"),
        (["hi", "--max-batch", "0"], "max_batch is 0"),
    ],
)
def test_what_only_a_loaded_model_can_refuse(refused, model, arguments, said):
    assert said in refused("generate", *arguments, "--model", model)


@pytest.mark.parametrize("command", ["generate", "inspect"])
def test_an_unknown_model(refused, command):
    prompt, flag = (["hi"], ["--model"]) if command == "generate" else ([], [])
    assert "no-such-model" in refused(command, *prompt, *flag, "no-such-model")


def test_a_draft_model_of_another_vocabulary_drafts_through_text(run, stories):
    other = str(Path(stories).with_name("babyllama-936K"))
    asked = ["generate", "Once upon a time", "--model", stories, "--max-new-tokens", 24, "--json", "--dtype", "fp32"]
    drafting = ["--drafter", "draft_model", "--draft-model", other]
    [plain, drafted] = [json.loads(run(*asked, *more)[1]) for more in (["--drafter", "none"], drafting)]
    assert drafted["token_ids"] == plain["token_ids"] and drafted["accepted_tokens"] > 0


def test_an_unknown_way_to_match_vocabularies(refused, model):
    drafting = ["--drafter", "draft_model", "--draft-model", model, "--vocabulary-matching", "letters"]
    assert "vocabulary_matching" in refused("generate", "hi", "--model", model, *drafting)


def test_a_broken_checkpoint(refused, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "broken")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert str(folder) in refused("generate", "hi", "--model", folder)


@pytest.mark.parametrize("command", [["inspect"], ["generate", "hi", "--model"]])
def test_an_architecture_that_cannot_be_run_exactly(refused, tmp_path, command):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "num_hidden_layers": 2}))
    assert "Mamba" in refused(*command, tmp_path)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("\n \n", "no prompts"),
        ('{"prompt": "a"}\n\n{"prompt": 3}\n', "line 3"),
        ('{"prompt": "a"}\nplain\n', "line 2 is not JSON"),
        ('{"turns": []}\n', "line 1"),
        ('{"text": "a"}\n', "line 1"),
        ('{"prompt": "a"}\n["b"]\n', "line 2 is not a JSON object"),
    ],
)
def test_a_bad_line_in_a_file_of_prompts(refused, tmp_path, written, said):
    file = tmp_path / "prompts.jsonl"
    file.write_text(written)
    assert said in refused("generate", "--prompts", file)


def test_a_file_of_prompts_that_is_no_text(refused, tmp_path):
    file = tmp_path / "prompts"
    file.write_bytes(b"good\n\xff\xfe")
    assert "UTF-8" in refused("generate", "--prompts", file)
    assert "directory" in refused("generate", "--prompts", tmp_path)


@pytest.mark.parametrize("arguments", [["generat"], ["inspect"], ["inspect", "a", "b"], ["demo", "--foo"]])
def test_unknown_commands_and_missing_arguments(refused, arguments):
    refused(*arguments)
