"""Who goes first, how many rows a step takes, and that nobody waits for ever."""

import pytest
from crowded import check_pool, finish, outputs, scripted

from foredraft import ConfigError, SamplingParams, SlotsError
from foredraft.core.speculation_config import OFF
from foredraft.engine import scheduler
from foredraft.engine.scheduler import GROWTH_TOKENS, slots_needed


def params(new: int = 20) -> SamplingParams:
    return SamplingParams(max_new_tokens=new)


def submit(engine, *lengths: int, new: int = 20, priority: int = 0):
    """Requests with prompts of these lengths."""
    prompts = [[(length + i) % 7 for i in range(length)] for length in lengths]
    return engine.submit(prompts, params(new), None, priority)


def firsts(steps, requests) -> list[int]:
    """The step in which each request first wrote."""
    return [next(i for i, wrote in enumerate(steps) if running in wrote) for running in requests]


class TestRows:
    def test_nobody_writes_and_prompts_take_the_whole_step(self):
        engine = scripted(step_rows=40, prefill_rows=8)
        submit(engine, 100, 30)
        for expected in (40, 40, 40):
            engine.step()
            assert engine.target.forwards[-1] == expected

    def test_a_long_prompt_takes_few_rows_while_others_write(self):
        engine = scripted(step_rows=40, prefill_rows=8, max_batch=6)
        writers = submit(engine, 3, 3, 3, new=60)
        engine.step()
        [reader] = submit(engine, 100)
        for _ in range(12):
            wrote = [running for running, _, _ in engine.step()]
            assert wrote == writers and engine.target.forwards[-1] == 3 + 8
        engine.step()
        assert reader.request.written == 1 and engine.target.forwards[-1] == 3 + 4

    def test_a_step_keeps_to_its_rows_whatever_comes(self):
        engine = scripted(step_rows=16, prefill_rows=14, max_batch=8)
        requests = submit(engine, 3, 50, 7, 1, 33, 20, 2, 90, 5, new=9)
        finish(engine)
        assert max(engine.target.forwards) <= 16
        assert all(running.request.written == 9 for running in requests)

    def test_writers_go_before_prompts_and_take_turns_with_nobody(self):
        """More writers than rows: the first ones write to their end, then the others."""
        engine = scripted(step_rows=2, max_batch=4)
        requests = submit(engine, 1, 1, 1, 1, new=5)
        steps = finish(engine)
        assert steps == [requests[:2]] * 5 + [requests[2:]] * 5

    def test_the_rows_must_be_some(self):
        with pytest.raises(ConfigError, match="step_rows is 0"):
            scripted(step_rows=0)
        with pytest.raises(ConfigError, match="prefill_rows is 0"):
            scripted(prefill_rows=0)


class TestOrder:
    def test_first_come_first_served(self):
        engine = scripted(max_batch=2)
        requests = submit(engine, 5, 3, 9, 2, 30, 1)
        steps = finish(engine)
        assert firsts(steps, requests) == sorted(firsts(steps, requests))

    def test_a_higher_priority_goes_first_and_equals_keep_their_order(self):
        engine = scripted(max_batch=1)
        low, high = submit(engine, 5, 3), submit(engine, 2, 7, priority=3)
        lowest, middle = submit(engine, 4, priority=-1), submit(engine, 6, priority=1)
        steps = finish(engine)
        order = firsts(steps, [*high, *middle, *low, *lowest])
        assert order == sorted(order) and len(set(order)) == 6

    def test_who_runs_is_not_sent_away_for_a_place_in_the_batch(self):
        engine = scripted(max_batch=1)
        low = submit(engine, 5)
        engine.step()
        high = submit(engine, 5, priority=9)
        steps = finish(engine)
        assert steps == [low] * 19 + [high] * 20 and engine.scheduler.preemptions == 0

    def test_prompts_of_a_higher_priority_are_read_first(self):
        engine = scripted(step_rows=8, max_batch=4)
        low, high = submit(engine, 16), submit(engine, 16, priority=1)
        steps = finish(engine)
        assert firsts(steps, high) < firsts(steps, low)

    @pytest.mark.parametrize("priority", [1.5, "high", True, None, 2**31])
    def test_a_priority_is_a_whole_number(self, priority):
        engine = scripted()
        with pytest.raises(ConfigError, match="priority is"):
            submit(engine, 3, priority=priority)
        assert engine.scheduler.idle

    def test_generate_and_stream_take_a_priority(self):
        engine = scripted()
        [output] = engine.generate([1, 2], params(5), priority=-4)
        events = list(engine.stream([1, 2], params(5), priority=4))
        assert events[-1].token_ids == output.token_ids

    def test_the_time_of_submission_is_known(self):
        engine = scripted(max_batch=1)
        first, second = submit(engine, 3, 3)
        assert first.submitted == second.submitted > 0 and not first.started
        finish(engine)
        assert first.submitted < first.started < second.started


