"""A model without a network that says what it is told to: text in, text out, tool calls and all."""

import re
from threading import Event

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.model.scripted_target import ScriptedTarget

TEMPLATE = """{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.{% endif %}{% for message in messages %}\
<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}\
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
SAY = re.compile(rb"say ((?:(?!<\|end\|>).)*)<\|end\|>(?:(?!<\|end\|>).)*<\|assistant\|>(.*)$", re.DOTALL)
SURE, LIKELY, NEVER = 30.0, 4.0, -30.0
SCRIPT = b"the quick brown fox jumps over the lazy dog. "


def byte_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A token a byte, beside the end of text, which is token 0."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(["</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", chat_template=template)


class SpellingTarget(ScriptedTarget):
    """Answers a user's "say X" with X, "dice" with digits as they fall, and writes on a plain prompt from a script.

    Attributes:
        open: While it is not set, no forward ends.
    """

    def __init__(self, *, slots: int = 8192, template: str | None = TEMPLATE):
        super().__init__(self.next_byte, vocabulary=257, slots=slots, eos=(0,))
        self.tokenizer = byte_tokenizer(template)
        letters = bytes_to_unicode()
        self.ids = {byte: self.tokenizer.convert_tokens_to_ids(letters[byte]) for byte in range(256)}
        self.bytes = {token: byte for byte, token in self.ids.items()}
        self.open = Event()
        self.open.set()

    def forward(self, plan, features=()):
        assert self.open.wait(30)
        return super().forward(plan, features)

    def next_byte(self, history: tuple[int, ...]) -> list[float]:
        text = bytes(self.bytes.get(token, 0) for token in history)
        told = SAY.search(text)
        if told is None:
            return self.logits(SCRIPT[len(text) % len(SCRIPT)])
        wanted, said = told.groups()
        if wanted == b"dice":
            return [LIKELY if self.bytes.get(token, 0) in b"0123456789" else NEVER for token in range(257)]
        at_end = len(said) >= len(wanted) or not wanted.startswith(said)
        return self.logits(None if at_end else wanted[len(said)])

    def logits(self, byte: int | None) -> list[float]:
        """Sure of this byte, of the end of the text where it is none; other letters are a little likely."""
        chosen = 0 if byte is None else self.ids[byte]
        return [SURE if token == chosen else LIKELY - token / 257 for token in range(257)]


def spelling_engine(*, max_batch: int = 8, slots: int = 8192, method: str = "ngram") -> Engine:
    target = SpellingTarget(slots=slots)
    return Engine(target, speculation=SpeculationConfig(method=method), max_batch=max_batch)
