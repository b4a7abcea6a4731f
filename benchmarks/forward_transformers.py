"""transformers itself as a contestant of the benchmark of the forward: its own forward, with its own growing cache."""

from collections.abc import Sequence
from time import perf_counter

import torch
import transformers
from contestants import Clock
from forward_worker import serve
from plain_model import load_plain
from transformers import DynamicCache


class Transformers:
    def load(self, model: str, threads: int) -> dict:
        torch.set_num_threads(threads)
        self.model = load_plain(model, torch.bfloat16)
        self.model.generation_config.eos_token_id = None
        attention = self.model.config._attn_implementation
        return {"transformers": transformers.__version__, "torch": torch.__version__, "path": f"attention: {attention}"}

    def logits(self, tokens: Sequence[int]) -> list[float]:
        self.fill([])
        return self.forward(tokens)[0, -1].float().tolist()

    def fill(self, tokens: Sequence[int]) -> None:
        self.cache, self.filled = DynamicCache(config=self.model.config), len(tokens)
        if tokens:
            self.forward(tokens)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits, [1, R, V]."""
        return self.model(torch.tensor([tokens]), past_key_values=self.cache, use_cache=True).logits

    def steps(self, tokens: Sequence[int]) -> list[float]:
        start = perf_counter()
        self.forward(tokens)
        seconds = perf_counter() - start
        self.cache.crop(-len(tokens))
        return [seconds]

    def write(self, tokens: Sequence[int], new: int) -> tuple[float, list[int]]:
        clock, ids = Clock(), torch.tensor([tokens])
        mask = torch.ones_like(ids)
        text = self.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new, streamer=clock)
        return perf_counter() - clock.first[0], text[0, len(tokens) :].tolist()


if __name__ == "__main__":
    serve(Transformers())