class TestAdmission:
    def test_worst_cases_need_not_fit_together(self):
        engine = scripted(slots=300)
        requests = submit(engine, 10, 10, new=200)
        assert sum(map(slots_needed, requests)) > 300
        engine.step()
        assert engine.scheduler.running == requests

    def test_room_to_grow_is_left(self):
        """The third would fit now and take the room that the first two soon need."""
        engine = scripted(slots=3 * (10 + GROWTH_TOKENS) - 1)
        requests = submit(engine, 10, 10, 10, new=100)
        engine.step()
        assert engine.scheduler.running == requests[:2] and engine.scheduler.waiting == requests[2:]

    def test_short_texts_ask_for_no_more_than_they_may_write(self):
        engine = scripted(slots=4 * (10 + 5 + OFF.scratch_nodes))
        requests = submit(engine, 10, 10, 10, 10, new=5)
        engine.step()
        assert engine.scheduler.running == requests

    def test_what_cannot_fit_alone_is_refused(self):
        engine = scripted(slots=50 + OFF.scratch_nodes)
        with pytest.raises(SlotsError, match="needs 56 cache slots .* has 55"):
            submit(engine, 3, 31)
        assert engine.scheduler.idle
        submit(engine, 30)
        finish(engine)

    def test_a_long_request_is_not_passed_by_short_ones_for_ever(self):
        engine = scripted(slots=140, max_batch=4)
        submit(engine, 3, 3, 3)
        engine.step()
        [long] = submit(engine, 110)
        steps = 0
        while not long.request.finished:
            submit(engine, 3)
            engine.step()
            steps += 1
            assert steps < 60
        engine.cancel([*engine.scheduler.running, *engine.scheduler.waiting])
        check_pool(engine)

    def test_nobody_waits_for_ever_behind_equals(self):
        """Each request of a steady stream that asks for more than the pool holds ends within a bounded time."""
        engine = scripted(slots=120, max_batch=6)
        ended, arrived = {}, {}
        for step in range(600):
            if step % 20 == 0 and step < 400:
                [running] = submit(engine, 1 + step % 40, new=30)
                arrived[running.request.id] = step
            for running, _, output in engine.step() if not engine.scheduler.idle else []:
                if output:
                    ended[running.request.id] = step
        assert ended.keys() == arrived.keys() and list(ended) == sorted(ended)
        assert max(ended[name] - arrived[name] for name in ended) < 150

    def test_who_lacks_slots_is_not_tried_again_before_somebody_leaves(self, monkeypatch):
        engine = scripted(slots=100)
        [first] = submit(engine, 40, new=30)
        engine.step()
        [second] = submit(engine, 60)
        looked, slots_ahead = [], scheduler.slots_ahead
        monkeypatch.setattr(scheduler, "slots_ahead", lambda running: looked.append(running) or slots_ahead(running))
        while not first.request.finished:
            engine.step()
        assert looked.count(second) == 1 and not engine.scheduler.running
        engine.step()
        assert looked.count(second) == 2 and second.request.written == 1

    def test_a_smaller_request_of_higher_priority_is_looked_at_at_once(self):
        engine = scripted(slots=100)
        [first] = submit(engine, 40, new=30)
        engine.step()
        [large] = submit(engine, 60)
        engine.step()
        [small] = submit(engine, 2, new=10, priority=1)
        engine.step()
        assert engine.scheduler.running == [small, first] and engine.scheduler.waiting == [large]


