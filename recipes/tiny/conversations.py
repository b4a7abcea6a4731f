"""Questions for the tiny family's drafters: a mixture of the training data's, with the answers that stand there.

    python recipes/tiny/conversations.py --data ../shared/data/train --count 8000 --seed 1 --output questions.jsonl

The target answers them anew (`foredraft train --regenerate`); a drafter must guess the target's words, not the data's.
"""

import argparse
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

from corpus import derived_documents, documents

SHARES = {  # of conversations
    "gsm8k": 0.16,
    "reasoning_traces": 0.16,
    "instructions": 0.24,
    "mbpp": 0.10,
    "form_to_json": 0.14,
    "quote_passage": 0.10,
    "edit_code": 0.05,
    "stories": 0.05,
}
STORY_WORDS = 24


def conversations(source: Path, seed: int) -> dict[str, list[list[dict[str, str]]]]:
    """All conversations by domain, each domain in an order of its own."""
    rng = random.Random(seed)
    derived = derived_documents(source, random.Random(seed))
    found = {
        name: list(chats(source / f"{name}.jsonl")) for name in ("gsm8k", "reasoning_traces", "instructions", "mbpp")
    }
    found |= {name: [parsed(text) for text in derived[name]] for name in ("form_to_json", "quote_passage", "edit_code")}
    found["stories"] = list(story_openings(source / "stories.jsonl"))
    for own in found.values():
        rng.shuffle(own)
    return found


def chats(path: Path) -> Iterator[list[dict[str, str]]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["messages"]


def parsed(text: str) -> list[dict[str, str]]:
    """The question and answer that `corpus.exchange` wrote."""
    question, answer = text.removeprefix("<|user|>").removesuffix("<|end|>").split("<|end|><|assistant|>")
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def story_openings(path: Path) -> Iterator[list[dict[str, str]]]:
    for text in documents(path):
        for words in map(str.split, text.split("\n\n")):
            if len(words) > 2 * STORY_WORDS:
                question = "Go on with this story: " + " ".join(words[:STORY_WORDS])
                yield [{"role": "user", "content": question}, {"role": "assistant", "content": " ".join(words)}]


def mixture(source: Path, count: int, seed: int, only: str | None) -> list[list[dict[str, str]]]:
    """`count` conversations in shuffled order; a domain that is too small gives all it has."""
    shares = {only: 1.0} if only else SHARES
    pools = conversations(source, seed)
    chosen = [chat for name, share in shares.items() for chat in pools[name][: round(share * count)]]
    random.Random(seed).shuffle(chosen)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=SHARES, help="One domain instead of the mixture.")
    args = parser.parse_args()
    lines = [json.dumps({"messages": chat}) for chat in mixture(args.data, args.count, args.seed, args.only)]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.with_suffix(".tmp").write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.replace(args.output.with_suffix(".tmp"), args.output)
    print(f"{len(lines)} conversations")


if __name__ == "__main__":
    main()
