"""The benchmark of the policy: what it judges, by hand-made figures, and a moment of it on a random model."""

import json
import re
from dataclasses import replace

import policy
import pytest
from byte_model import save_byte_model
from drafters import changes_in
from policy import command, follow, for_cells, for_practice, main
from policy_contestants import (
    AGAIN,
    AUTO,
    SETTINGS,
    Cell,
    Sample,
    Turn,
    configs_of,
    make_engines,
    require_room,
    settings_of,
    sweeps,
    take_turns,
    write_cell,
)
from policy_figures import findings, judge
from policy_plot import as_markdown, by_concurrency, plot, sentences

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.errors import SlotsError
from foredraft.evaluation.turns import PLAIN

CODE, CHAT = (Cell(workload=name, concurrency=1, temperature=0.0) for name in ("code", "chat"))
PROMPTS = {"code": [[5, 6, 7, 5, 6], [8, 9]], "chat": [[10, 11, 12]]}


def turn(cell: Cell, number: int = 0, unlike: int = 0, **speeds: float) -> Turn:
    """A turn in which everybody wrote 100 tokens at these speeds."""
    samples = {name: Sample(tokens=100, seconds=100 / speed, rounds=50) for name, speed in speeds.items()}
    samples["ngram"] = Sample(tokens=100, seconds=100 / speeds["ngram"], rounds=50, unlike_plain=unlike)
    return Turn(cell=cell, round=number, seed=0, order=tuple(speeds), requests=4, samples=samples)


def holds(turns: list[Turn]) -> dict[str, bool]:
    return {name: verdict["holds"] for name, verdict in judge(turns).items()}


def test_all_verdicts_hold_where_auto_follows_the_best():
    turns = [
        turn(CODE, plain=100, ngram=150, mtp=120, auto=148),
        turn(CHAT, plain=100, ngram=70, mtp=90, auto=98),
    ]
    assert holds(turns) == {"near_best": True, "above_plain": True, "mix": True}
    verdicts = judge(turns)
    # Plain decoding is a fixed setting too, and the best of them where every draft costs time.
    assert verdicts["near_best"]["worst"][0]["cell"] == "chat, 1 at once, temperature 0"
    assert verdicts["near_best"]["worst"][0]["against"] == PLAIN
    assert verdicts["near_best"]["worst"][1]["median"] == pytest.approx(148 / 150)


def test_one_cell_far_from_its_best_setting_fails_the_first_verdict():
    turns = [
        turn(CODE, plain=100, ngram=150, mtp=120, auto=142),
        turn(CHAT, plain=100, ngram=70, mtp=90, auto=100),
    ]
    assert holds(turns) == {"near_best": False, "above_plain": True, "mix": True}
    near = judge(turns)["near_best"]
    assert (near["cells"], near["hold"], near["worst"][0]["against"]) == (2, 1, "ngram")
    assert near["worst"][0]["median"] == pytest.approx(142 / 150)


def test_plain_decoding_beside_itself_is_no_setting_but_the_noise():
    def turn_of(cell: Cell, again: float) -> Turn:
        own = turn(cell, plain=100, ngram=90, auto=100)
        return replace(own, samples={**own.samples, AGAIN: Sample(tokens=100, seconds=100 / again, rounds=100)})

    found = findings([turn_of(CODE, 130), turn_of(CHAT, 98)])
    assert found["noise"] == {"limit": 0.97, "cells": 2, "near": 1, "least": 0.98, "most": 1.3}
    assert [cell["best_fixed"] for cell in found["cells"]] == [PLAIN, PLAIN]
    assert "noise: plain decoding beside itself 0.98 to 1.30, within 0.97 in 1 of 2 cells" in sentences(found)
    assert findings([turn(CODE, plain=100, ngram=90, auto=100)])["noise"] is None


def test_one_cell_below_plain_fails_the_second_verdict():
    turns = [
        turn(CODE, plain=100, ngram=150, mtp=120, auto=150),
        turn(CHAT, plain=100, ngram=70, mtp=90, auto=96.5),
    ]
    assert holds(turns) == {"near_best": True, "above_plain": False, "mix": True}
    assert judge(turns)["above_plain"]["worst"][0] == {
        "cell": "chat, 1 at once, temperature 0",
        "against": PLAIN,
        "median": pytest.approx(0.965),
        "p25": pytest.approx(0.965),
        "p75": pytest.approx(0.965),
    }


