"""Text for the tiny family: documents by domain, derived copy tasks, and token streams on disk.

Input files hold one JSON object a line, `{"messages": [...]}` or `{"text": ...}`. Three further domains are derived
from them so that a small model learns to copy from its prompt: a form to fill as JSON, a passage to quote from, and
code to return with a name changed.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|pad|>", "<|mask|>"]
SPECIAL_TOKENS += [f"<|reserved_{i}|>" for i in range(9)]

# Share of training rows by domain; small domains are seen more than once, large ones less.
MIXTURE = {
    "reasoning_traces": 0.20,
    "instructions": 0.22,
    "gsm8k": 0.12,
    "python_code": 0.12,
    "json_documents": 0.08,
    "stories": 0.06,
    "mbpp": 0.02,
    "web_c4": 0.02,
    "form_to_json": 0.06,
    "quote_passage": 0.06,
    "edit_code": 0.04,
}
# Towards the end of a run copying is practised more: it is what a small model learns last.
ANNEAL_MIXTURE = {
    "reasoning_traces": 0.14,
    "instructions": 0.14,
    "gsm8k": 0.12,
    "python_code": 0.08,
    "json_documents": 0.06,
    "stories": 0.06,
    "mbpp": 0.02,
    "web_c4": 0.01,
    "form_to_json": 0.15,
    "quote_passage": 0.14,
    "edit_code": 0.08,
}
HELD_OUT = 0.02


def documents(path: Path) -> Iterator[str]:
    """Every line of `path` as training text, chat in the template's form."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield chat(record["messages"]) if "messages" in record else record["text"]


def chat(messages: list[dict[str, str]]) -> str:
    return "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages)


def exchange(question: str, answer: str) -> str:
    return chat([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])


def derived_documents(source: Path, rng: random.Random) -> dict[str, list[str]]:
    texts = {name: list(documents(source / f"{name}.jsonl")) for name in ("json_documents", "stories", "web_c4")}
    code = list(documents(source / "python_code.jsonl"))
    return {
        "form_to_json": [doc for _ in range(3) for text in texts["json_documents"] for doc in forms(text, rng)],
        "quote_passage": [doc for text in texts["stories"] + texts["web_c4"] for doc in quotes(text, rng)],
        "edit_code": [doc for text in code for doc in renames(text, rng)],
    }


FIRST = [
    "Ada",
    "Ben",
    "Chloe",
    "Dan",
    "Elena",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Kira",
    "Liam",
    "Mona",
    "Noah",
    "Olga",
    "Pavel",
    "Rosa",
    "Sven",
    "Tara",
    "Uma",
]
LAST = [
    "Berg",
    "Costa",
    "Dubois",
    "Evans",
    "Fischer",
    "Garcia",
    "Haddad",
    "Ito",
    "Jensen",
    "Kumar",
    "Lopez",
    "Moreau",
    "Novak",
    "Okafor",
    "Patel",
    "Rossi",
]
FIELDS = {
    "name": lambda r: f"{r.choice(FIRST)} {r.choice(LAST)}",
    "age": lambda r: r.randint(18, 90),
    "city": lambda r: r.choice(
        ["Lyon", "Oslo", "Kyoto", "Lima", "Porto", "Accra", "Quito", "Tunis", "Ghent", "Turin", "Boston", "Leeds"]
    ),
    "email": lambda r: f"{r.choice(FIRST).lower()}.{r.choice(LAST).lower()}@example.com",
    "order_id": lambda r: f"{r.choice('ABCDEFGH')}-{r.randint(1000, 99999)}",
    "quantity": lambda r: r.randint(1, 40),
    "price": lambda r: round(r.uniform(1, 900), 2),
    "date": lambda r: f"20{r.randint(10, 29)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}",
    "phone": lambda r: f"+{r.randint(1, 99)} {r.randint(100, 999)} {r.randint(1000, 9999)}",
    "member": lambda r: r.choice([True, False]),
    "product": lambda r: r.choice(
        ["lamp", "chair", "desk", "bicycle", "kettle", "printer", "jacket", "camera", "backpack", "tent"]
    ),
    "status": lambda r: r.choice(["open", "paid", "shipped", "cancelled", "pending"]),
}


