"""From a request's guided parameters to its grammar, over llguidance (Earley parsing with lazy regex derivatives)."""

import json
from collections import OrderedDict
from weakref import WeakKeyDictionary

from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from foredraft.core.errors import ConfigError, require
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.grammar_state import GrammarState

ANY_OBJECT = "object"
COMPILED = 32  # grammars kept for each tokenizer


class Grammars:
    """Grammars over one tokenizer; the last few that were asked for are kept compiled."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocabulary: Vocabulary):
        width = max(vocabulary.rows, len(tokenizer))
        self.tokens = from_tokenizer(tokenizer, n_vocab=width, eos_token=list(vocabulary.eos_token_ids))
        self.compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def matcher(self, key: str, text: str) -> LLMatcher:
        """The grammar that parameter `key` gives as `text`, at its beginning. Raises `ConfigError` for a bad one."""
        grammar = READERS[key](text)
        if grammar not in self.compiled:
            matcher = LLMatcher(self.tokens, grammar, log_level=0)
            if matcher.is_error():
                raise ConfigError(f"{key} {text!r} cannot be used: {reason(matcher.get_error())}")
            self.compiled[grammar] = matcher
        self.compiled.move_to_end(grammar)
        if len(self.compiled) > COMPILED:
            self.compiled.popitem(last=False)
        return self.compiled[grammar].deep_copy()


known: WeakKeyDictionary[PreTrainedTokenizerFast, dict[Vocabulary, Grammars]] = WeakKeyDictionary()


def grammar_for(
    params: SamplingParams, tokenizer: PreTrainedTokenizerBase | None, vocabulary: Vocabulary
) -> GrammarState | None:
    """The grammar a request's output must follow, none where it asks for none.

    Raises `ConfigError` for a grammar that cannot be read, and for a target that cannot write by one.
    """
    if params.guided is None:
        return None
    key, text = params.guided
    require(
        isinstance(tokenizer, PreTrainedTokenizerFast),
        f"{key} needs a target with a tokenizer of the tokenizers library; this one has {type(tokenizer).__name__}",
    )
    require(bool(vocabulary.eos_token_ids), f"{key} needs a target with an end-of-text token to end the grammar with")
    of_tokenizer = known.setdefault(tokenizer, {})
    if vocabulary not in of_tokenizer:
        of_tokenizer[vocabulary] = Grammars(tokenizer, vocabulary)
    return GrammarState(of_tokenizer[vocabulary].matcher(key, text), vocabulary)


def json_grammar(text: str) -> str:
    if text == ANY_OBJECT:
        return LLMatcher.grammar_from_json_schema({"type": "object"})
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"guided_json is not JSON: {error.msg} at character {error.pos}: {text!r}") from None
    require(isinstance(schema, dict), f"guided_json is {text!r}; it must be a JSON schema, an object, or {ANY_OBJECT}")
    return LLMatcher.grammar_from_json_schema(schema)


READERS = {
    "guided_json": json_grammar,
    "guided_regex": LLMatcher.grammar_from_regex,
    "guided_grammar": LLMatcher.grammar_from_lark,
}


def reason(message: str) -> str:
    """The line of llguidance's message that says what is wrong; the others draw where."""
    lines = message.splitlines()
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (named or lines)[0].strip()