def test_a_single_setting_that_is_faster_over_everything_fails_the_third_verdict():
    # By their mean ratio auto and mtp are 1.4 and 1.385; in seconds for the same tokens mtp is ahead.
    turns = [
        turn(CODE, plain=100, ngram=150, mtp=147, auto=150),
        turn(CHAT, plain=10, ngram=7, mtp=13.2, auto=13),
    ]
    assert holds(turns) == {"near_best": True, "above_plain": True, "mix": False}
    mix = judge(turns)["mix"]
    assert mix["against"] == "mtp"
    assert mix["median"] == pytest.approx((100 / 147 + 100 / 13.2) / (100 / 150 + 100 / 13))


def test_rounds_are_compared_within_themselves():
    """The machine is half as fast in the second round; the ratios are not."""
    turns = [
        turn(CODE, 0, plain=100, ngram=150, auto=150),
        turn(CODE, 1, plain=50, ngram=75, auto=72),
        turn(CODE, 2, plain=100, ngram=150, auto=144),
    ]
    worst = judge(turns)["near_best"]["worst"][0]
    assert [worst[part] for part in ("p25", "median", "p75")] == pytest.approx([0.96, 0.96, 0.98])


def test_failing_cells_are_all_named():
    cells = [Cell(workload=f"w{index}", concurrency=1, temperature=0.0) for index in range(5)]
    turns = [turn(cell, plain=100, ngram=100, auto=80 + index) for index, cell in enumerate(cells)]
    assert len(judge(turns)["near_best"]["worst"]) == 5
    turns = [turn(cell, plain=100, ngram=100, auto=100 + index) for index, cell in enumerate(cells)]
    assert len(judge(turns)["near_best"]["worst"]) == 3


def test_without_auto_there_is_no_verdict():
    found = findings([turn(CODE, plain=100, ngram=150)])
    assert judge([turn(CODE, plain=100, ngram=150)]) is None and found["verdicts"] is None
    assert sentences(found) == ["no verdict: 'auto' took no part"]


def test_choices_of_the_policy_are_shares_of_its_rounds():
    turns = [turn(CODE, plain=100, ngram=90, auto=100), turn(CHAT, plain=100, ngram=90, auto=100)]
    for one, counts in zip(turns, ({"ngram 6": 30, "plain": 10}, {"plain": 40}), strict=True):
        one.samples[AUTO] = replace(one.samples[AUTO], choices=counts)
    found = findings(turns)
    assert found["choices"] == {"plain": 0.625, "ngram 6": 0.375}
    assert [cell["choices"] for cell in found["cells"]] == [{"ngram 6": 0.75, "plain": 0.25}, {"plain": 1.0}]
    assert sentences(found)[-1] == "rounds of auto by way to draft: plain 62%, ngram 6 38%"


def test_texts_that_differ_fail_only_in_fp32(capsys):
    found = findings([turn(CODE, plain=100, ngram=150, unlike=2), turn(CHAT, plain=100, ngram=90, unlike=1)])
    assert found["unlike_plain"] == {PLAIN: 0, "ngram": 3}
    assert policy.verdict(found["unlike_plain"], "float32") == 1
    assert policy.verdict(found["unlike_plain"], "bfloat16") == 0
    assert policy.verdict({PLAIN: 0, "ngram": 0}, "float32") == 0
    assert "{'ngram': 3}" in capsys.readouterr().out


def test_the_tables_and_the_picture_show_every_contestant(tmp_path):
    late = Cell(workload="code", concurrency=16, temperature=0.0)
    turns = [
        turn(CODE, plain=100, ngram=150, auto=120),
        turn(CHAT, plain=100, ngram=50, auto=100),
        turn(late, plain=100, ngram=80, auto=101),
    ]
    place = {"target": "tiny", "dtype": "float32", "device": "cpu", "threads": 1}
    result = place | {"contestants": {PLAIN: {}, "ngram": {}, AUTO: {}}} | findings(turns)
    assert "| ngram | 1.00 | 0.80 |" in as_markdown(result) and "| auto | 1.10 | 1.01 |" in as_markdown(result)
    assert [cell["best_fixed"] for cell in result["cells"]] == ["ngram", PLAIN, PLAIN]
    assert {concurrency: len(rows) for concurrency, rows in by_concurrency(result["cells"]).items()} == {1: 2, 16: 1}
    spoken = "\n".join(sentences(result))
    assert spoken.startswith("FAILS: at least 0.95 of the best fixed setting in every cell: 2 of 3")
    assert "holds: at least 0.97 of plain decoding in every cell: 3 of 3" in spoken
    pytest.importorskip("matplotlib")
    assert plot(result, tmp_path / "policy.svg")
    assert (tmp_path / "policy.svg").stat().st_size > 1000


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


