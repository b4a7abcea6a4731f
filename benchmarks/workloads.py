"""Prompts by workload: our own texts, and Spec-Bench-format files where a folder of them is given."""

import json
from collections.abc import Mapping
from itertools import chain, zip_longest
from pathlib import Path

from foredraft.core.errors import require

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

MATHS = [
    "A baker sells 24 rolls in the morning and half as many in the afternoon. Each roll costs 3 coins. How many coins "
    "does she take in that day?",
    "A train leaves at 14:20 and arrives at 17:05. It stops for 15 minutes on the way. How many minutes does it move?",
    "Nils has three boxes with 18 marbles each. He gives away 20 marbles and shares the rest evenly with his sister. "
    "How many marbles does each of them have?",
    "A tank holds 540 litres. One pump fills 12 litres a minute, another 6 litres a minute. How long do both together "
    "need to fill the empty tank?",
    "A coat costs 80 euros. It is made 25 percent cheaper, then 10 euros more are taken off. What is the price now?",
    "Five friends share the cost of a boat. Two more join, and each now pays 8 euros less. What does the boat cost?",
    "A field is 45 metres long and 20 metres wide. A fence post stands every 5 metres around it. How many posts are "
    "there?",
    "Lena reads 15 pages on Monday and each day 5 pages more than the day before. How many pages has she read after "
    "Friday?",
]

REASONING = [
    "How many whole numbers from 1 to 200 can be divided by 3 or by 7 but not by both? Think step by step.",
    "Three boxes hold apples, pears and both. Every label is wrong. You may take one fruit from one box. Explain step "
    "by step how to find out what each box holds.",
    "Find all pairs of whole numbers x and y with x * y = x + y + 11. Show every step.",
    "A clock shows 3:40. What is the smaller angle between its hands? Reason step by step.",
    "Prove that the sum of two odd numbers is even, then that the product of two odd numbers is odd.",
    "Five people stand in a row. Ana is not at an end, Ben is left of Cleo, and Dan is next to Eva. How many orders "
    "are possible? Think step by step.",
    "A ladder of 5 metres leans on a wall with its foot 3 metres away. The foot slips 1 metre further. How far does "
    "the top slide? Work it out step by step.",
    "What is the last digit of 7 to the power of 2026? Explain your reasoning step by step.",
]

CHATS = [
    "What should I look at before I buy a used bicycle?",
    "Explain to a child why the sky is blue.",
    "I have eggs, rice and spinach. What can I cook in twenty minutes?",
    "What is the difference between weather and climate?",
    "Give me five tips for sleeping better.",
    "Pretend you are a museum guide and show me around a room of old maps.",
    "How do vaccines work?",
    "I forgot a friend's birthday. What should I write to her?",
]

SENTENCES = [
    ("German", "Das Museum ist am Montag geschlossen, aber der Garten bleibt offen."),
    ("French", "Le marché commence à huit heures et finit avant midi."),
    ("Spanish", "Mi abuela guarda las cartas en una caja de madera azul."),
    ("German", "Wenn es morgen regnet, fahren wir mit dem Zug statt mit dem Rad."),
    ("Italian", "Il treno per la costa parte ogni mattina dal secondo binario."),
    ("French", "Les enfants ont construit un pont avec des pierres et du bois."),
    ("Spanish", "El pescador vendió tres peces y volvió a casa antes de la noche."),
    ("Dutch", "De brug wordt in het voorjaar gerepareerd door vier ingenieurs."),
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
        "maths": MATHS,
        "reasoning": REASONING,
        "chat": CHATS,
        "translation": [f"Translate this {language} sentence into English: {text}" for language, text in SENTENCES],
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


# The same files as Spec-Bench divides them: its own parts, MT-bench as one of them, whatever its question asks for.
SPEC_BENCH = {
    "humaneval": "code",
    "gsm8k": "maths",
    "math_reasoning": "maths",
    "reasoning_trace": "reasoning",
    "translation": "translation",
    "summarization": "summary",
    "qa": "qa",
    "rag": "rag",
} | dict.fromkeys(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
    "chat",
)


def file_prompts(folder: Path, workload_of: Mapping[str, str] = CATEGORIES) -> dict[str, list[str]]:
    """First turns of every question in the folder's .jsonl files, by workload; categories take turns in each.

    A category that `workload_of` does not name is a workload of its own.
    """
    categories: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            question = json.loads(line)
            categories.setdefault(question["category"], []).append(question["turns"][0])
    by_workload: dict[str, list[list[str]]] = {}
    for category, texts in categories.items():
        by_workload.setdefault(workload_of.get(category, category), []).append(texts)
    return {workload: in_turn(lists) for workload, lists in by_workload.items()}


def in_turn(lists: list[list[str]]) -> list[str]:
    return [text for text in chain.from_iterable(zip_longest(*lists)) if text is not None]


def collect(names: list[str], folder: Path | None) -> dict[str, list[str]]:
    """All prompts of each workload named, ours and the folder's in turn; every workload where none is named."""
    require_questions(folder)
    own, read = own_prompts(), file_prompts(folder) if folder else {}
    known = list(dict.fromkeys([*own, *read]))
    return {name: in_turn([own.get(name, []), read.get(name, [])]) for name in chosen(names, known)}


def suite(names: list[str], folder: Path | None) -> dict[str, list[str]]:
    """As `collect`, by Spec-Bench's own division: the folder's prompts where it has a workload, ours elsewhere."""
    require_questions(folder)
    prompts = own_prompts() | (file_prompts(folder, SPEC_BENCH) if folder else {})
    return {name: prompts[name] for name in chosen(names, list(prompts))}


def require_questions(folder: Path | None) -> None:
    """Raises `ConfigError` for a folder without any."""
    found = folder is None or bool(list(folder.glob("*.jsonl")))
    require(found, f"no .jsonl files in {folder}; give a folder of questions in Spec-Bench's format")


def chosen(names: list[str], known: list[str]) -> list[str]:
    """`names`, or all that are known where none is given. Raises `ConfigError` for others."""
    unknown = [name for name in names if name not in known]
    require(not unknown, f"no prompts for {', '.join(unknown)}; there are {', '.join(known)}")
    return names or known
