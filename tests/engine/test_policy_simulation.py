"""The policy in a world whose best choice is known: what it gives away, and how soon it finds a new best."""

from statistics import mean

import pytest
from policy_simulator import World, step_costs, way

from foredraft.engine.policy.allocation import PLAIN
from foredraft.engine.policy.exploration import FIRST_STEPS

WAYS = [way("model 2", "model", 2), way("model 4", "model", 4), way("model 7", "model", 7)]
WAYS += [way("heads 3", "heads", 3), way("block 7", "block", 7)]
DRAFTS = {
    "model 2": (0.5, 0.02),
    "model 4": (1.0, 0.02),
    "model 7": (1.75, 0.02),
    "heads 3": (0.24, 0.02),
    "block 7": (0.53, 0.05),
}
COSTS = step_costs(0.04, 4, DRAFTS)
SEEDS = range(6)


def worlds(accept: dict[str, float], requests: int = 1, **changes) -> list[World]:
    return [World(COSTS, WAYS, dict(accept), requests=requests, seed=seed, noise=0.1, **changes) for seed in SEEDS]


TEXTS = {
    "block pays": {"model": 0.5, "heads": 0.5, "block": 0.8},
    "heads pay": {"model": 0.3, "heads": 0.85, "block": 0.3},
    "nothing pays": {"model": 0.1, "heads": 0.1, "block": 0.1},
    "long drafts pay": {"model": 0.9, "heads": 0.3, "block": 0.3},
}


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("text", TEXTS)
def test_after_200_steps_less_than_5_percent_is_given_away(text: str, requests: int):
    given_away = []
    for world in worlds(TEXTS[text], requests):
        world.run(400)
        given_away.append(mean(world.lost[200:]))
    assert mean(given_away) < 0.05


def test_a_hundred_users_are_served_as_well():
    [world, *_] = worlds(TEXTS["block pays"], requests=16)
    world.run(300)
    assert mean(world.lost[200:]) < 0.05


@pytest.mark.parametrize(
    ("before", "after"),
    [("block pays", "heads pay"), ("block pays", "nothing pays"), ("long drafts pay", "nothing pays")],
)
def test_a_change_of_text_is_met_within_50_steps(before: str, after: str):
    given_away = []
    for world in worlds(TEXTS[before]):
        world.run(200)
        world.accept.update(TEXTS[after])
        world.run(100)
        given_away.append(mean(world.lost[250:]))
    assert mean(given_away) < 0.1


@pytest.mark.parametrize("before", ["heads pay", "nothing pays"])
def test_what_has_come_to_pay_more_is_found_by_experiments(before: str):
    """Nothing shows it but trying, which is bounded: so it takes longer."""
    given_away = []
    for world in worlds(TEXTS[before]):
        world.run(200)
        world.accept.update(TEXTS["block pays"])
        world.run(300)
        given_away.append(mean(world.lost[400:]))
    assert mean(given_away) < 0.1


def test_a_new_request_starts_from_what_earlier_ones_taught():
    [world, *_] = worlds(TEXTS["heads pay"])
    world.run(100)
    world.renew()
    world.run(10)
    assert mean(world.lost[100:]) < 0.1


@pytest.mark.parametrize("text", TEXTS)
def test_experiments_stay_within_their_share(text: str):
    for world in worlds(TEXTS[text]):
        world.run(400)
        books = world.decider.exploration
        dearest = 2.5  # steps that one experiment may lose beyond what was expected of it
        assert books.spent <= books.allowed + FIRST_STEPS + dearest
        assert books.allowed < 0.06 * books.busy
        assert books.tries > 0


def test_with_many_requests_drafts_give_way():
    """Rows that are free for one request cost a full share beside fifteen others."""
    costs = step_costs(0.25, 4, DRAFTS)
    accept = {"model": 0.4, "heads": 0.5, "block": 0.4}
    drafted = {}
    for requests in (1, 16):
        world = World(costs, WAYS, dict(accept), requests=requests)
        world.run(300)
        last = [place for places in world.chosen[200:] for place in places]
        drafted[requests] = sum(place != PLAIN for place in last) / len(last)
    assert drafted[1] > 0.7 and drafted[16] < 0.1


def test_wrong_costs_are_corrected_by_what_steps_take():
    """Told that rows are free, the policy finds out that they are not."""
    costs, free = step_costs(0.3, 1, DRAFTS), step_costs(0.0, 1, DRAFTS)
    world = World(costs, WAYS, {"model": 0.3, "heads": 0.35, "block": 0.5}, believed=free)
    world.run(500)
    assert mean(world.lost[300:]) < 0.08
