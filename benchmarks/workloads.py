"""Prompts by workload: our own texts, and Spec-Bench-format files where a folder of them is given."""

import json
from itertools import chain, zip_longest
from pathlib import Path

CODE_TASKS = [
    "Write a Python function that returns the n-th Fibonacci number without recursion.",
    "Write a Python function that counts how often each word occurs in a text file.",
    "Write a Python class for a stack with push, pop, peek and a method that tells whether it is empty.",
    "Write a Python function that merges two sorted lists into one sorted list.",
    "Write a Python function that checks whether a string is a palindrome, ignoring case and punctuation.",
    "Write a Python script that reads a CSV file and prints the average of every numeric column.",
    "Write a Python function that finds all prime numbers below a limit with a sieve.",
    "Write a Python function that flattens a nested list of any depth.",
]

FORMS = [
    {"name": "Ada Berg", "age": 30, "city": "Oslo", "email": "ada.berg@example.com", "member": True},
    {"order_id": "C-48210", "product": "bicycle", "quantity": 2, "price": 419.5, "status": "paid"},
    {"name": "Liam Costa", "phone": "+44 207 5512", "date": "2021-08-14", "product": "tent", "quantity": 1},
    {"city": "Kyoto", "name": "Ines Ito", "age": 54, "status": "open", "order_id": "A-7731", "price": 12.75},
    {"email": "pavel.novak@example.com", "name": "Pavel Novak", "member": False, "date": "2019-02-03"},
    {"product": "printer", "price": 230.0, "quantity": 12, "status": "shipped", "city": "Ghent", "order_id": "F-90125"},
    {"name": "Olga Haddad", "age": 41, "phone": "+7 812 3344", "city": "Tunis", "member": True, "status": "pending"},
    {"date": "2026-11-05", "order_id": "B-1002", "name": "Sven Kumar", "product": "lamp", "price": 34.99},
]

PASSAGES = [
    (
        "The lighthouse at Carrow Point was built in 1871 from grey granite. Its keeper climbed two hundred steps "
        "every evening to light the lamp. In the great storm of 1903 the lantern room lost all of its windows. Today "
        "the building is a small museum with a view over the bay.",
        "windows",
    ),
    (
        "Bread dough rises because yeast turns sugar into gas. The gas is caught in a net of gluten that forms while "
        "the dough is kneaded. A warm kitchen makes the yeast work faster than a cold one. After baking, the net sets "
        "and keeps the shape of the loaf.",
        "gluten",
    ),
    (
        "The night train leaves the northern station at ten past nine. Passengers with bicycles must use the last "
        "carriage of the train. Breakfast is served from six o'clock in the dining car. The train reaches the coast "
        "shortly before eight in the morning.",
        "breakfast",
    ),
    (
        "Otters sleep on their backs in the water and often hold hands. A mother wraps her young in seaweed before she "
        "dives for food. They crack shells with a stone that they carry in a pouch of skin. A grown otter eats a "
        "quarter of its weight every day.",
        "seaweed",
    ),
    (
        "The village council met on Tuesday to talk about the old bridge. Engineers found that two of its pillars had "
        "sunk into the river bed. Repairs would take eight months and cost more than a new crossing. The council will "
        "decide in spring after hearing the farmers.",
        "pillars",
    ),
    (
        "Marta planted twelve apple trees behind the school. Her pupils watered them every Friday through the dry "
        "summer. Three trees were eaten by deer before the fence was finished. The other nine gave their first apples "
        "five years later.",
        "fence",
    ),
    (
        "Glass is made by melting sand with soda and lime. The mixture is heated to fifteen hundred degrees in a tank "
        "furnace. Sheets are poured onto a bath of liquid tin to make them perfectly flat. Slow cooling keeps the "
        "glass from cracking under its own tension.",
        "cooling",
    ),
    (
        "The post office in Hallby closes at noon on Saturdays. Parcels that were not delivered wait there for seven "
        "days. A written notice is needed to collect one for a neighbour. After a week the parcel goes back to the "
        "sender.",
        "notice",
    ),
]
QUESTIONS = [
    "Repeat the passage.",
    'Quote the sentence that says "{word}".',
    "What does the passage say about {word}?",
    "Quote the first sentence.",
]