def forms(text: str, rng: random.Random) -> Iterator[str]:
    """Forms with their JSON: two invented ones, and one from the scalar members of a document where it has some."""
    for _ in range(2):
        keys = rng.sample(list(FIELDS), rng.randint(3, 9))
        yield form({key: FIELDS[key](rng) for key in keys}, rng)
    try:
        members = json.loads(text)
    except json.JSONDecodeError:
        return
    if isinstance(members, dict):
        flat = {k: v for k, v in members.items() if isinstance(v, str | int | float | bool) and len(str(v)) < 80}
        if len(flat) >= 2:
            yield form(flat, rng)


def form(members: dict[str, object], rng: random.Random) -> str:
    lines = "\n".join(f"{key}: {json.dumps(value).strip(chr(34))}" for key, value in members.items())
    ask = rng.choice(["Write this form as JSON.", "Turn the form into a JSON object.", "Extract the fields as JSON."])
    return exchange(f"{ask}\n\n{lines}", json.dumps(members, indent=2, ensure_ascii=False))


def quotes(text: str, rng: random.Random) -> Iterator[str]:
    """Passages of four to eight sentences with a sentence to quote, found by its words, first or last place."""
    sentences = [" ".join(s.split()) for s in re.split(r"(?<=[.!?])\s+", text)]
    sentences = [s for s in sentences if 30 < len(s) < 220]
    for start in range(0, len(sentences) - 8, 5):
        passage = sentences[start : start + rng.randint(4, 8)]
        yield quote(passage, rng)


def quote(passage: list[str], rng: random.Random) -> str:
    wanted = rng.randrange(len(passage))
    words = max(re.findall(r"[A-Za-z]{4,}", passage[wanted]) or ["it"], key=len)
    asks = {
        f'Quote the sentence that says "{words}".': f'The passage says: "{passage[wanted]}"',
        f"What does the passage say about {words.lower()}?": f'The passage says: "{passage[wanted]}"',
        "Quote the first sentence.": f'The first sentence is: "{passage[0]}"',
        "Repeat the passage.": " ".join(passage),
    }
    ask = rng.choice(list(asks))
    return exchange(f"Passage:\n{' '.join(passage)}\n\n{ask}", asks[ask])


def renames(text: str, rng: random.Random) -> Iterator[str]:
    """Functions of a file, each to be returned with one name changed."""
    for match in re.finditer(r"^def (\w+)\(.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL):
        body, name = match.group().rstrip(), match.group(1)
        if 80 < len(body) < 1500:
            new = f"{name}_{rng.choice(['v2', 'fast', 'new', 'checked', 'safe'])}"
            changed = re.sub(rf"\b{name}\b", new, body)
            yield exchange(f"Rename the function {name} to {new}.\n\n{body}", changed)


def write_streams(source: Path, folder: Path, encode, seed: int) -> dict[str, dict[str, int]]:
    """Token streams `DOMAIN.{train,held}.npy` (uint16) under `folder`; returns documents and tokens by domain."""
    rng, counts = random.Random(seed), {}
    folder.mkdir(parents=True, exist_ok=True)
    derived = derived_documents(source, rng)
    for domain in MIXTURE:
        texts = derived.get(domain) or list(documents(source / f"{domain}.jsonl"))
        rng.shuffle(texts)
        held = max(4, int(len(texts) * HELD_OUT))
        streams = {"held": encode(texts[:held]), "train": encode(texts[held:])}
        for part, tokens in streams.items():
            np.save(folder / f"{domain}.{part}.npy", tokens)
        counts[domain] = {"documents": len(texts), **{part: len(tokens) for part, tokens in streams.items()}}
    return counts


class Rows:
    """Training rows: a row depends on the seed, its index and the mixture alone, so training resumes anywhere."""

    def __init__(self, folder: Path, *, seed: int):
        self.streams = {d: np.load(folder / f"{d}.train.npy", mmap_mode="r") for d in MIXTURE}
        self.seed = seed

    def batch(self, first: int, count: int, length: int, mixture: dict[str, float]) -> np.ndarray:
        rows = [self.row(index, length, mixture) for index in range(first, first + count)]
        return np.stack(rows)  # [count, length + 1]

    def row(self, index: int, length: int, mixture: dict[str, float]) -> np.ndarray:
        rng = np.random.default_rng((self.seed, index))
        stream = self.streams[rng.choice(list(mixture), p=list(mixture.values()))]
        start = rng.integers(0, len(stream) - length - 1)
        return np.asarray(stream[start : start + length + 1], dtype=np.int64)
