"""Which prompts make a workload."""

import json
from pathlib import Path

import pytest
from workloads import CATEGORIES, SPEC_BENCH, collect, own_prompts, suite

from foredraft import ConfigError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "prompts"
JUDGED = ["code", "json", "maths", "reasoning"]


@pytest.fixture
def folder(tmp_path) -> Path:
    asked = {
        "humaneval": ["def f():"],
        "gsm8k": ["How many?", "How few?"],
        "math_reasoning": ["How much?"],
        "coding": ["Write code."],
        "writing": ["Write a poem."],
        "rag": ["Passage."],
        "new_part": ["Something else."],
    }
    lines = [json.dumps({"category": c, "turns": [text, "more"]}) for c, texts in asked.items() for text in texts]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_our_own_suite_has_what_drafters_are_judged_by():
    own = own_prompts()
    assert {*JUDGED, "chat", "translation", "creative", "retrieval", "editing"} <= set(own)
    assert all(len(set(prompts)) == 8 for prompts in own.values())
    assert suite([], None) == own


def test_a_folder_replaces_the_workloads_it_has(folder):
    prompts = suite([], folder)
    assert prompts["code"] == ["def f():"]
    assert prompts["maths"] == ["How many?", "How much?", "How few?"]
    assert prompts["chat"] == ["Write code.", "Write a poem."]
    assert (prompts["rag"], prompts["new_part"]) == (["Passage."], ["Something else."])
    assert prompts["json"] == own_prompts()["json"]


def test_collect_still_mixes_both(folder):
    prompts = collect(["code", "retrieval", "creative"], folder)
    assert prompts["code"][:3] == [own_prompts()["code"][0], "def f():", own_prompts()["code"][1]]
    assert "Write code." in prompts["code"] and "Passage." in prompts["retrieval"]
    assert "Write a poem." in prompts["creative"]


def test_unknown_workloads_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no prompts for cooking; there are code"):
        suite(["cooking"], None)
    with pytest.raises(ConfigError, match="no .jsonl files"):
        suite([], tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no prompts at {SHARED}")
def test_shared_prompts_are_all_mapped():
    lines = [json.loads(line) for path in SHARED.glob("*.jsonl") for line in path.read_text().splitlines()]
    categories = {line["category"] for line in lines}
    assert categories <= set(SPEC_BENCH) and categories <= set(CATEGORIES)
    prompts = suite([], SHARED)
    assert {name: len(prompts[name]) for name in ("code", "maths", "qa", "rag", "chat")} == {
        "code": 82,
        "maths": 240,
        "qa": 40,
        "rag": 40,
        "chat": 40,
    }
