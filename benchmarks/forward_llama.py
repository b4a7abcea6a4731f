"""llama.cpp as a contestant of the benchmark of the forward; runs where `llama-cpp-python` is installed."""

import ctypes
from collections.abc import Sequence
from time import perf_counter

import llama_cpp
from forward_worker import serve

CONTEXT = 2048
CHUNK = 512
QUIET = llama_cpp.llama_log_callback(lambda *_: None)  # must live as long as llama.cpp may call it


class Llama:
    """A GGUF model through llama.cpp's own functions, one sequence of up to `length` tokens."""

    def __init__(self, length: int = CONTEXT) -> None:
        llama_cpp.llama_backend_init()
        self.length = length
        self.model = self.context = None
        self.batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)
        self.sampler = llama_cpp.llama_sampler_init_greedy()
        self.filled = 0

    def load(self, model: str, threads: int) -> dict:
        self.close()
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = self.length, CHUNK, CHUNK
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context for {model}")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        features = llama_cpp.llama_print_system_info().decode().strip()
        return {"llama_cpp_python": llama_cpp.__version__, "path": features}

    def close(self) -> None:
        if self.context:
            llama_cpp.llama_free(self.context)
        if self.model:
            llama_cpp.llama_model_free(self.model)
        self.model = self.context = None

    def logits(self, tokens: Sequence[int]) -> list[float]:
        self.fill(tokens)
        return list(llama_cpp.llama_get_logits_ith(self.context, -1)[: self.vocabulary])

    def fill(self, tokens: Sequence[int]) -> None:
        self.cut(0)
        self.extend(tokens)

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens of the cache."""
        llama_cpp.llama_memory_seq_rm(self.memory, 0, length, -1)
        self.filled = length

    def extend(self, tokens: Sequence[int]) -> None:
        """Compute `tokens` behind the cache, which holds them afterwards; logits of the last."""
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            self.put(part, self.filled, [place == len(part) - 1 for place in range(len(part))])
            self.decode()
            self.filled += len(part)

    def put(self, tokens: Sequence[int], first: int, wanted: Sequence[bool]) -> None:
        """The next batch: `tokens` from position `first` on, logits where they are `wanted`."""
        self.batch.n_tokens = len(tokens)
        for place, (token, logits) in enumerate(zip(tokens, wanted, strict=True)):
            self.batch.token[place], self.batch.pos[place] = token, first + place
            self.batch.n_seq_id[place], self.batch.seq_id[place][0] = 1, 0
            self.batch.logits[place] = logits

    def decode(self) -> None:
        code = llama_cpp.llama_decode(self.context, self.batch)
        if code:
            raise RuntimeError(f"llama_decode ended with {code}")

    def steps(self, tokens: Sequence[int]) -> list[float]:
        self.put(tokens, self.filled, [True] * len(tokens))
        start = perf_counter()
        self.decode()
        llama_cpp.llama_get_logits(self.context)  # waits until they are there
        seconds = perf_counter() - start
        self.cut(self.filled)
        return [seconds]

    def write(self, tokens: Sequence[int], new: int) -> tuple[float, list[int]]:
        self.fill(tokens)
        text = [self.chosen()]
        start = perf_counter()
        while len(text) < new:
            self.extend(text[-1:])
            text.append(self.chosen())
        return perf_counter() - start, text

    def chosen(self) -> int:
        return llama_cpp.llama_sampler_sample(self.sampler, self.context, -1)


def be_quiet() -> None:
    """Drop what llama.cpp logs."""
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))


if __name__ == "__main__":
    be_quiet()
    serve(Llama())
