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


def test_demo_tells_when_its_drafter_does_not_fit(run, model, other_vocabulary):
    code, _, said = run("demo", "--model", model, "--draft-model", other_vocabulary, "--max-new-tokens", 2)
    assert code == 2 and "257" in said and "260" in said
