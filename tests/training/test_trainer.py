"""One trainer: the same seed gives the same weights, whatever stopped the run on the way."""

import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from tiny_training import batch_of, method_for, random_samples, source_of, tiny_target

from foredraft.core.errors import ConfigError, UserError
from foredraft.training.checkpointing import Checkpoints
from foredraft.training.distributed import workers
from foredraft.training.methods.method import Findings
from foredraft.training.optimizer import Schedule
from foredraft.training.run_config import RunConfig
from foredraft.training.run_log import JsonLines, RunLog
from foredraft.training.trainer import Outcome, Trainer

SPAWN = multiprocessing.get_context("spawn")  # a forked child of a process with threads may never wake
METHOD = ("eagle3", {"draft_vocabulary": 16, "ttt_steps": 2, "intermediate_size": 32})
DFLASH = ("dflash", {"block_size": 3, "anchors": 3, "layers": 1, "intermediate_size": 32})


def trainer_in(folder: Path, *, method=METHOD, sinks=(), steps=8, seed=0, workers=None, **options) -> Trainer:
    target, samples = tiny_target(), random_samples(20, seed=1)
    made = method_for(method[0], target, samples, **method[1])
    config = RunConfig(seed=seed, batch_size=4, learning_rate=2e-3, warmup=0.1, **options)
    plan = {"batch_size": config.batch_size, "accumulation": config.accumulation}
    plan |= {"rank": workers.rank, "world": workers.size} if workers else {}
    source = source_of(made, target, samples, random_samples(5, seed=2), steps=steps, **plan)
    trainer = Trainer(
        method=made,
        source=source,
        config=config,
        checkpoints=Checkpoints(folder / "states"),
        log=RunLog(sinks),
        **({"workers": workers} if workers else {}),
    )
    trainer.resume()
    return trainer


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.module.state_dict().items()}


def trained(folder: Path, **options) -> dict[str, torch.Tensor]:
    trainer = trainer_in(folder, **options)
    assert trainer.run().step == trainer.source.steps
    return weights(trainer)


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Memory:
    """Keeps every record."""

    def __init__(self):
        self.records: list[dict] = []

    def take(self, record: dict) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass

    def curve(self) -> list[float]:
        return [record["loss"] for record in self.records if record["kind"] == "step"]


class At:
    """Does something right after a step was logged."""

    def __init__(self, step: int, act):
        self.step, self.act = step, act

    def take(self, record: dict) -> None:
        if record["kind"] == "step" and record["step"] == self.step:
            self.act()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("method", [METHOD, DFLASH], ids=["eagle3", "dflash"])
def test_the_seed_decides_the_weights(tmp_path, method):
    first = trained(tmp_path / "a", method=method)
    assert same_bits(first, trained(tmp_path / "b", method=method))
    if method is DFLASH:
        config_seed = trainer_in(tmp_path / "c", method=method)
        config_seed.method.seed = 4
        config_seed.run()
        assert not same_bits(first, weights(config_seed))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_state_and_the_run_goes_on_bit_for_bit(tmp_path, number):
    whole = trained(tmp_path / "whole", method=DFLASH)
    stopped = trainer_in(tmp_path / "cut", method=DFLASH, sinks=[At(3, lambda: os.kill(os.getpid(), number))])
    outcome = stopped.run()
    assert outcome.stopped_by == number and 3 <= outcome.step <= 4
    again = trainer_in(tmp_path / "cut", method=DFLASH)
    assert again.step == outcome.step
    assert again.run().stopped_by is None
    assert same_bits(whole, weights(again))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def run_to_the_end(folder: Path, threads: int) -> None:
    torch.set_num_threads(threads)  # sums are cut by thread: another number of them rounds differently
    sinks = [JsonLines(folder / "log.jsonl", after=Checkpoints(folder / "states").last_step() or 0)]
    trainer_in(folder, sinks=sinks, steps=30, save_steps=1).run()


