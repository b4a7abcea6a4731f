"""Let the target answer a file of questions; the answers are training data for its drafters.

python recipes/tiny/answers.py questions.jsonl --output answers.jsonl --temperature 1 --seed 2
"""

import argparse
from pathlib import Path

from rich.progress import Progress

from foredraft import Engine, SpeculationConfig
from foredraft.training.on_policy import regenerate
from foredraft.training.read_samples import read_samples

BATCH, CACHE_TOKENS = 48, 60_000
LONGEST_QUESTION = 832  # with its answer in the data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--target", default="tiny")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--answer-tokens", type=int, default=192)
    args = parser.parse_args()
    speculation = SpeculationConfig(method="suffix")
    engine = Engine.from_pretrained(args.target, speculation=speculation, max_batch=BATCH, cache_tokens=CACHE_TOKENS)
    report = read_samples(
        [args.questions], engine.target.tokenizer, max_length=LONGEST_QUESTION, vocabulary=engine.target.vocabulary
    )
    with Progress() as progress:
        task = progress.add_task("answers", total=len(report.samples))
        answers = regenerate(
            engine,
            report.samples,
            args.output,
            temperature=args.temperature,
            seed=args.seed,
            max_new_tokens=args.answer_tokens,
            progress=lambda done, _, __: progress.update(task, completed=done),
        )
    print(f"{len(answers.samples)} answers, {answers.tokens} tokens written now")


if __name__ == "__main__":
    main()
