"""OpenVINO GenAI as a contestant of the benchmark of generation; runs where `openvino-genai` is installed."""

import sys
from time import perf_counter

import numpy as np
import openvino
import openvino_genai
from line_worker import LineWorker
from openvino_place import place

PROMPT_LOOKUP, DRAFT_MODEL = "prompt_lookup", "draft_model"


class OpenVinoWriter(LineWorker):
    """A pipeline for each kind of speculation, since it is chosen when the pipeline is made."""

    def load(self, target: str, draft: str, threads: int, length: int, contestants: dict[str, dict]) -> dict:
        """Load folders as `optimum-cli export openvino` writes them; texts may have any `length`."""
        settings = place(threads)
        kinds = {
            None: {},
            PROMPT_LOOKUP: {PROMPT_LOOKUP: True},
            DRAFT_MODEL: {DRAFT_MODEL: openvino_genai.draft_model(draft, "CPU", **settings)},
        }
        self.settings = {name: dict(its) for name, its in contestants.items()}
        self.kinds = {name: its.pop("kind", None) for name, its in self.settings.items()}
        self.pipelines = {
            kind: openvino_genai.LLMPipeline(target, "CPU", scheduler_config=cold(), **kinds[kind], **settings)
            for kind in dict.fromkeys(self.kinds.values())
        }
        versions = {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__}
        return {"about": versions | {"path": str(settings)}}

    def write(self, contestant: str, tokens: list[int], new: int, ends: list[int]) -> dict:
        config = openvino_genai.GenerationConfig(max_new_tokens=new, do_sample=False, **self.settings[contestant])
        config.ignore_eos, config.stop_token_ids = not ends, set(ends)
        prompt = openvino.Tensor(np.array([tokens], np.int64))
        start = perf_counter()
        result = self.pipelines[self.kinds[contestant]].generate(prompt, config)
        seconds = perf_counter() - start
        metrics = result.perf_metrics
        return {
            "tokens": list(result.tokens[0]),
            "seconds": seconds,
            "first_seconds": metrics.get_ttft().mean / 1e3,
            "first_tokens": metrics.raw_metrics.m_batch_sizes[0],
            "forwards": len(metrics.raw_metrics.m_batch_sizes),
        }


def cold() -> openvino_genai.SchedulerConfig:
    """As the pipeline makes it by itself for one request, without its cache of prompts that it has seen before."""
    config = openvino_genai.SchedulerConfig()
    config.enable_prefix_caching = False
    config.max_num_batched_tokens = sys.maxsize
    return config


if __name__ == "__main__":
    OpenVinoWriter().serve()