def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    whole = trained(tmp_path / "whole", steps=30)
    folder = tmp_path / "killed"
    process = SPAWN.Process(target=run_to_the_end, args=(folder, torch.get_num_threads()))
    process.start()
    while process.is_alive() and not Checkpoints(folder / "states").paths():
        time.sleep(0.002)
    time.sleep(random.Random(0).random() * 0.2)  # in the middle of whatever it does then
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    last = trainer_in(folder, steps=30)
    assert 0 < last.step < 30
    last.run()
    assert same_bits(whole, weights(last))


def test_the_log_of_a_resumed_run_has_every_step_once(tmp_path):
    log = tmp_path / "log.jsonl"
    stop = At(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    trainer_in(tmp_path, sinks=[JsonLines(log, after=0), stop], save_steps=3).run()
    kept = Checkpoints(tmp_path / "states").last_step()
    log.write_text(log.read_text() + '{"kind": "step", "step": 7, "loss": 1.0}\n{"kind": "st', encoding="utf-8")
    trainer_in(tmp_path, sinks=[JsonLines(log, after=kept)]).run()
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "step"] == list(range(1, 9))


@pytest.mark.parametrize("method", [METHOD, DFLASH], ids=["eagle3", "dflash"])
def test_micro_batches_change_nothing_but_rounding(tmp_path, method):
    plain, split = Memory(), Memory()
    one = trained(tmp_path / "a", method=method, sinks=[plain])
    other = trained(tmp_path / "b", method=method, sinks=[split], accumulation=3)
    torch.testing.assert_close(torch.tensor(plain.curve()), torch.tensor(split.curve()), atol=1e-4, rtol=0)
    torch.testing.assert_close(one, other, atol=1e-3, rtol=0)


def one_of_two(rank: int, folder: Path, port: int, patch: pytest.MonkeyPatch | None = None) -> None:
    place = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in place.items():
        (patch or pytest.MonkeyPatch()).setenv(name, str(value))
    with workers(torch.device("cpu")) as both:
        sinks = [JsonLines(folder / f"log{rank}.jsonl", after=0)]
        trainer = trainer_in(folder, sinks=sinks, workers=both, evaluate_steps=4)
        findings = trainer.run().findings
        if both.first:
            torch.save((weights(trainer), findings.loss, findings.agreement), folder / "result.pt")


def test_two_processes_train_what_one_does(tmp_path):
    alone = Memory()
    single = trainer_in(tmp_path / "one", sinks=[alone], evaluate_steps=4)
    findings = single.run().findings
    folder = tmp_path / "two"
    folder.mkdir()
    port = free_port()
    other = SPAWN.Process(target=one_of_two, args=(1, folder, port))
    other.start()
    with pytest.MonkeyPatch.context() as patch:
        one_of_two(0, folder, port, patch)
    other.join(timeout=60)
    assert other.exitcode == 0
    for rank in range(2):
        lines = map(json.loads, (folder / f"log{rank}.jsonl").read_text().splitlines())
        curve = [line["loss"] for line in lines if line["kind"] == "step"]
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(alone.curve()), atol=1e-4, rtol=0)
    both, loss, agreement = torch.load(folder / "result.pt")
    torch.testing.assert_close(both, weights(single), atol=1e-3, rtol=0)
    assert loss == pytest.approx(findings.loss, abs=1e-4) and agreement == pytest.approx(findings.agreement, abs=0.1)
    assert [path.name for path in Checkpoints(folder / "states").paths()] == ["step-00000008.pt"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_full_disk_keeps_the_state_before_and_says_so(tmp_path):
    memory = Memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = At(4, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard)))
    room = At(6, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)))
    kept: list[list[str]] = []
    look = At(6, lambda: kept.append([path.name for path in (tmp_path / "states").iterdir()]))
    try:
        trainer = trainer_in(tmp_path, sinks=[memory, full, look, room], save_steps=2)
        outcome = trainer.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    notes = [record["text"] for record in memory.records if record["kind"] == "note"]
    assert len(notes) == 1 and "\n" not in notes[0]
    assert notes[0].startswith("cannot save the state after step 4: ") and notes[0].endswith("after step 2 stays")
    assert kept == [["step-00000002.pt"]]
    assert outcome.step == 8 and trainer.checkpoints.last_step() == 8


