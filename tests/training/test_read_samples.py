"""Lines become samples: what the assistant wrote is marked, what is no sample is told with file and line."""

import json

import pytest
from tiny_data import ASSISTANT, END, TEMPLATE, chat, chat_tokenizer, new_tokenizer, write_lines
from tokenizers import processors

from foredraft.core.errors import ConfigError
from foredraft.core.vocabulary import Vocabulary
from foredraft.training.read_samples import read_samples
from foredraft.training.samples import DataError


@pytest.fixture
def tokenizer():
    return chat_tokenizer()


@pytest.fixture
def read(tmp_path, tokenizer):
    def reader(*lines, tokenizer=tokenizer, **options):
        return read_samples([write_lines(tmp_path / "data.jsonl", *lines)], tokenizer, **({"max_length": 64} | options))

    return reader


def written_runs(sample, tokenizer) -> list[str]:
    """Text of each run of written tokens."""
    runs, before = [], False
    for token, own in zip(sample.tokens, sample.written, strict=True):
        if own and not before:
            runs.append([])
        if own:
            runs[-1].append(token)
        before = own
    return [tokenizer.decode(run) for run in runs]


def test_every_assistant_turn_is_written_up_to_its_end_token(read, tokenizer):
    (sample,) = read(chat("the cat", "said the hat", "and", " that 你好 ")).samples
    assert written_runs(sample, tokenizer) == [f"said the hat{END}", f" that 你好 {END}"]
    before = tokenizer.decode(sample.tokens[: sample.written.index(True)])
    assert before == "<|bos|><|user|>the cat<|end|>\n<|assistant|>"


def test_the_tokens_are_those_of_the_rendered_conversation(read, tokenizer):
    messages = chat("the cat", "said", "the hat", "and that")
    (sample,) = read(messages).samples
    text = tokenizer.apply_chat_template(messages["messages"], tokenize=False).removesuffix("\n")
    assert list(sample.tokens) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_conversation_that_ends_with_a_question_is_read_up_to_the_last_answer(read, tokenizer):
    (sample,) = read(chat("the cat", "said", "and that")).samples
    assert written_runs(sample, tokenizer) == [f"said{END}"]
    assert sample.written[-1]


def test_an_earlier_turn_that_the_template_shortens_is_not_written(read):
    """As templates do that leave out the thoughts of all turns but the last."""
    shortened = "(m['content'] if loop.last else m['content'].split('/')[-1])"
    tokenizer = new_tokenizer(TEMPLATE.replace("m['content']", shortened))
    (sample,) = read(chat("the cat", "sat/said", "and", "the/mat"), tokenizer=tokenizer).samples
    assert written_runs(sample, tokenizer) == [f"the/mat{END}"]
    assert "said" in tokenizer.decode(sample.tokens) and "sat/said" not in tokenizer.decode(sample.tokens)


def test_trimmed_spaces_belong_to_the_token_after_them(read):
    """Byte-level offsets may leave out spaces: that of the template before an answer is not the answer's."""
    headed = TEMPLATE.replace(f"'{ASSISTANT}'", f"'{ASSISTANT} '").replace("'|>' +", "'|> ' +")
    tokenizer = new_tokenizer(headed)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    (sample,) = read(chat("the cat", "\nsaid"), tokenizer=tokenizer).samples
    assert written_runs(sample, tokenizer) == [f"\nsaid{END}"]


def test_a_text_is_written_as_a_whole(read, tokenizer):
    (sample,) = read({"text": "the cat sat"}).samples
    assert all(sample.written) and tokenizer.decode(sample.tokens) == "the cat sat"


def test_a_completion_is_written_and_its_prompt_is_not(read, tokenizer):
    (sample,) = read({"prompt": "the cat", "completion": " sat on"}).samples
    assert written_runs(sample, tokenizer) == [" sat on"]
    assert tokenizer.decode(sample.prompt) == "the cat"


def test_token_ids_are_taken_as_they_are(read):
    line = {"prompt_tokens": [5, 6], "tokens": [7, 8], "finish_reason": "stop", "seed": 1, "key": 0}
    (sample,) = read(line).samples
    assert (list(sample.tokens), list(sample.written)) == ([5, 6, 7, 8], [False, False, True, True])


def test_samples_know_their_place_and_keep_its_order(tmp_path, tokenizer):
    paths = [write_lines(tmp_path / name, {"text": "the cat"}, "", {"text": "a hat"}) for name in ("b", "a")]
    report = read_samples(paths, tokenizer, max_length=64)
    assert [sample.source for sample in report.samples] == [f"{path}:{line}" for path in paths for line in (1, 3)]


def test_longer_samples_are_cut(read):
    lines = [{"prompt_tokens": [5] * prompt, "tokens": [6] * 4} for prompt in (2, 6, 9)]
    report = read(*lines, max_length=8)
    assert [(len(sample), sum(sample.written)) for sample in report.samples] == [(6, 4), (8, 2)]
    counts = report.counts
    assert (counts.lines, counts.samples, counts.cut, counts.dropped) == (3, 2, 1, 1)
    assert (counts.tokens, counts.written) == (14, 6)


