"""Numbers of the drafter report, on drafts whose fate is known."""

import json
from io import StringIO

import pytest
from counting import counting_engine, scripted
from rich.console import Console

from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import ConfigError, PromptError
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.evaluation.drafter_report import REPORT_FILE, measure, report_drafter, report_drafters, shapes
from foredraft.evaluation.report import Report, write_record
from foredraft.evaluation.report_table import report_table
from foredraft.evaluation.turns import PLAIN, Contestant

# After the prompt [0] the target writes 1, 2, 3 ...: three right, one right, none, one right.
SCRIPT = [[1, 2, 3], [5, 60, 61], [60, 61, 62], [8, 9, 10]]
KNOWN = {"max_new_tokens": 9, "temperatures": (0.0,), "rounds": 1}
LOOKUP = {"ngram": SpeculationConfig(method="ngram")}


@pytest.fixture
def script(monkeypatch) -> dict[str, SpeculationConfig]:
    return {"script": scripted(monkeypatch, "script", SCRIPT, num_speculative_tokens=3)}


def shown(report: Report) -> str:
    screen = StringIO()
    Console(file=screen, width=200).print(report_table(report))
    return screen.getvalue()


def test_acceptance_and_tau_of_known_drafts(script):
    row = report_drafters(counting_engine(), {"right": [[0]]}, script, **KNOWN).row("right", 0, "script")
    assert (row.counts.rounds, row.counts.drafts, row.counts.drafted, row.counts.accepted) == (4, 4, 9, 5)
    assert (row.counts.drafted_at, row.counts.accepted_at) == ([4, 3, 2], [3, 1, 1])
    assert row.acceptance == pytest.approx((3 / 4, 1 / 3, 1 / 2))
    assert row.conditional_acceptance == pytest.approx((3 / 4, 1 / 3, 1))
    assert row.first_token_acceptance == 3 / 4
    assert row.tau == 9 / 4
    assert row.prompts_unlike_plain == 0


def test_plain_drafts_nothing_and_is_its_own_reference(script):
    row = report_drafters(counting_engine(), {"right": [[0]]}, script, **KNOWN).row("right", 0, PLAIN)
    assert (row.tau, row.acceptance, row.first_token_acceptance) == (1, (), None)
    assert (row.ratio.median, row.ratio.p25, row.ratio.p75, row.decode_ratio.median) == (1, 1, 1, 1)


def test_means_count_every_group_alike(script):
    prompts = {"right": [[0]], "wrong": [[20], [30], [40]]}
    report = report_drafters(counting_engine(), prompts, script, **KNOWN)
    assert report.row("wrong", 0, "script").acceptance == (0, 0, 0)
    assert report.row("wrong", 0, "script").conditional_acceptance == (0,)
    row = report.row("mean", 0, "script")
    assert row.acceptance == pytest.approx((3 / 8, 1 / 6, 1 / 4))
    assert row.conditional_acceptance == pytest.approx((3 / 8, 1 / 3, 1))
    assert row.tau == pytest.approx((9 / 4 + 1) / 2)
    medians = [report.row(group, 0, "script").ratio.median for group in prompts]
    assert row.ratio.median == pytest.approx(sum(medians) / 2)
    assert (row.prompts, row.counts) == (4, None)


def test_means_over_chosen_groups(script):
    prompts = {"a": [[0]], "b": [[20]], "c": [[30]]}
    report = report_drafters(counting_engine(), prompts, script, means={"b and c": ("b", "c")}, **KNOWN)
    assert report.row("b and c", 0, "script").tau == 1
    with pytest.raises(KeyError):
        report.row("mean", 0, "script")


def test_rounds_and_temperatures_are_counted(script):
    report = report_drafters(
        counting_engine(), {"right": [[0]]}, script, temperatures=(0, 1), rounds=3, max_new_tokens=9, seed=7
    )
    for temperature in (0, 1):
        row = report.row("right", temperature, "script")
        assert (row.counts.rounds, row.counts.accepted_at, row.prompts) == (12, [9, 3, 3], 1)
    assert [turn.seed for turn in report.turns] == [7, 8, 9, 10, 11, 12]