def test_two_states_are_kept(tmp_path):
    trained(tmp_path, save_steps=1)
    assert [path.name for path in sorted((tmp_path / "states").iterdir())] == ["step-00000007.pt", "step-00000008.pt"]


def test_a_broken_state_is_refused_in_one_line(tmp_path):
    trained(tmp_path, save_steps=4)
    (tmp_path / "states" / "step-00000008.pt").write_bytes(b"broken")
    with pytest.raises(ConfigError, match="step-00000008.pt.*delete it"):
        trainer_in(tmp_path)
    (tmp_path / "states" / "step-00000008.pt").unlink()
    assert trainer_in(tmp_path).step == 4


def test_held_out_samples_are_measured_as_one_batch(tmp_path):
    trainer = trainer_in(tmp_path)
    findings = trainer.evaluate()
    samples, target = random_samples(5, seed=2), trainer.method.target
    with torch.no_grad():
        losses = trainer.method.loss(batch_of(trainer.method, target, samples), 0)
    assert findings.loss == pytest.approx(float(losses.total / losses.weight), rel=1e-5)
    assert findings.agreement == pytest.approx((losses.correct / losses.counted).tolist())


def test_expected_tau_is_one_and_the_products_of_agreement():
    assert Findings(loss=0.0, agreement=(0.5, 0.5, 0.2)).expected_tau == pytest.approx(1 + 0.5 + 0.25 + 0.05)
    assert Findings(loss=0.0, agreement=()).expected_tau == 1


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    trainer = trainer_in(tmp_path)
    next(trainer.module.parameters()).data.fill_(float("nan"))
    with pytest.raises(UserError, match="the loss of step 1 is nan; lower --learning-rate"):
        trainer.run()


def test_16_bit_products_change_the_loss_a_little(tmp_path):
    curves = []
    for dtype in (torch.float32, torch.bfloat16):
        memory = Memory()
        trainer = trainer_in(tmp_path / str(dtype), sinks=[memory])
        trainer.dtype = dtype
        assert trainer.run() == Outcome(8, trainer.evaluate())
        assert next(trainer.module.parameters()).dtype == torch.float32
        curves.append(torch.tensor(memory.curve()))
    torch.testing.assert_close(*curves, atol=0.1, rtol=0)
    assert not torch.equal(*curves)


def test_the_rate_rises_and_falls():
    schedule = Schedule(peak=1.0, steps=100, warmup=0.1)
    rates = [schedule.at(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1.0 and all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)


LEARNERS = {
    "eagle3": {"draft_vocabulary": 40, "ttt_steps": 2, "intermediate_size": 48},
    "eagle1": {"intermediate_size": 48},
    "medusa": {"medusa_heads": 2, "draft_vocabulary": 40},
    "mtp": {"mtp_steps": 2, "intermediate_size": 48},
    "dflash": {"block_size": 3, "anchors": 8, "layers": 1, "intermediate_size": 48},
    "draft": {"hidden_size": 32, "layers": 1, "heads": 2},
}


@pytest.mark.parametrize(("name", "optimizer"), [*((name, "adamw") for name in LEARNERS), ("eagle3", "muon")])
def test_every_method_learns(tmp_path, name, optimizer):
    """Over a few texts again and again: what it was taught, it says."""
    target, samples, memory = tiny_target(), random_samples(4, seed=3), Memory()
    method = method_for(name, target, samples, **LEARNERS[name])
    config = RunConfig(batch_size=4, learning_rate=5e-3, optimizer=optimizer, clip=10.0)
    source = source_of(method, target, samples, samples, steps=60, batch_size=4)
    trainer = Trainer(
        method=method, source=source, config=config, checkpoints=Checkpoints(tmp_path), log=RunLog([memory])
    )
    before, after = trainer.evaluate(), trainer.run().findings
    assert after.loss < 0.6 * before.loss
    assert after.agreement[0] > max(0.4, before.agreement[0])
    assert after.expected_tau > before.expected_tau