def test_longer_samples_are_dropped_where_asked(read):
    lines = [{"prompt_tokens": [5] * prompt, "tokens": [6] * 4} for prompt in (2, 6, 9)]
    report = read(*lines, max_length=8, too_long="drop")
    assert [len(sample) for sample in report.samples] == [6]
    assert (report.counts.cut, report.counts.dropped) == (0, 2)


BAD = {
    '{"text": "the ca': "not JSON",
    "[" * 100_000: "not JSON",
    '["the cat"]': "no JSON object",
    '{"txt": "the cat"}': "keys 'txt'; known: messages or text or completion and prompt",
    '{"text": "the cat", "label": 1}': "keys 'text', 'label'",
    "{}": "keys none",
    '{"text": ""}': "'text' is empty",
    '{"text": "t"}': "'text' has one token",
    '{"text": 5}': "'text' is 5; it must be a string",
    '{"text": "\\ud800 the"}': "half a character at 0",
    '{"prompt": "the", "completion": ""}': "'completion' is empty",
    '{"messages": []}': "must be a list of messages",
    '{"messages": ["the cat"]}': "message 1 is",
    json.dumps({"messages": [{"role": "robot", "content": "a"}]}): 'message 1 has role "robot"; known: system, user, a',
    json.dumps({"messages": [{"role": "user", "content": "a", "name": "b"}]}): "it must have role and content alone",
    json.dumps({"messages": [{"role": "user", "content": ["a"]}]}): "'content' of message 1 is",
    json.dumps(chat("the cat")): "no assistant turn",
    json.dumps({"messages": [{"role": "assistant", "content": "a"}]}): "no assistant turn after",
    json.dumps(chat("the cat", "")): "'content' of message 2 is empty",
    '{"prompt_tokens": [1, 2], "tokens": []}': "'tokens' is []; it must be a list of token ids",
    '{"prompt_tokens": [1, true], "tokens": [3]}': "'prompt_tokens' is",
    '{"prompt_tokens": [1, 2], "tokens": [285]}': "token 285 is outside the vocabulary of 285",
    '{"prompt_tokens": [-1], "tokens": [3]}': "token -1 is outside",
}


@pytest.mark.parametrize("line", BAD, ids=[reason[:30] for reason in BAD.values()])
def test_a_bad_line_is_told_in_one_line_with_its_place(read, tmp_path, line):
    with pytest.raises(DataError) as error:
        read({"text": "the cat"}, line)
    message = str(error.value)
    assert message.startswith(f"{tmp_path / 'data.jsonl'}:2: ") and BAD[line] in message
    assert "\n" not in message and len(message) < 400


def test_bytes_that_are_no_utf8_are_told(tmp_path, tokenizer):
    (tmp_path / "data.jsonl").write_bytes(b'{"text": "the cat"}\n{"text": "\xff\xfe"}\n')
    with pytest.raises(DataError, match="data.jsonl:2: not UTF-8: invalid start byte at byte 10"):
        read_samples([tmp_path / "data.jsonl"], tokenizer, max_length=8)


def test_bad_lines_are_skipped_and_counted_where_asked(read):
    report = read({"text": "the cat"}, "{", {"text": ""}, {"text": "a hat"}, bad_lines="skip")
    assert len(report.samples) == 2 and report.counts.skipped == 2
    assert ["not JSON" in reason for reason in report.counts.reasons] == [True, False]


def test_files_without_a_sample_are_refused(read):
    with pytest.raises(DataError, match=r"no samples in .*data.jsonl: 1 lines, .*, 1 skipped, the first: .*:1"):
        read("{", bad_lines="skip")


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, tokenizer, name):
    with pytest.raises(DataError, match="cannot read"):
        read_samples([tmp_path / name], tokenizer, max_length=8)


def test_a_template_that_refuses_is_told(read):
    tokenizer = new_tokenizer("{{ raise_exception('no system turns') }}")
    with pytest.raises(DataError, match=":1: the chat template refuses 'messages': no system turns"):
        read(chat("the cat", "sat"), tokenizer=tokenizer)


def test_conversations_need_a_template(read):
    with pytest.raises(DataError, match="no chat template"):
        read(chat("the cat", "sat"), tokenizer=new_tokenizer(None))


def test_the_targets_vocabulary_bounds_ids_and_ends_turns(read, tokenizer):
    small = Vocabulary(rows=300, size=250, eos_token_ids=(1,))
    with pytest.raises(DataError, match="outside the vocabulary of 250"):
        read({"prompt_tokens": [5], "tokens": [260]}, vocabulary=small)
    (sample,) = read(chat("cat", "sat"), vocabulary=Vocabulary(rows=300, size=300)).samples
    assert written_runs(sample, tokenizer) == [f"sat{END}\n"]  # nothing is known to end a turn


@pytest.mark.parametrize("option", [{"too_long": "pad"}, {"bad_lines": "fix"}, {"max_length": 1}])
def test_options_out_of_range_are_refused(read, option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        read({"text": "the cat"}, **option)