class TestCancellation:
    def test_waiting_requests(self):
        engine = scripted(max_batch=1)
        requests = submit(engine, 5, 4, 3, 2)
        engine.step()
        engine.cancel([requests[2], requests[1]])
        assert engine.scheduler.waiting == [requests[3]]
        steps = finish(engine)
        assert requests[1] not in sum(steps, []) and requests[3].request.finished

    def test_who_waited_behind_the_cancelled_goes_on_at_once(self):
        engine = scripted(slots=100)
        submit(engine, 40, new=30)
        engine.step()
        large, small = submit(engine, 60, 2, new=10)
        engine.step()
        assert engine.scheduler.waiting == [large, small]
        engine.cancel([large])
        engine.step()
        assert small.request.written == 1

    def test_a_running_request_leaves_its_slots(self):
        engine = scripted(slots=100)
        first, second = submit(engine, 40, 50, new=30)
        engine.step()
        assert engine.scheduler.waiting == [second]
        engine.cancel([first])
        check_pool(engine)
        engine.step()
        assert second.request.written == 1
        finish(engine)


class TestPrefixCache:
    def test_a_text_that_comes_again_goes_on_where_it_ended(self):
        engine = scripted(prefix_cache=True)
        first = engine.generate([1, 2, 3], params(20))[0]
        again = [1, 2, 3, *first.token_ids, 4]
        [running] = engine.submit(again, params(10), None)
        engine.step()
        assert running.cached == 22 and engine.target.forwards[-1] == 2
        finish(engine)
        assert outputs([running]) == outputs(alone([running]))

    def test_what_is_kept_goes_before_anybody_is_preempted(self):
        engine = scripted(slots=100, prefix_cache=True)
        engine.generate([5] * 30, params(20))
        requests = submit(engine, 10, 10, new=35)
        finish(engine)
        assert engine.scheduler.preemptions == 0 and engine.target.pool.free < 100
        assert outputs(requests) == outputs(alone(requests))

    def test_what_is_kept_counts_as_room(self):
        engine = scripted(slots=100, prefix_cache=True)
        engine.generate([5] * 60, params(20))
        requests = submit(engine, 10, 10, new=15)
        engine.step()
        assert engine.scheduler.running == requests

    def test_a_preempted_request_goes_on_from_what_is_kept_of_it(self):
        rows = {}
        for kept in (False, True):
            engine = scripted(slots=240, prefix_cache=kept)
            requests = submit(engine, 10, 11, 12, new=150)
            finish(engine)
            assert engine.scheduler.preemptions > 0
            assert outputs(requests) == outputs(alone(requests))
            assert all(running.cached == 0 for running in requests), "a text that comes back is no cached prompt"
            rows[kept] = sum(engine.target.forwards)
        assert rows[True] < rows[False]

    def test_what_others_compute_meanwhile_is_found(self):
        engine = scripted(prefix_cache=True, step_rows=40)
        requests = engine.submit([[1, 2, 3, 4, 5] * 32] * 3, params(10), None)
        finish(engine)
        assert [running.cached > 100 for running in requests] == [False, True, True]
        assert outputs(requests) == outputs(alone(requests))


def alone(requests):
    """The same requests, each in an engine of its own."""
    return [
        running
        for asked in requests
        for engine in [scripted()]
        for running in engine.submit(asked.request.prompt, asked.request.params, None)
        if finish(engine)
    ]