def load(model: str, **settings) -> Engine:
    config = SpeculationConfig.from_dict(settings)
    return Engine.from_pretrained(model, speculation=config, dtype="fp32", threads=1, cache_tokens=1024, max_batch=8)


def test_a_closed_loop_keeps_its_requests_in_flight(model):
    engine, in_flight, step = load(model, method="none"), [], Engine.step

    def watched(self, **options):
        events = step(self, **options)
        ended = sum(output is not None for *_, output in events)
        in_flight.append((len(self.scheduler.running) + ended, len(self.scheduler.waiting)))
        return events

    engine.step = watched.__get__(engine)
    lengths = (3, 9, 5, 7, 4)
    sampling = [SamplingParams(max_new_tokens=length, ignore_eos=True) for length in lengths]
    seconds, outputs = write_cell(engine, 2, [[5, 6]] * 5, sampling)
    assert [len(output.token_ids) for output in outputs] == list(lengths) and seconds > 0
    assert max(running for running, _ in in_flight) == 2
    assert all(running == 2 for running, waiting in in_flight if waiting)
    write_cell(engine, 5, [[5, 6]] * 5, sampling)
    assert max(running for running, _ in in_flight) == 5


def test_turns_rotate_and_share_prompts_and_seeds(model):
    engines = {PLAIN: load(model), "ngram": load(model, method="ngram"), "suffix": load(model, method="suffix")}
    asked = {}
    for name, engine in engines.items():
        engine.generate = recorded(asked.setdefault(name, []), engine.generate)
    cells = sweeps(["code", "chat"], (1, 3), (0.0, 1.0))
    sampling = SamplingParams(max_new_tokens=4, seed=7)
    turns = list(take_turns(engines, PROMPTS, cells, sampling, rounds=2, least_requests=2))
    assert [str(one.cell) for one in turns[:3]] == [
        "code, 1 at once, temperature 0",
        "chat, 1 at once, temperature 0",
        "code, 1 at once, temperature 1",
    ]
    assert [one.order[0] for one in turns[:4]] == [PLAIN, "ngram", "suffix", PLAIN]
    assert turns[0].order == (PLAIN, "ngram", "suffix") and turns[8].order[0] == "ngram"
    assert all(list(one.samples) == list(engines) for one in turns)
    assert asked[PLAIN] == asked["ngram"] == asked["suffix"]
    assert [one.requests for one in turns[:8]] == [2, 2, 2, 2, 3, 3, 3, 3]
    seeds = [params.seed for _, sampling in asked[PLAIN] for params in sampling]
    assert seeds == list(range(7, 7 + 40))
    assert [len(prompts) for prompts, _ in asked[PLAIN][:9]] == [1] * 8 + [3]  # as many at a time as are in flight
    written = iter([prompt for prompts, _ in asked[PLAIN] for prompt in prompts])
    by_turn = [[next(written) for _ in range(one.requests)] for one in turns]
    of_code = [prompt for one, its in zip(turns, by_turn, strict=True) if one.cell.workload == "code" for prompt in its]
    known = PROMPTS["code"]
    assert of_code == [known[place % len(known)] for place in range(len(of_code))]  # none again before all others
    assert by_turn[1] == PROMPTS["chat"] * 2
    assert [params.temperature for _, its in asked[PLAIN][:8] for params in its] == [0.0] * 4 + [1.0] * 4
    assert not any(sample.unlike_plain for one in turns for sample in one.samples.values())