def test_text_unlike_plain_is_counted_by_prompt(script):
    contestants = {
        PLAIN: Contestant(engine=counting_engine(), config=OFF),
        "other": Contestant(engine=counting_engine(step=2), config=OFF),
    }
    sampling = SamplingParams(max_new_tokens=5, seed=0)
    report = measure(contestants, {"a": [[0], [1]], "b": [[2]]}, temperatures=(0,), sampling=sampling, rounds=2)
    unlike = {group: report.row(group, 0, "other").prompts_unlike_plain for group in ("a", "b", "mean")}
    assert unlike == {"a": 2, "b": 1, "mean": 3}
    assert report.turns[0].samples["other"].first_difference == 0
    assert report.turns[0].text == (1, 2, 3, 4, 5)


def test_report_survives_its_file(script, tmp_path):
    report = report_drafters(counting_engine(), {"right": [[0]], "wrong": [[20]]}, script | LOOKUP, max_new_tokens=9)
    path = tmp_path / "new" / "report.json"
    write_record(report.record(), path)
    record = json.loads(path.read_text())
    assert Report.from_record(record) == report
    assert Report.from_record(record | {"command": "train"}) == report
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]
    rows = [row for row in record["figures"] if (row["group"], row["contestant"]) == ("right", "script")]
    assert [row["first_token_acceptance"] for row in rows] == [3 / 4, 3 / 4]
    assert record["contestants"]["script"] == {"method": "script", "num_speculative_tokens": 3}


def test_table_shows_every_row(script):
    text = shown(report_drafters(counting_engine(), {"right": [[0]], "wrong": [[20]]}, script, max_new_tokens=9))
    assert "temperature 0" in text and "temperature 1" in text
    line = next(line for line in text.splitlines() if " script " in line)
    assert all(figure in line for figure in ("75%", "75 33 50", "2.25"))
    assert text.count("mean: 2 prompts") == 2


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ({}, {}, "no prompts"),
        ({"code": []}, {}, "'code' has no prompts"),
        ({"code": [[1], []]}, {}, "'code' holds a prompt without tokens"),
        ({"code": [[1]]}, {"rounds": 0}, "rounds is 0"),
        ({"code": [[1]]}, {"temperatures": ()}, "temperatures is empty"),
        ({"code": [[1]]}, {"temperatures": (-1.0,)}, "temperature is -1.0"),
        ({"code": [[1]]}, {"means": {"mean": ("code", "maths")}}, r"over group \['maths'\]; there are code"),
        ({"code": [[1]]}, {"means": {"mean": ()}}, "over no group"),
        ({"code": [[1]]}, {"means": {"code": ("code",)}}, "the name of a group"),
        ({"code": [[1]]}, {"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(prompts, options, message):
    with pytest.raises((PromptError, ConfigError), match=message):
        report_drafters(counting_engine(), prompts, LOOKUP, **options)


def test_plain_cannot_be_another_drafter():
    with pytest.raises(ConfigError, match="'plain' has method ngram"):
        report_drafters(counting_engine(), {"code": [[1]]}, {PLAIN: LOOKUP["ngram"]})


def test_a_new_drafter_is_measured_as_chain_and_tree(monkeypatch, tmp_path):
    def branches(task) -> DraftTree:
        last = task.request.tokens[-1]
        return DraftTree.from_paths([[63], [last + 1, last + 2]], "new", task.nodes)

    config = scripted(monkeypatch, "new", branches, num_speculative_tokens=2)
    screen = StringIO()
    console = Console(file=screen, width=200)
    report = report_drafter(
        counting_engine(), config, [[0], [5]], tmp_path, max_new_tokens=9, rounds=1, console=console
    )
    assert list(report.contestants) == [PLAIN, "ngram", "new chain", "new tree"]
    assert report.contestants["new tree"] == {"method": "new", "num_speculative_tokens": 2, "tree_size": 16}
    # Two nodes hold a wrong token and the first right one, sixteen the second as well.
    assert [report.row("held out", 0, f"new {shape}").tau for shape in ("chain", "tree")] == [9 / 5, 3]
    assert Report.from_record(json.loads((tmp_path / REPORT_FILE).read_text())) == report
    assert "new tree" in screen.getvalue()


def test_shapes_keep_what_was_asked_for():
    tree = SpeculationConfig(method="eagle3", tree_size=24)
    assert [shape.tree_size for shape in shapes(tree).values()] == [0, 24]
    fixed = SpeculationConfig(method="medusa", speculative_token_tree="mc_sim_7b_63")
    assert [shape.speculative_token_tree for shape in shapes(fixed).values()] == [None, "mc_sim_7b_63"]
    block = SpeculationConfig(method="eagle3", rejection_sample_method="block")
    assert list(shapes(block)) == ["eagle3 chain"]