FUNCTIONS = [
    (
        "mean",
        "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n"
        "    if not values:\n        raise ValueError('mean of nothing')\n    return total / len(values)",
    ),
    (
        "clamp",
        "def clamp(value, low, high):\n    if low > high:\n        return clamp(value, high, low)\n"
        "    if value < low:\n        return low\n    return high if value > high else value",
    ),
    (
        "chunks",
        "def chunks(items, size):\n    start = 0\n    while start < len(items):\n"
        "        yield items[start : start + size]\n        start += size",
    ),
    (
        "gcd",
        "def gcd(a, b):\n    if b == 0:\n        return abs(a)\n    remainder = a % b\n    return gcd(b, remainder)",
    ),
    (
        "read_lines",
        "def read_lines(path, encoding='utf-8'):\n    with open(path, encoding=encoding) as handle:\n"
        "        lines = handle.read().splitlines()\n    return [line for line in lines if line.strip()]",
    ),
    (
        "depth",
        "def depth(tree):\n    if tree is None:\n        return 0\n    left = depth(tree.left)\n"
        "    right = depth(tree.right)\n    return 1 + max(left, right)",
    ),
    (
        "transpose",
        "def transpose(rows):\n    columns = []\n    for index in range(len(rows[0])):\n"
        "        columns.append([row[index] for row in rows])\n    return columns",
    ),
    (
        "count_vowels",
        "def count_vowels(text):\n    count = 0\n    for letter in text.lower():\n        if letter in 'aeiou':\n"
        "            count += 1\n    return count",
    ),
]

STORIES = [
    "Tell a fairy tale about a fox who learns to read.",
    "Tell a story about a miller's daughter and a river that could speak.",
    "Once upon a time there was a clockmaker who could not sleep.",
    "Tell a short story about two brothers who find a golden key in the snow.",
    "Once there was a small dragon who was afraid of fire.",
    "Tell a tale of a king who gave away his crown.",
    "Tell a story about a girl who sails to the moon in a paper boat.",
    "Once upon a time an old woman planted a stone in her garden.",
]


def own_prompts() -> dict[str, list[str]]:
    """The built-in prompts by workload."""
    return {
        "code": CODE_TASKS,
        "json": [f"Write this form as JSON.\n\n{form_lines(form)}" for form in FORMS],
        "retrieval": [
            f"Passage:\n{passage}\n\n{QUESTIONS[index % len(QUESTIONS)].format(word=word)}"
            for index, (passage, word) in enumerate(PASSAGES)
        ],
        "editing": [f"Rename the function {name} to {name}_v2.\n\n{body}" for name, body in FUNCTIONS],
        "creative": STORIES,
    }


def form_lines(form: dict[str, object]) -> str:
    return "\n".join(f"{key}: {json.dumps(value).strip(chr(34))}" for key, value in form.items())


# Categories of Spec-Bench, HumanEval, GSM8K and reasoning files by workload.
CATEGORIES = {
    "humaneval": "code",
    "coding": "code",
    "extraction": "json",
    "rag": "retrieval",
    "gsm8k": "maths",
    "math": "maths",
    "math_reasoning": "maths",
    "reasoning": "reasoning",
    "reasoning_trace": "reasoning",
    "qa": "chat",
    "roleplay": "chat",
    "stem": "chat",
    "humanities": "chat",
    "translation": "translation",
    "summarization": "summary",
    "writing": "creative",
}


def file_prompts(folder: Path) -> dict[str, list[str]]:
    """First turns of every question in the folder's .jsonl files, by workload; categories take turns in each."""
    categories: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            question = json.loads(line)
            categories.setdefault(question["category"], []).append(question["turns"][0])
    by_workload: dict[str, list[list[str]]] = {}
    for category, texts in categories.items():
        by_workload.setdefault(CATEGORIES[category], []).append(texts)
    return {workload: in_turn(lists) for workload, lists in by_workload.items()}


def in_turn(lists: list[list[str]]) -> list[str]:
    return [text for text in chain.from_iterable(zip_longest(*lists)) if text is not None]


def collect(names: list[str], folder: Path | None) -> dict[str, list[str]]:
    """All prompts of each workload named, ours and the folder's in turn; every workload where none is named."""
    own, read = own_prompts(), file_prompts(folder) if folder and folder.is_dir() else {}
    known = list(dict.fromkeys([*own, *read]))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no prompts for {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: in_turn([own.get(name, []), read.get(name, [])]) for name in names or known}
