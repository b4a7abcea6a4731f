"""The pool under load: programs from several Python threads, a fork, many short runs."""

import os
import threading
import weakref
from collections.abc import Callable, Iterable

import foredraft_native as native
import torch
from small_decoder import DTYPES, KERNELS, Sizes, SmallDecoder, text

TOKENS = list(range(1, 40))


def decoders(count: int, threads: int) -> list[SmallDecoder]:
    pool = native.Threads(threads)
    return [
        SmallDecoder(native.Program("bf16", KERNELS[0], pool), native.Cache, DTYPES["bf16"], Sizes(seed=seed))
        for seed in range(count)
    ]


def at_once(work: Callable[..., None], arguments: Iterable[tuple]) -> None:
    """Do some work in a Python thread for each of `arguments`, and wait until all is done."""
    workers = [threading.Thread(target=work, args=own) for own in arguments]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def test_programs_of_several_python_threads_share_a_pool():
    several = decoders(4, threads=3)
    wanted = [decoder.run(text(TOKENS))[0] for decoder in several]
    faults = []

    def work(decoder: SmallDecoder, logits: torch.Tensor) -> None:
        for _ in range(50):
            if not torch.equal(decoder.run(text(TOKENS))[0], logits):
                faults.append(decoder)

    at_once(work, zip(several, wanted, strict=True))
    assert not faults


def test_several_python_threads_share_a_program():
    [decoder] = decoders(1, threads=2)
    wanted = {count: decoder.run(text(TOKENS[:count]))[0] for count in (1, 7, 39)}
    faults = []

    def work(count: int) -> None:
        # The same tokens at the same slots: what is written to the cache is the same, whoever writes it.
        for _ in range(50):
            if not torch.equal(decoder.run(text(TOKENS[:count]))[0], wanted[count]):
                faults.append(count)

    at_once(work, ((count,) for count in wanted))
    assert not faults


def test_a_cache_keeps_its_tensors():
    [decoder] = decoders(1, threads=1)
    wanted, _ = decoder.run(text(TOKENS))
    freed = [weakref.ref(tensor) for tensor in decoder.keys]
    decoder.keys.clear()
    assert all(tensor() is not None for tensor in freed)
    assert torch.equal(decoder.run(text(TOKENS))[0], wanted)


def test_many_short_runs_on_more_threads_than_cores():
    [decoder] = decoders(1, threads=4 * (os.cpu_count() or 1))
    wanted, _ = decoder.run(text(TOKENS[:2]))
    assert all(torch.equal(decoder.run(text(TOKENS[:2]))[0], wanted) for _ in range(300))


def test_a_fork_goes_on_without_the_other_threads():
    [decoder] = decoders(1, threads=2)
    wanted, _ = decoder.run(text(TOKENS))
    child = os.fork()
    if child == 0:
        same = torch.equal(decoder.run(text(TOKENS))[0], wanted)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_bandwidth_of_memory_is_measured():
    assert native.read_bandwidth(native.Threads(2), 1 << 20) > 1e8
