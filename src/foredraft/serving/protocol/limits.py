"""How much one request may ask for."""

from dataclasses import dataclass, fields

from foredraft.core.sampling_params import whole


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Most that one request may ask for. Raises `ConfigError` naming the value unless each is at least 1.

    Attributes:
        max_body_bytes: Bytes of a request's body.
        max_tokens: Tokens to write; the context bounds them too.
        max_n: Continuations of one prompt.
        max_prompts: Prompts of one completion request.
        max_continuations: Continuations of all prompts together.
        max_messages: Messages of a conversation.
        max_tools: Functions a model may call.
        max_stop: Stop strings, and stop token ids.
        max_bad_words: Strings that must not be written.
        max_word_bytes: Bytes of one stop string or bad word.
        max_logit_bias: Tokens with a bias.
        max_prediction_bytes: Bytes of the text expected in the answer.
        max_schema_bytes: Bytes of a JSON schema.
        max_tools_bytes: Bytes of the schemas of all functions together.
        max_schema_depth: Levels of lists and objects in a JSON schema.
        max_schema_nodes: Values in a JSON schema.
        max_regex_bytes: Bytes of a regular expression.
        max_regex_depth: Levels of groups in a regular expression.
        max_grammar_bytes: Bytes of a grammar.
        max_repeats: Copies that counted repetition may ask for, nested counts multiplied.
        max_divisor: Least common multiple of what a schema's numbers are multiples of.
    """

    max_body_bytes: int = 16 * 2**20
    max_tokens: int = 1_000_000
    max_n: int = 64
    max_prompts: int = 512
    max_continuations: int = 1024
    max_messages: int = 4096
    max_tools: int = 128
    max_stop: int = 16
    max_bad_words: int = 128
    max_word_bytes: int = 256
    max_logit_bias: int = 1024
    max_prediction_bytes: int = 2**18
    max_schema_bytes: int = 2**16
    max_tools_bytes: int = 2**18
    max_schema_depth: int = 64
    max_schema_nodes: int = 4096
    max_regex_bytes: int = 4096
    max_regex_depth: int = 32
    max_grammar_bytes: int = 2**16
    max_repeats: int = 2**16
    max_divisor: int = 10_000

    def __post_init__(self) -> None:
        for field in fields(self):
            whole(field.name, getattr(self, field.name), 1)


DEFAULTS = Limits()  # what the OpenAPI document states
