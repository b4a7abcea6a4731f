"""Answers are the target's own, the same however they came to be: in one go, in pieces, alone or beside others."""

import json

import pytest
from tiny_data import CONTEXT, chat, chat_tokenizer, save_target, write_lines

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.errors import ConfigError, PromptError
from foredraft.training import answer_cache, on_policy
from foredraft.training.on_policy import prompt_of, regenerate, seed_of
from foredraft.training.read_samples import read_samples
from foredraft.training.samples import DataError, Sample

OPTIONS = {"temperature": 1.0, "seed": 7, "max_new_tokens": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_target(tmp_path_factory.mktemp("target"))


def new_engine(folder: str, **options) -> Engine:
    return Engine.from_pretrained(folder, **({"dtype": "fp32", "cache_tokens": 2000, "max_batch": 8} | options))


@pytest.fixture(scope="module")
def engine(folder):
    return new_engine(folder)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    questions = ["the cat", "a hat", "that mat, and that", "sat", "said the cat", "on the mat", "the hat", "and"]
    lines = [chat(question, "said the cat") for question in questions]
    lines += [chat("the cat", "sat", "and that", "said"), {"text": "the cat sat on the mat and that is that"}]
    path = write_lines(tmp_path_factory.mktemp("data") / "a.jsonl", *lines)
    return read_samples([path], chat_tokenizer(), max_length=64).samples


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_prompt_ends_where_the_last_written_run_begins(samples):
    earlier = chat_tokenizer().decode(prompt_of(samples[8], 32))
    assert earlier.endswith("<|user|>and that<|end|>\n<|assistant|>") and "sat<|end|>" in earlier
    assert prompt_of(Sample([5, 6, 7, 8], [False, True, True, False], "a:1"), 32) == [5]


def test_the_prompt_of_a_text_is_its_beginning(samples):
    assert prompt_of(samples[9], 4) == list(samples[9].tokens[:4])
    assert prompt_of(Sample([5, 6, 7], [True] * 3, "a:1"), 32) == [5, 6]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_those_of_the_engine(engine, samples, tmp_path, temperature):
    options = OPTIONS | {"temperature": temperature}
    answers = regenerate(engine, samples, tmp_path / "cache.jsonl", **options)
    for place, (sample, answer) in enumerate(zip(samples, answers.samples, strict=True)):
        prompt = prompt_of(sample, 32)
        params = SamplingParams(temperature=temperature, seed=seed_of(7, place), max_new_tokens=10)
        (output,) = engine.generate(prompt, params)
        assert list(answer.tokens) == prompt + output.token_ids
        assert list(answer.written) == [False] * len(prompt) + [True] * len(output.token_ids)


def test_equal_prompts_get_answers_of_their_own(engine, samples, tmp_path):
    answers = regenerate(engine, [samples[0]] * 3, tmp_path / "cache.jsonl", **OPTIONS)
    assert len({tuple(sample.tokens) for sample in answers.samples}) == 3


def test_the_cache_is_read_like_any_data(engine, samples, tmp_path):
    path = tmp_path / "cache.jsonl"
    answers = regenerate(engine, samples, path, **OPTIONS)
    assert read_samples([path], chat_tokenizer(), max_length=CONTEXT).samples == answers.samples
    assert [line["key"] for line in lines_of(path)] == list(range(len(samples)))
    assert {line["finish_reason"] for line in lines_of(path)} <= {"stop", "length"}


def test_batch_and_drafter_change_nothing(engine, folder, samples, tmp_path):
    paths = [tmp_path / f"{name}.jsonl" for name in ("many", "one", "suffix")]
    one = new_engine(folder, max_batch=1)
    drafted = new_engine(folder, max_batch=3, speculation=SpeculationConfig(method="suffix"))
    for engine_, path in zip((engine, one, drafted), paths, strict=True):
        regenerate(engine_, samples, path, **OPTIONS)
    assert len({path.read_text() for path in paths}) == 1


@pytest.mark.parametrize("lines", [0, 1, 4, 9])
@pytest.mark.parametrize("torn", [0, 25])
def test_a_run_that_was_killed_goes_on_to_the_same_end(engine, samples, tmp_path, lines, torn):
    path = tmp_path / "cache.jsonl"
    regenerate(engine, samples, path, **OPTIONS)
    whole = path.read_text()
    parts = whole.splitlines(keepends=True)
    path.write_text("".join(parts[:lines]) + parts[lines][:torn])
    answers = regenerate(engine, samples, path, **OPTIONS)
    assert path.read_text() == whole and answers.reused == lines


def test_lines_may_come_in_any_order(engine, samples, tmp_path):
    path = tmp_path / "cache.jsonl"
    regenerate(engine, samples, path, **OPTIONS)
    whole = path.read_text()
    parts = whole.splitlines(keepends=True)
    path.write_text("".join(parts[5:8] + parts[:2]))
    assert regenerate(engine, samples, path, **OPTIONS).reused == 5
    assert path.read_text() == whole


def test_an_interrupt_keeps_what_was_answered(engine, samples, tmp_path, monkeypatch):
    path, whole = tmp_path / "cache.jsonl", tmp_path / "whole.jsonl"
    regenerate(engine, samples, whole, **OPTIONS)

    def interrupt(done, total, tokens):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regenerate(engine, samples, path, **OPTIONS, progress=interrupt)
    assert engine.scheduler.idle
    assert len(lines_of(path)) == 3
    monkeypatch.setattr(on_policy, "WINDOW", 2)
    regenerate(engine, samples, path, **OPTIONS)
    assert path.read_text() == whole.read_text()


def test_a_finished_cache_asks_nothing_of_the_engine(engine, samples, tmp_path, monkeypatch):
    first = regenerate(engine, samples, tmp_path / "cache.jsonl", **OPTIONS)
    monkeypatch.setattr(engine, "stream", None)
    again = regenerate(engine, samples, tmp_path / "cache.jsonl", **OPTIONS)
    assert again.samples == first.samples and (again.reused, again.tokens) == (len(samples), 0)


@pytest.mark.parametrize(
    "other", [{"temperature": 0.5}, {"seed": 8}, {"max_new_tokens": 11}, {"text_prefix_tokens": 5}, {"prompts": 9}]
)
def test_a_cache_of_other_settings_is_refused(engine, samples, tmp_path, other):
    path = tmp_path / "cache.jsonl"
    regenerate(engine, samples, path, **OPTIONS)
    before = path.read_text()
    (key,) = other
    samples, changed = (samples[:9], {}) if key == "prompts" else (samples, other)
    key = "prompts" if key == "text_prefix_tokens" else key
    with pytest.raises(DataError, match=f"was made with {key} .*, not .*; give another path, or delete it and"):
        regenerate(engine, samples, path, **(OPTIONS | changed))
    assert path.read_text() == before


def test_a_cache_of_another_target_is_refused(engine, samples, tmp_path):
    path = tmp_path / "cache.jsonl"
    regenerate(engine, samples, path, **OPTIONS)
    other = new_engine(save_target(tmp_path / "other", rms_norm_eps=1e-5))
    with pytest.raises(DataError, match="was made with target"):
        regenerate(other, samples, path, **OPTIONS)


def test_a_file_that_says_nothing_of_its_making_is_refused(engine, samples, tmp_path):
    path = tmp_path / "cache.jsonl"
    path.write_text("important\n")
    with pytest.raises(DataError, match="is there, but not 'cache.jsonl.settings.json'"):
        regenerate(engine, samples, path, **OPTIONS)
    assert path.read_text() == "important\n"


@pytest.mark.parametrize("line", ["{", '{"key": 0, "prompt_tokens": [1], "tokens": [2]}', '{"key": 99}', "5"])
def test_a_damaged_line_is_told_with_its_place(engine, samples, tmp_path, line):
    path = tmp_path / "cache.jsonl"
    regenerate(engine, samples, path, **OPTIONS)
    parts = path.read_text().splitlines()
    parts[2] = line
    path.write_text("\n".join(parts) + "\n")
    with pytest.raises(DataError, match=f"{path}:3: no answer to any prompt"):
        regenerate(engine, samples, path, **OPTIONS)


def test_damaged_settings_are_told(engine, samples, tmp_path):
    (tmp_path / "cache.jsonl.settings.json").write_text("{")
    with pytest.raises(DataError, match="settings.json' is damaged"):
        regenerate(engine, samples, tmp_path / "cache.jsonl", **OPTIONS)


def test_a_disk_that_refuses_is_told_in_one_line(engine, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(answer_cache, "SYNC_ANSWERS", 4)
    syncs = []

    def refusing(descriptor):
        syncs.append(descriptor)
        if len(syncs) > 2:  # the settings, then the first four answers
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(answer_cache.os, "fsync", refusing)
    with pytest.raises(DataError, match="cannot write to cache .*: No space left on device; 4 answers are kept"):
        regenerate(engine, samples, tmp_path / "cache.jsonl", **OPTIONS)
    assert engine.scheduler.idle


def test_prompts_that_fill_the_context_are_left_out(engine, samples, tmp_path):
    long = Sample([5] * CONTEXT + [6], [False] * CONTEXT + [True], "a:1")
    answers = regenerate(engine, [long, samples[0]], tmp_path / "cache.jsonl", **OPTIONS)
    assert (len(answers.samples), answers.left_out) == (1, 1)
    with pytest.raises(PromptError, match="no prompt fits"):
        regenerate(engine, [long], tmp_path / "other.jsonl", **OPTIONS)


def test_progress_is_told(engine, samples, tmp_path):
    told = []
    answers = regenerate(engine, samples, tmp_path / "cache.jsonl", **OPTIONS, progress=lambda *now: told.append(now))
    assert [now[:2] for now in told] == [(done, 10) for done in range(1, 11)]
    assert told[-1][2] == answers.tokens == sum(sum(sample.written) for sample in answers.samples)


def test_a_rule_whose_text_is_no_function_of_the_seed_is_refused(folder, samples, tmp_path):
    speculation = SpeculationConfig(method="ngram", rejection_sample_method="standard")
    with pytest.raises(ConfigError, match="rejection_sample_method is 'standard'"):
        regenerate(new_engine(folder, speculation=speculation), samples, tmp_path / "cache.jsonl", **OPTIONS)


def test_answers_stop_at_the_end_token(engine, samples, tmp_path):
    answers = regenerate(engine, samples, tmp_path / "cache.jsonl", **(OPTIONS | {"max_new_tokens": 60}))
    end = chat_tokenizer().eos_token_id
    lines = lines_of(tmp_path / "cache.jsonl")
    assert [line["finish_reason"] == "stop" for line in lines] == [line["tokens"][-1] == end for line in lines]
    assert {line["finish_reason"] for line in lines} == {"stop", "length"}
    assert [sample.tokens[-1] == end for sample in answers.samples] == [line["tokens"][-1] == end for line in lines]
