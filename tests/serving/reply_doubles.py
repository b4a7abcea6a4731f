"""Tokenizers with chat templates of several tool formats, and steps as an engine would report them."""

from dataclasses import dataclass
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import SpeculationStatistics, TokenLogprobs
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.sampling.detokenizer import Detokenizer
from foredraft.sampling.stopping import Stopper

EOS = "<|end|>"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "unit": {"enum": ["C", "F"]},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
START = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
END = "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
SHOWN_TOOLS = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
TEMPLATES = {
    "hermes": SHOWN_TOOLS
    + r"""{% if tools %}Answer with <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>.{% endif %}"""
    + START
    + """{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}"""
    + END,
    "llama": SHOWN_TOOLS
    + """{% if tools %}Answer with {"name": function, "parameters": object}.{% endif %}"""
    + START
    + """{% for call in message.tool_calls or [] %}\
{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}{% endfor %}"""
    + END,
    "mistral": "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    + START
    + """{% if message.tool_calls %}[TOOL_CALLS][{% for call in message.tool_calls %}\
{% if call.id | length != 9 %}{{ raise_exception('ids of calls must have length 9') }}{% endif %}\
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}\
{% endfor %}]{% endif %}"""
    + END,
    "mistral-args": SHOWN_TOOLS
    + START
    + """{% for call in message.tool_calls or [] %}\
[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}"""
    + END,
    "xml": SHOWN_TOOLS
    + START
    + """{% for call in message.tool_calls or [] %}<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}"""
    + END,
    "none": START + END,
}
CALLS = {  # one call of each tool, as the format writes it
    "hermes": [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Kyōto", "days": 2}}\n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    ],
    "llama": ['{"name": "weather", "parameters": {"city": "Kyōto", "days": 2}}', '{"name": "now", "parameters": {}}'],
    "mistral": [
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Kyōto", "days": 2}}]',
        '[TOOL_CALLS][{"name": "now", "arguments": {}}]',
    ],
    "mistral-args": ['[TOOL_CALLS]weather[ARGS]{"city": "Kyōto", "days": 2}', "[TOOL_CALLS]now[ARGS]{}"],
    "xml": [
        "<tool_call>\n<function=weather>\n<parameter=city>\nKyōto\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ],
}
BOTH = {  # both calls in one answer
    "hermes": "\n".join(CALLS["hermes"]),
    "llama": "; ".join(CALLS["llama"]),
    "mistral": CALLS["mistral"][0][:-1] + ", " + CALLS["mistral"][1].removeprefix("[TOOL_CALLS]["),
    "mistral-args": "".join(CALLS["mistral-args"]),
    "xml": "\n".join(CALLS["xml"]),
}
MARKERS = {"<tool_call>": False, "</tool_call>": False, "[TOOL_CALLS]": True, "[ARGS]": True}  # and which are special
FORMATS = sorted(CALLS)


@cache
def tokenizer_for(format: str, *, marked: bool = False) -> PreTrainedTokenizerFast:
    """A token a byte; with `marked` the markers of calls are tokens of their own, Mistral's without text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    if marked:
        tokenizer.add_tokens([AddedToken(text, special=special) for text, special in MARKERS.items()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, chat_template=TEMPLATES[format])


def vocabulary_of(tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return Vocabulary(rows=len(tokenizer), size=len(tokenizer), eos_token_ids=(tokenizer.eos_token_id,))


@dataclass
class Step:
    """An update, as the worker would give it."""

    event: TokenEvent
    output: RequestOutput | None = None


def logprobs_of(token: int) -> TokenLogprobs:
    """The written token is the second likeliest; a space comes first."""
    return TokenLogprobs(token=token, logprob=-1.0 - token / 1000, top=[(220, -0.5), (token, -1.0 - token / 1000)])


def statistics_of(tokens: int) -> SpeculationStatistics:
    """A draft of two tokens in every forward, half of them accepted, all by a prediction."""
    statistics = SpeculationStatistics(draft_seconds=0.25, verify_seconds=0.5, other_seconds=0.25, plain_seconds=2.0)
    for _ in range(tokens // 2):
        statistics.record(depth=2, drafters=["prediction", "prediction"], path=[0], committed=2)
    return statistics


def steps_of(
    text: str,
    tokenizer: PreTrainedTokenizerFast,
    *,
    size: int = 2,
    reason: str = "stop",
    stop: tuple[str, ...] = (),
    index: int = 0,
    sample: int = 0,
    prompt: tuple[int, ...] = (40, 41, 42),
) -> list[Step]:
    """Steps that write `text`, `size` tokens each, every first one drafted, another one of its place rejected.

    An end-of-text token follows where the reason is stop.
    """
    ids = tokenizer.encode(text, add_special_tokens=False)
    ids = [*ids, tokenizer.eos_token_id] if reason == "stop" and not stop else ids
    params = SamplingParams(max_new_tokens=len(ids) + (reason == "stop"), stop=stop)
    stopper = Stopper(params, vocabulary_of(tokenizer), Detokenizer(tokenizer))
    steps, written, shown = [], [], ""
    while not steps or steps[-1].event.finish_reason is None:
        tokens = ids[len(written) : len(written) + size]
        tree = DraftTree(tokens=[tokens[0], 50], parents=[-1, -1], drafters=["ngram", "suffix"])
        told = stopper.push(tokens)
        tokens = tokens[: told.kept]
        written, shown = written + tokens, shown + told.text
        event = TokenEvent(
            index=index,
            sample=sample,
            tokens=tokens,
            sources=["ngram", *[None] * (len(tokens) - 1)],
            text=told.text,
            finish_reason=reason if told.finish_reason else None,
            logprobs=[logprobs_of(token) for token in tokens],
            tree=tree,
            path=[0],
        )
        steps.append(Step(event))
    steps[-1].output = output_of(steps, shown, prompt)
    return steps


def output_of(steps: list[Step], text: str, prompt: tuple[int, ...]) -> RequestOutput:
    events = [step.event for step in steps]
    tokens = [token for event in events for token in event.tokens]
    return RequestOutput(
        index=events[-1].index,
        sample=events[-1].sample,
        prompt_token_ids=list(prompt),
        token_ids=tokens,
        text=text,
        finish_reason=events[-1].finish_reason,
        seed=1,
        drafter="ngram",
        lossless=True,
        sources=[source for event in events for source in event.sources],
        logprobs=[logprobs_of(token) for token in tokens],
        prompt_logprobs=[None, *[logprobs_of(token) for token in prompt[1:]]],
        statistics=statistics_of(len(tokens)),
        seconds=1.0,
        first_token_seconds=0.1,
    )
