"""OpenVINO as a contestant of the benchmark of the forward: forwards by its stateful model, texts by OpenVINO GenAI."""

from collections.abc import Sequence
from time import perf_counter

import numpy as np
import openvino
import openvino_genai
from forward_worker import serve
from openvino_place import place

ROWS = 8  # computed before the cache is put back: a few forwards of one row, one of many
CHUNK = 256


class OpenVino:
    """A folder as `optimum-cli export openvino` writes it. Weights are bf16, the rest as `place` says."""

    def load(self, model: str, threads: int) -> dict:
        self.request = self.pipeline = None  # two large models at once are for nothing
        settings = place(threads)
        compiled = openvino.Core().compile_model(f"{model}/openvino_model.xml", "CPU", settings)
        self.request = compiled.create_infer_request()
        self.pipeline = openvino_genai.LLMPipeline(model, "CPU", **settings)
        about = {name: str(compiled.get_property(name)) for name in settings}
        return {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__, "path": str(about)}

    def logits(self, tokens: Sequence[int]) -> list[float]:
        self.request.reset_state()
        self.infer(tokens, 0)
        return self.request.get_tensor("logits").data[0, -1].astype(np.float32).tolist()

    def infer(self, tokens: Sequence[int], before: int) -> None:
        """A forward of `tokens` behind `before` cached ones; logits of all of them are computed."""
        count = len(tokens)
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, before + count), np.int64),
            "position_ids": np.arange(before, before + count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self.request.infer(inputs, share_inputs=True, share_outputs=True)

    def fill(self, tokens: Sequence[int]) -> None:
        self.request.reset_state()
        for start in range(0, len(tokens), CHUNK):
            self.infer(tokens[start : start + CHUNK], start)
        self.filled = len(tokens)
        self.states = [(state, openvino.Tensor(state.state.data.copy())) for state in self.request.query_state()]

    def steps(self, tokens: Sequence[int]) -> list[float]:
        """The cache cannot be cut, so it is put back; the next forward, which makes it room to grow, is not timed."""
        for state, filled in self.states:
            state.state = filled
        self.infer(tokens[:1], self.filled)
        before, seconds = self.filled + 1, []
        for _ in range(max(1, ROWS // len(tokens))):
            start = perf_counter()
            self.infer(tokens, before)
            seconds.append(perf_counter() - start)
            before += len(tokens)
        return seconds

    def write(self, tokens: Sequence[int], new: int) -> tuple[float, list[int]]:
        config = openvino_genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        result = self.pipeline.generate(openvino.Tensor(np.array([tokens], np.int64)), config)
        measured = result.perf_metrics  # milliseconds
        seconds = (measured.get_generate_duration().mean - measured.get_ttft().mean) / 1e3
        return seconds, list(result.tokens[0])


if __name__ == "__main__":
    serve(OpenVino())