def test_a_turn_has_several_requests_for_each_one_in_flight(model):
    engine, asked = load(model), []
    engine.generate = recorded(asked, engine.generate)
    cells = sweeps(["code"], (1, 3), (0.0,))
    sampling = SamplingParams(max_new_tokens=2, seed=0)
    turns = list(take_turns({PLAIN: engine}, PROMPTS, cells, sampling, rounds=1, least_requests=4, queue=2))
    assert [one.requests for one in turns] == [4, 6]
    assert [len(prompts) for prompts, _ in asked] == [2, 2, 6]


def recorded(calls: list, generate):
    def wrapper(prompts, sampling):
        calls.append((prompts, sampling))
        return generate(prompts, sampling)

    return wrapper


def test_what_is_known_is_kept_after_every_sweep(model):
    engines = {PLAIN: load(model), "ngram": load(model, method="ngram")}
    cells, kept = sweeps(["code", "chat"], (1,), (0.0, 1.0)), []
    turns = take_turns(engines, PROMPTS, cells, SamplingParams(max_new_tokens=4, seed=0), rounds=2, least_requests=1)
    found = follow(turns, cells, 2, engines, kept.append)
    assert [len(partial["turns"]) for partial in kept] == [2, 4, 6, 8]
    assert [partial["complete"] for partial in kept] == [False, False, False, True]
    assert found is kept[-1] and found["policy_reports"] == [{}] * 4
    engines[AUTO] = engines.pop("ngram")
    assert policy.policy_report(engines)["experiments"] == 0


def test_what_is_practised_is_not_measured():
    texts = {"code": [[place] for place in range(9)], "chat": [[1], [2]], "json": [[3]]}
    practice, cells = for_practice(texts), for_cells(texts)
    assert practice["code"] == [[3], [7]] and cells["code"] == [[0], [1], [2], [4], [5], [6], [8]]
    assert (practice["chat"], cells["chat"]) == ([[2]], [[1]])
    assert practice["json"] == cells["json"] == [[3]]  # the only one


@pytest.mark.parametrize(("prompts", "practised"), [(4, 4), (36, 12)])
def test_longer_cells_need_no_longer_practice(model, tmp_path, monkeypatch, prompts, practised):
    asked = []

    def turns(engines, prompts, cells, sampling, *, rounds, least_requests, queue):
        asked.append(least_requests)
        return take_turns(engines, prompts, cells, sampling, rounds=rounds, least_requests=1)

    monkeypatch.setattr(policy, "take_turns", turns)
    options = {"workloads": "chat", "concurrencies": (1,), "temperatures": (0.0,), "max_new_tokens": 2}
    main(output=tmp_path / "p.json", target=model, contestants="ngram", prompts=prompts, rounds=1, **options)
    assert asked == [practised, prompts]


def test_a_cache_that_cannot_hold_a_cell_is_refused(model):
    engines = {PLAIN: load(model), "ngram": load(model, method="ngram", num_speculative_tokens=64)}
    sampling = SamplingParams(max_new_tokens=100, seed=0)
    require_room(engines, {"chat": [[5] * 50] * 4}, sampling, 4)
    with pytest.raises(SlotsError, match="--cache-tokens is 1024; ngram at 5 at once may need 1070"):
        require_room(engines, {"chat": [[5] * 50] * 8}, sampling, 5)
    assert all(engine.scheduler.idle for engine in engines.values())


def test_contestants_are_valid_and_forget_past_outputs():
    settings = settings_of([], {}, "some-draft")
    assert list(settings) == list(SETTINGS) and settings["draft model"]["model"] == "some-draft"
    configs = configs_of(settings)
    assert configs[PLAIN].method == "none" and configs[AUTO].method == "auto"
    assert [configs[name].suffix_decoding_max_cached_requests for name in ("suffix", AUTO)] == [0, 0]
    assert list(settings_of(["mtp"], {}, "d")) == [PLAIN, "mtp"]
    wide = settings_of(["wide", "mtp"], changes_in('{"wide": {"method": "ngram", "tree_size": 8}}'), "d")
    assert list(wide) == [PLAIN, "wide", "mtp"]


