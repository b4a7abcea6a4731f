from foredraft.cli.demo import drafting
from foredraft.cli.demo_prompts import DEMO_PROMPTS


def test_demo_ends_in_a_table_of_all_prompts(run, model):
    flags = ["--model", model, "--draft-model", model, "--dtype", "fp32", "--max-new-tokens", 8, "--ignore-eos"]
    code, out, err = run("demo", *flags)
    assert (code, err) == (0, "")
    rows = {line.strip().split("  ")[0]: line for line in out.splitlines()[-7:] if line.strip()}
    assert [rows[prompt.title].split()[-1] for prompt in DEMO_PROMPTS] == ["yes"] * 4
    assert all(prompt.speculation.method in rows[prompt.title] for prompt in DEMO_PROMPTS)
    assert out.count("identical: all 8 tokens") == 4
    assert all(prompt.text in out for prompt in DEMO_PROMPTS)


def test_demo_tells_when_its_drafter_is_not_there(run, model):
    code, _, said = run("demo", "--model", model, "--draft-model", "no-such-model", "--max-new-tokens", 2)
    assert code == 2 and "no-such-model" in said


def test_demo_drafts_with_trained_heads_where_the_target_has_them():
    of_tiny = [drafting(prompt, "tiny", None).method for prompt in DEMO_PROMPTS]
    assert of_tiny == ["ngram", "dflash", "suffix", "mtp"]
    for target, draft_model in (("elsewhere", None), ("tiny", "my-draft")):
        assert [drafting(prompt, target, draft_model).method for prompt in DEMO_PROMPTS][1::2] == [
            "draft_model",
            "suffix",
        ]
    assert [drafting(prompt, "tiny", "my-draft").model for prompt in DEMO_PROMPTS] == [None, "my-draft", None, None]
