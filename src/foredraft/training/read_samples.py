"""Reads JSON Lines of conversations, texts, prompts with completions, or token ids.

One object a line, in one of these forms:

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"text": "..."}
    {"prompt": "...", "completion": "..."}
    {"prompt_tokens": [1, 2], "tokens": [3, 4]}
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from foredraft.core.errors import require
from foredraft.core.sampling_params import whole
from foredraft.core.speculation_config import one_of
from foredraft.core.vocabulary import Vocabulary
from foredraft.training.samples import DataError, Sample

TOO_LONG, BAD_LINES = ("cut", "drop"), ("stop", "skip")
ROLES = ("system", "user", "assistant")
KEPT_REASONS = 10  # of skipped lines
SHOWN = 40  # characters of a wrong value
Marked = tuple[list[int], list[bool]]  # tokens, and whether each was written


@dataclass(kw_only=True, slots=True)
class ReadCounts:
    """What became of the lines read.

    Attributes:
        lines: That hold something.
        samples: Made of them.
        cut: Samples that were longer than allowed, of which the beginning was kept.
        dropped: Left out: too long, or nothing written within the length allowed.
        skipped: Left out because they are no sample.
        tokens, written: Of the samples.
        reasons: Why lines were skipped, the first few.
    """

    lines: int = 0
    samples: int = 0
    cut: int = 0
    dropped: int = 0
    skipped: int = 0
    tokens: int = 0
    written: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SampleReport:
    """Samples in the order of their files and lines, and what became of the lines."""

    samples: list[Sample]
    counts: ReadCounts


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How files are read.

    Attributes:
        tokenizer: The target's.
        size: Token ids are below it.
        endings: Tokens that end a turn.
        max_length: Most tokens of a sample.
        too_long: What becomes of a longer one: cut or drop.
    """

    tokenizer: Any
    size: int
    endings: frozenset[int]
    max_length: int
    too_long: str


def read_samples(
    paths: Sequence[Path | str],
    tokenizer,
    *,
    max_length: int,
    too_long: str = "cut",
    bad_lines: str = "stop",
    vocabulary: Vocabulary | None = None,
) -> SampleReport:
    """Samples of the files `paths`.

    In a conversation every assistant turn is written, its end token included; of a text every token; of a prompt with
    a completion the completion, to which no end token is added.

    Args:
        tokenizer: The target's, with a chat template where there are conversations.
        max_length: Most tokens of a sample.
        too_long: cut keeps the beginning of a longer one, drop leaves it out.
        bad_lines: stop raises `DataError` at a line that is no sample, skip counts it.
        vocabulary: The target's; the tokenizer's own when not given.

    Raises `DataError` with file, line and reason; `ConfigError` for an option out of range.
    """
    whole("max_length", max_length, 2)
    one_of("too_long", too_long, TOO_LONG)
    one_of("bad_lines", bad_lines, BAD_LINES)
    require(
        tokenizer.is_fast, f"{type(tokenizer).__name__} does not say which characters a token stands for", DataError
    )
    own_end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    reading = Reading(
        tokenizer=tokenizer,
        size=vocabulary.size if vocabulary else len(tokenizer),
        endings=frozenset(vocabulary.eos_token_ids if vocabulary else own_end),
        max_length=max_length,
        too_long=too_long,
    )
    samples, counts = [], ReadCounts()
    for source, line in lines_of(paths):
        counts.lines += 1
        try:
            sample = take(line, source, reading, counts)
        except DataError as error:
            require(bad_lines == "skip", str(error), DataError)
            skip(counts, str(error))
            continue
        samples += [sample] if sample else []
    named = ", ".join(str(path) for path in paths)
    require(bool(samples), f"no samples in {named}: {outcome(counts)}", DataError)
    return SampleReport(samples, counts)


def skip(counts: ReadCounts, reason: str) -> None:
    counts.skipped += 1
    if len(counts.reasons) < KEPT_REASONS:
        counts.reasons.append(reason)


def outcome(counts: ReadCounts) -> str:
    first = f", the first: {counts.reasons[0]}" if counts.reasons else ""
    return f"{counts.lines} lines, {counts.dropped} dropped for their length, {counts.skipped} skipped{first}"


def lines_of(paths: Iterable[Path | str]) -> Iterator[tuple[str, bytes]]:
    """Lines that are not blank, each with its place. Raises `DataError` for a file that cannot be read."""
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield f"{path}:{number}", line
        except OSError as error:
            raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from None


def take(line: bytes, source: str, reading: Reading, counts: ReadCounts) -> Sample | None:
    """The sample a line holds, none where its length leaves nothing. Raises `DataError` with the line's place."""
    try:
        tokens, written = parsed(line, reading)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    longer = len(tokens) > reading.max_length
    tokens, written = tokens[: reading.max_length], written[: reading.max_length]
    if not any(written[1:]) or (longer and reading.too_long == "drop"):
        counts.dropped += 1
        return None
    last = len(written) - written[::-1].index(True)  # what follows the last written token teaches nothing
    sample = Sample(tuple(tokens[:last]), tuple(written[:last]), source)
    counts.samples += 1
    counts.cut += longer
    counts.tokens += len(sample)
    counts.written += sum(sample.written)
    return sample


def parsed(line: bytes, reading: Reading) -> Marked:
    """Tokens of a line. Raises `DataError` with the reason."""
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}") from None
    require(isinstance(values, dict), f"{shown(values)} is no JSON object", DataError)
    tokens, written = form_of(values)(values, reading)
    outside = next((token for token in tokens if not 0 <= token < reading.size), None)
    require(outside is None, f"token {outside} is outside the vocabulary of {reading.size}", DataError)
    return tokens, written


