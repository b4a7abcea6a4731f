import io
import json

import pytest

FIELDS = {
    "index",
    "text",
    "token_ids",
    "finish_reason",
    "drafter",
    "tokens_per_second",
    "tau",
    "acceptance_rate",
    "draft_tokens",
    "accepted_tokens",
    "accepted_per_position",
}
COMPARED = {"plain_tokens_per_second", "ratio", "identical"}


@pytest.fixture
def lines(run, model):
    """Runs `generate --json` on the random model and parses what it prints."""

    def command(*arguments: object, tokens: int = 16) -> list[dict]:
        code, out, err = run(
            "generate", *arguments, "--json", "--model", model, "--dtype", "fp32", "--max-new-tokens", tokens
        )
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    return command


def test_json_holds_every_field_and_nothing_else_is_printed(lines):
    (line,) = lines("abcabcabc", "--drafter", "ngram")
    assert line.keys() >= FIELDS and not line.keys() & COMPARED
    assert (line["index"], line["drafter"], line["finish_reason"], line["lossless"]) == (0, "ngram", "length", True)
    assert len(line["token_ids"]) == 16
    assert line["accepted_tokens"] == sum(line["accepted_per_position"]) <= line["draft_tokens"]


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_compare_finds_the_same_tokens(lines, drafter, temperature):
    flags = ["--drafter", drafter, "--compare", "--temperature", temperature]
    (line,) = lines("to be or not to be or not", *flags, tokens=24)
    assert line.keys() >= FIELDS | COMPARED
    assert line["identical"] is True
    assert line["ratio"] == pytest.approx(line["tokens_per_second"] / line["plain_tokens_per_second"])


def test_compare_takes_groups_of_prompts_and_keeps_their_order(lines, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"prompt {i}\n" for i in range(5)))
    found = lines("--prompts", file, "--compare", "--drafter", "ngram", "--max-batch", 2, tokens=6)
    assert [line["index"] for line in found] == [0, 1, 2, 3, 4]
    assert all(line["identical"] for line in found)


@pytest.mark.parametrize(
    "written",
    [
        "one two\n\nthree\n",
        '{"prompt": "one two"}\n{"prompt": "three"}\n',
        '{"question_id": 1, "category": "x", "turns": ["one two", "later"]}\n'
        '{"question_id": 2, "category": "x", "turns": ["three"]}',
    ],
    ids=["plain lines", "prompt objects", "Spec-Bench questions"],
)
def test_a_file_of_prompts_is_a_batch_of_the_same_texts(lines, tmp_path, written):
    file = tmp_path / "prompts"
    file.write_text(written)
    found = lines("--prompts", file)
    assert [line["index"] for line in found] == [0, 1]
    alone = [lines(prompt)[0]["token_ids"] for prompt in ("one two", "three")]
    assert [line["token_ids"] for line in found] == alone


def test_chat_gives_the_prompt_as_a_message(lines):
    assert lines("hello", "--chat")[0]["token_ids"] == lines("user: hello\n")[0]["token_ids"]
    assert lines("hello", "--chat")[0]["token_ids"] != lines("hello")[0]["token_ids"]


def test_standard_input_is_a_prompt_without_its_last_newline(lines, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("from a\npipe\n"))
    assert lines("-")[0]["token_ids"] == lines("from a\npipe")[0]["token_ids"]


def test_a_seed_gives_its_text_again(lines):
    flags = ["--temperature", 1, "--drafter", "ngram"]
    free = lines("hello", *flags)[0]
    assert lines("hello", *flags, "--seed", free["seed"])[0]["token_ids"] == free["token_ids"]
    assert lines("hello", *flags, "--seed", 1)[0]["token_ids"] != lines("hello", *flags, "--seed", 2)[0]["token_ids"]


def test_continuations_of_one_prompt_are_told_apart(lines):
    found = lines("hello", "--n", 3, "--temperature", 1, "--seed", 5)
    assert [(line["index"], line["sample"]) for line in found] == [(0, 0), (0, 1), (0, 2)]
    assert len({tuple(line["token_ids"]) for line in found}) == 3


def test_flags_override_the_keys_of_the_config(lines):
    config = '{"method": "suffix", "num_speculative_tokens": 7}'
    (line,) = lines("aaaa aaaa aaaa", "--speculative-config", config, "--drafter", "ngram")
    assert line["drafter"] == "ngram"
    assert len(line["accepted_per_position"]) <= 7


def test_samplers_reach_the_engine(lines):
    (line,) = lines("x", "--logit-bias", '{"66": 100}', tokens=4)
    assert line["token_ids"] == [66] * 4
    (line,) = lines("x", "--allowed-token-ids", 66, "--allowed-token-ids", 67, "--logprobs", 1, tokens=4)
    assert set(line["token_ids"]) <= {66, 67} and len(line["logprobs"]) == 4


def test_a_draft_model_drafts(lines, model):
    (line,) = lines("hello", "--drafter", "draft_model", "--draft-model", model, "--num-speculative-tokens", 3)
    assert line["acceptance_rate"] == 1  # the target drafts for itself
    assert line["tau"] > 2


def test_a_lossy_rule_is_marked(lines, run, model):
    rule = ["--drafter", "ngram", "--rejection-sample-method", "lossy-typical"]
    (line,) = lines("abcabc", *rule)
    assert line["lossless"] is False and line["rejection_sample_method"] == "lossy-typical"
    _, out, _ = run("generate", "abcabc", "--model", model, "--max-new-tokens", 8, *rule)
    assert "lossy" in out


def test_text_is_followed_by_one_line_of_figures(run, model, lines):
    text = lines("hello")[0]["text"]
    flags = ["--model", model, "--dtype", "fp32", "--max-new-tokens", 16]
    code, out, err = run("generate", "hello", "--drafter", "ngram", *flags)
    assert (code, err) == (0, "")
    shown, figures = out.removesuffix("\n").rsplit("\n", 1)
    assert shown == text
    assert all(word in figures for word in ("tokens/s", "tau", "draft", "verify", "rest"))
    assert "\x1b[" not in out


def test_compare_prints_both_texts_and_the_verdict(run, model, lines):
    text = lines("hello")[0]["text"]
    flags = ["--model", model, "--dtype", "fp32", "--max-new-tokens", 16]
    _, out, _ = run("generate", "hello", "--drafter", "ngram", "--compare", *flags)
    assert out.count(text) == 2
    assert "ratio" in out and "identical: all 16 tokens" in out


def test_a_trained_model_speculates_on_its_own_text(run, stories):
    flags = [
        "--model",
        stories,
        "--dtype",
        "fp32",
        "--max-new-tokens",
        60,
        "--drafter",
        "suffix",
        "--compare",
        "--json",
    ]
    code, out, _ = run("generate", "Once upon a time, Lily and Tom. Lily and Tom. Lily and", *flags)
    line = json.loads(out)
    assert code == 0 and line["identical"] and line["accepted_tokens"] > 0 and line["tau"] > 1
