"""llama.cpp as a contestant of the benchmark of generation; runs where `llama-cpp-python` is installed.

Plain decoding calls llama.cpp's own functions. Speculation is that of llama-cpp-python's `Llama(draft_model=...)`: it
brings prompt lookup, and an interface for other drafters behind which `ModelDrafts` puts a second model.
"""

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter

import forward_llama
import llama_cpp
import numpy as np
from forward_llama import be_quiet
from line_worker import LineWorker
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding


class ModelDrafts(LlamaDraftModel):
    """Drafts greedily with a second model; of llama-cpp-python is only the interface."""

    def __init__(self, model: forward_llama.Llama, most: int, least_chance: float):
        """Drafts of up to `most` tokens that end before a token that the model gives less than `least_chance`."""
        self.model, self.most, self.least_chance = model, most, least_chance
        self.held = np.empty(0, np.intc)  # the tokens of the model's cache

    def __call__(self, input_ids: np.ndarray, /, **_: object) -> np.ndarray:
        self.hold(input_ids)
        draft: list[int] = []
        while len(draft) < self.most:
            token, chance = self.likeliest()
            if chance < self.least_chance:
                break
            draft.append(token)
            if len(draft) < self.most:
                self.model.extend([token])
        self.held = np.concatenate([input_ids, np.array(draft, np.intc)])[: self.model.filled]
        return np.array(draft, np.intc)

    def hold(self, tokens: np.ndarray) -> None:
        """Make the cache hold `tokens`; the last of them is always computed, for its logits."""
        common = min(len(self.held), len(tokens) - 1)
        differs = np.flatnonzero(self.held[:common] != tokens[:common])
        kept = int(differs[0]) if differs.size else common
        self.model.cut(kept)
        self.model.extend(tokens[kept:].tolist())

    def likeliest(self) -> tuple[int, float]:
        """The next token, and its chance."""
        pointer = llama_cpp.llama_get_logits_ith(self.model.context, -1)
        logits = np.ctypeslib.as_array(pointer, (self.model.vocabulary,))
        token = int(logits.argmax())
        return token, float(1 / np.exp(logits - logits[token]).sum())


class Counted(LlamaDraftModel):
    """Another drafter's drafts, counted: the target runs once after each."""

    def __init__(self, drafter: LlamaDraftModel):
        self.drafter, self.calls = drafter, 0

    def __call__(self, input_ids: np.ndarray, /, **_: object) -> np.ndarray:
        self.calls += 1
        return self.drafter(input_ids)


class LlamaWriter(LineWorker):
    def load(self, target: str, draft: str, threads: int, length: int, contestants: dict[str, dict]) -> dict:
        """Load GGUF files for texts of up to `length` tokens, prompt included."""
        room = length + longest_draft(contestants.values())  # a draft may reach beyond the text
        self.plain, self.small = forward_llama.Llama(length), forward_llama.Llama(room)
        about = self.plain.load(target, threads)
        self.small.load(draft, threads)
        self.drafters = {name: Counted(self.drafter(its)) for name, its in contestants.items() if its}
        self.speculating = llama_cpp.Llama(
            target,
            n_ctx=room,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=True,  # as llama.cpp's own functions choose by themselves
            logits_all=True,  # which it must be told where the drafter comes later
            verbose=False,
        )
        return {"about": about}

    def drafter(self, settings: dict) -> LlamaDraftModel:
        if "most" in settings:
            return ModelDrafts(self.small, **settings)
        return LlamaPromptLookupDecoding(**settings)

    def write(self, contestant: str, tokens: list[int], new: int, ends: list[int]) -> dict:
        drafter = self.drafters.get(contestant)
        if drafter is None:
            written = timed(self.plainly(tokens), new, ends)
            return written | {"forwards": len(written["tokens"])}
        drafter.calls = 0
        written = timed(self.speculatively(tokens, drafter), new, ends)
        return written | {"forwards": 1 + drafter.calls}

    def plainly(self, tokens: Sequence[int]) -> Iterator[int]:
        self.plain.fill(tokens)
        while True:
            token = self.plain.chosen()
            yield token
            self.plain.extend([token])

    def speculatively(self, tokens: Sequence[int], drafter: LlamaDraftModel) -> Iterator[int]:
        self.speculating.reset()  # else it would keep what it has computed of a prompt before
        self.speculating.draft_model = drafter
        return self.speculating.generate(tokens, temp=0)


def longest_draft(every: Iterable[dict]) -> int:
    return max(max(its.get("most", 0), its.get("num_pred_tokens", 0)) for its in every)


def timed(text: Iterator[int], new: int, ends: Sequence[int]) -> dict:
    """The first `new` tokens of `text`, or those up to one of `ends`, and when they came."""
    tokens: list[int] = []
    start, first = perf_counter(), None
    for token in text:
        first = first or perf_counter() - start
        tokens.append(token)
        if len(tokens) == new or token in ends:
            break
    return {"tokens": tokens, "seconds": perf_counter() - start, "first_seconds": first, "first_tokens": 1}


if __name__ == "__main__":
    be_quiet()
    LlamaWriter().serve()