Form = Callable[[dict, Reading], Marked]


def form_of(values: dict) -> Form:
    """The form whose keys a line has."""
    for form, (needed, further) in FORMS.items():
        if needed <= values.keys() <= needed | further:
            return form
    known = " or ".join(" and ".join(sorted(needed)) for needed, _ in FORMS.values())
    raise DataError(f"keys {', '.join(map(repr, values)) or 'none'}; known: {known}")


def text_form(values: dict, reading: Reading) -> Marked:
    tokens = reading.tokenizer(text_of(values, "text"))["input_ids"]
    require(len(tokens) > 1, "'text' has one token; nothing can be guessed from nothing", DataError)
    return tokens, [True] * len(tokens)


def completion_form(values: dict, reading: Reading) -> Marked:
    prompt, completion = text_of(values, "prompt"), text_of(values, "completion")
    return marked(prompt + completion, [(len(prompt), len(prompt) + len(completion))], reading.tokenizer, special=True)


def token_form(values: dict, reading: Reading) -> Marked:
    prompt, answer = ids_of(values, "prompt_tokens"), ids_of(values, "tokens")
    return prompt + answer, [False] * len(prompt) + [True] * len(answer)


def messages_form(values: dict, reading: Reading) -> Marked:
    """Every assistant turn the template renders as it rendered when it was to be answered."""
    messages, tokenizer = messages_of(values), reading.tokenizer
    require(bool(tokenizer.chat_template), "the tokenizer has no chat template for 'messages'", DataError)
    render = partial(rendered, tokenizer)
    whole_text = render(messages)
    spans = [span for place in turns(messages) if (span := turn_span(render, messages, place, whole_text))]
    require(bool(spans), "the chat template renders no assistant turn as it is asked for", DataError)
    tokens, written = marked(whole_text, spans, tokenizer)
    return tokens, up_to_endings(tokens, written, reading.endings)


FORMS: dict[Form, tuple[set[str], set[str]]] = {  # keys it needs, and keys it may have
    messages_form: ({"messages"}, set()),
    text_form: ({"text"}, set()),
    completion_form: ({"prompt", "completion"}, set()),
    token_form: ({"prompt_tokens", "tokens"}, {"finish_reason", "seed", "key"}),
}


def turns(messages: list[dict]) -> list[int]:
    """Places of the assistant turns that answer something."""
    places = [place for place, message in enumerate(messages) if place and message["role"] == "assistant"]
    require(bool(places), "'messages' has no assistant turn after a first message", DataError)
    return places


def rendered(tokenizer, messages: list[dict], **options: bool) -> str:
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except (TemplateError, ValueError, TypeError) as error:
        raise DataError(f"the chat template refuses 'messages': {error}") from None


def turn_span(render: Callable[..., str], messages: list[dict], place: int, whole_text: str) -> tuple[int, int] | None:
    """Characters of an assistant turn in the whole text.

    None where the template renders the turn, or what stands before it, in another way than it did when the turn was
    to be written: some leave out the thoughts of earlier turns, and a target never writes such a text.
    """
    before = render(messages[:place], add_generation_prompt=True)
    after = render(messages[: place + 1])
    agrees = whole_text.startswith(after) and after.startswith(before) and len(after) > len(before)
    return (len(before), len(after)) if agrees else None


def marked(text: str, spans: list[tuple[int, int]], tokenizer, *, special: bool = False) -> Marked:
    """Tokens of a text, those that begin inside one of the spans as written; `special` adds the tokenizer's own."""
    encoding = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    written, last = [], 0
    for start, end in encoding["offset_mapping"]:
        begin = min(start, last)  # characters no token claims, such as a trimmed space, belong to the token after them
        written.append(any(low <= begin < high for low, high in spans))
        last = max(last, end)
    return encoding["input_ids"], written


def up_to_endings(tokens: list[int], written: list[bool], endings: frozenset[int]) -> list[bool]:
    """Each turn only up to its end token: the line feed some templates put after it is the template's."""
    kept, open_turn = [], True
    for place, (token, own) in enumerate(zip(tokens, written, strict=True)):
        if not own or not place or not written[place - 1]:
            open_turn = True
        kept.append(own and open_turn)
        open_turn = open_turn and not (own and token in endings)
    return kept


def messages_of(values: dict) -> list[dict]:
    messages = values["messages"]
    right = isinstance(messages, list) and messages
    require(bool(right), f"'messages' is {shown(messages)}; it must be a list of messages", DataError)
    for place, message in enumerate(messages, start=1):
        where = f"message {place}"
        fits = isinstance(message, dict) and message.keys() == {"role", "content"}
        require(fits, f"{where} is {shown(message)}; it must have role and content alone", DataError)
        known = ", ".join(ROLES)
        require(message["role"] in ROLES, f"{where} has role {shown(message['role'])}; known: {known}", DataError)
        text_of(message, "content", where=f"'content' of {where}", empty=message["role"] != "assistant")
    return messages


def text_of(values: dict, key: str, *, where: str | None = None, empty: bool = False) -> str:
    """A string of a line that can be written as UTF-8; lone surrogates cannot."""
    text, where = values[key], where or repr(key)
    require(isinstance(text, str), f"{where} is {shown(text)}; it must be a string", DataError)
    require(empty or text != "", f"{where} is empty", DataError)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where} holds half a character at {error.start}") from None
    return text


def ids_of(values: dict, key: str) -> list[int]:
    ids = values[key]
    right = isinstance(ids, list) and ids and all(type(token) is int for token in ids)
    require(bool(right), f"{key!r} is {shown(ids)}; it must be a list of token ids", DataError)
    return ids


def shown(value: Any) -> str:
    """A value of a line, shortened."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