def test_everybody_has_an_engine_and_those_without_are_left_out(model):
    configs = configs_of(settings_of(["ngram", "medusa", "new"], {"new": {"method": "eagle9"}}, "d"))
    engines, left_out = make_engines(configs, lambda config: Engine.from_pretrained(model, speculation=config))
    assert {name: engine.speculation.method for name, engine in engines.items()} == {PLAIN: "none", "ngram": "ngram"}
    assert set(left_out) == {"medusa", "new"} and "'eagle9' is not known" in left_out["new"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--contestants eagle9", "contestant 'eagle9' is not known"),
        ("--contestants medusa", "contestant 'medusa' cannot take part"),
        ("--settings [1]", "--settings is"),
        ('--settings {"plain":{"method":"ngram"}}', "--settings names 'plain'"),
        ('--settings {"ngram":{"tree_sise":3}}', "contestant 'ngram': .*tree_sise"),
        ('--settings {"new":{}}', "contestant 'new' has no method"),
        ('--settings {"new":{"method":"eagle9"}}', "contestant 'new' cannot take part: .*eagle9"),
        ("--workloads cooking", "--workloads has .*cooking.*; known: code"),
        ("--workloads code,code", "names a value twice"),
        ("--concurrencies 0", "--concurrencies is 0"),
        ("--concurrencies 64", "--cache-tokens is 8192; plain at 64 at once may need"),
        ("--temperatures -1", "temperature is -1"),
        ("--rounds 0", "--rounds is 0"),
        ("--practice -1", "--practice is -1"),
        ("--prompts 0", "--prompts is 0"),
        ("--queue 0", "--queue is 0"),
        ("--max-new-tokens 250", "--max-new-tokens is 250 and --longest-prompt 256; .* fit a context of 256"),
        ("--threads none", "threads"),
        ("--no-such-option 1", "no-such-option"),
    ],
)
def test_mistakes_are_one_line(model, tmp_path, capsys, arguments, message):
    output = tmp_path / "x.json"
    code = command(f"--output {output} --target {model} --threads 1 --dtype fp32 {arguments}".split())
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("error: ") and "Traceback" not in err
    assert not output.exists()
    assert re.search(message, last)


def test_a_short_run_writes_everything(model, tmp_path, capsys):
    output, tables = tmp_path / "new" / "policy.json", tmp_path / "policy.md"
    code = main(
        output=output,
        target=model,
        draft_model=model,
        contestants="ngram,suffix,draft model",
        settings='{"draft model": {"num_speculative_tokens": 2}}',
        workloads="code,chat",
        concurrencies=(1, 2),
        prompts=2,
        max_new_tokens=6,
        dtype="fp32",
        threads=1,
        cache_tokens=1024,
        markdown=tables,
    )
    out, err = capsys.readouterr()
    assert code == 0 and "not plain decoding's: none" in out and "no verdict: 'auto' took no part" in out
    record = json.loads(output.read_text())
    assert {"command", "commit", "versions", "hardware", "seed", "threads", "prompts_sha256"} <= set(record)
    assert record["complete"] and record["verdicts"] is None and record["dtype"] == "float32"
    assert list(record["contestants"]) == list(record["mix"]) == [PLAIN, "ngram", "suffix", "draft model"]
    assert record["contestants"]["draft model"]["num_speculative_tokens"] == 2
    assert len(record["cells"]) == 8 and len(record["turns"]) == 16
    drafted = [cell["contestants"]["draft model"]["tau"] for cell in record["cells"]]
    assert min(drafted) > 1.5  # a draft model that is the target itself is never wrong
    assert tables.read_text() == as_markdown(record) and tables.read_text() in out
    assert output.with_suffix(".svg").exists() or "matplotlib is not installed" in err


def test_a_short_run_with_auto_judges_it(model, tmp_path, capsys):
    output = tmp_path / "policy.json"
    code = main(
        output=output,
        target=model,
        contestants="ngram,auto",
        settings='{"auto": {"drafters": "ngram, suffix"}}',  # with one drafter alone nothing would be chosen
        workloads="code,chat",
        concurrencies=(1, 3),
        temperatures=(0.0,),
        prompts=1,
        max_new_tokens=6,
        rounds=1,
        dtype="fp32",
        threads=1,
        cache_tokens=1024,
    )
    record, out = json.loads(output.read_text()), capsys.readouterr().out
    assert code == 0 and "rounds of auto by way to draft: " in out
    assert {name: record["verdicts"][name]["cells"] for name in ("near_best", "above_plain")} == {
        "near_best": 4,
        "above_plain": 4,
    }
    assert record["verdicts"]["mix"]["against"] in (PLAIN, "ngram")
    assert sum(record["choices"].values()) == pytest.approx(1)
