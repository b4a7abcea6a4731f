"""Hands a `custom_generate` callable the arguments transformers 5.23 loses on the way to it.

`GenerationMixin._extract_generation_mode_kwargs` collects `tokenizer`, `assistant_model` and `streamer`, and overwrites
them when the caller's `custom_generate` is a callable. A callable could then neither use nor refuse them.
"""

from collections.abc import Callable
from functools import wraps

from transformers import GenerationMixin


def keep_arguments_for(function: Callable) -> Callable:
    """Let `function`, also inside `functools.partial`, receive those arguments; other callables see no change."""
    original = GenerationMixin._extract_generation_mode_kwargs

    @wraps(original)
    def extract(self, custom_generate, kwargs, synced_gpus, assistant_model, streamer):
        given = {"assistant_model": assistant_model, "streamer": streamer, "synced_gpus": synced_gpus}
        given |= {name: kwargs.get(name) for name in ("tokenizer", "assistant_tokenizer")}
        extracted = original(self, custom_generate, kwargs, synced_gpus, assistant_model, streamer)
        if getattr(custom_generate, "func", custom_generate) is not function:
            return extracted
        return extracted | {name: value for name, value in given.items() if value is not None}

    GenerationMixin._extract_generation_mode_kwargs = extract
    return function
