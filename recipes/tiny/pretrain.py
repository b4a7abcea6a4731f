"""Pre-train a model of the tiny family from token streams: Muon on the matrices, AdamW on the rest, data parallel.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 recipes/tiny/pretrain.py --size target --work .work/tiny --steps 800

Every rank sees its own rows and gradients are averaged, so any number of ranks gives the same run for one global
batch. Progress is saved every `--save-minutes` and on SIGTERM; the same command goes on from there.
"""

import argparse
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from corpus import ANNEAL_MIXTURE, MIXTURE, Rows
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, normalize
from transformers import AutoModelForCausalLM, LlamaConfig

SIZES = {
    "target": dict(hidden_size=512, intermediate_size=1408, layers=8, heads=8, kv_heads=4, stack_from=4),
    "draft": dict(hidden_size=192, intermediate_size=512, layers=2, heads=3, kv_heads=3, stack_from=0),
}


def llama_config(size: str, *, layers: int | None = None) -> LlamaConfig:
    shape = SIZES[size]
    return LlamaConfig(
        vocab_size=8192,
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=layers or shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=4,
        pad_token_id=5,
    )


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz (Jordan et al. 2024): every singular value of a step is about one."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                self.update(group, param)

    def update(self, group: dict, param: Tensor) -> None:
        buffer = self.state[param].setdefault("momentum", torch.zeros_like(param))
        buffer.lerp_(param.grad, 1 - group["momentum"])
        step = orthogonalised(param.grad.lerp(buffer, group["momentum"]))
        param.mul_(1 - group["lr"] * group["weight_decay"])
        param.add_(step, alpha=-group["lr"] * max(1, param.shape[0] / param.shape[1]) ** 0.5)


def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = matrix.shape[0] > matrix.shape[1]
    x = normalize(matrix.T if wide else matrix, dim=(0, 1)).bfloat16()
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if wide else x).to(matrix.dtype)


@dataclass
class Run:
    """One training run's model, optimisers and position; what `save` writes `restore` reads."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    step: int = 0

    @classmethod
    def start(cls, model: nn.Module, muon_lr: float, adam_lr: float) -> "Run":
        inner = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
        ids = {id(p) for p in inner}
        outer = [p for p in model.parameters() if id(p) not in ids]
        adam = torch.optim.AdamW(outer, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        optimizers = [Muon(inner, lr=muon_lr), adam]
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]
        return cls(model, optimizers)

    def save(self, path: Path) -> None:
        state = {"step": self.step, "model": self.model.state_dict(), "layers": self.model.config.num_hidden_layers}
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save(state, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)


def rate_at(step: int, total: int, *, warmup: int = 40, cooldown: float = 0.35) -> float:
    """Share of the peak learning rate: linear warm-up, flat, linear to zero over the last `cooldown` of the run."""
    return min(1.0, (step + 1) / warmup, max(0.0, (total - step) / (cooldown * total)))


def build_model(size: str, layers: int) -> nn.Module:
    model = AutoModelForCausalLM.from_config(llama_config(size, layers=layers), attn_implementation="sdpa")
    return model.float()


def stacked(shallow: nn.Module, size: str) -> nn.Module:
    """The full-depth model with every layer of `shallow` repeated in order (depth growth, Du et al. 2024, G_stack)."""
    deep = build_model(size, SIZES[size]["layers"])
    depth, state = shallow.config.num_hidden_layers, shallow.state_dict()
    for name in list(deep.state_dict()):
        parts = name.split(".")
        if "layers" in parts:
            where = parts.index("layers") + 1
            source = parts[:where] + [str(int(parts[where]) % depth)] + parts[where + 1 :]
            state[name] = shallow.state_dict()[".".join(source)]
    deep.load_state_dict({name: state[name] for name in deep.state_dict()})
    return deep


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


def distillation_loss(teacher: nn.Module):
    """Forward KL from the teacher's law to the model's, mean over positions (Hinton et al. 2015)."""

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                wanted = teacher(input_ids=rows[:, :-1], use_cache=False).logits
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        wanted, logits = (x.flatten(0, 1).float().log_softmax(-1) for x in (wanted, logits))
        return kl_div(logits, wanted, log_target=True, reduction="batchmean")

    return loss


def average_gradients(model: nn.Module) -> None:
    if dist.is_initialized():
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for param, grad in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
            param.grad.copy_(grad.view_as(param))


def train_step(run: Run, forward, rows: Tensor, micro: int, rate: float) -> float:
    total = 0.0
    for part in rows.split(micro):
        loss = forward(run.model, part) * (len(part) / len(rows))
        loss.backward()
        total += loss.item()
    average_gradients(run.model)
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return total


def opened(args, path: Path) -> Run:
    shape = SIZES[args.size]
    state = torch.load(path, weights_only=True) if path.exists() else None
    layers = state["layers"] if state else shape["stack_from"] or shape["layers"]
    torch.manual_seed(args.seed)
    run = Run.start(build_model(args.size, layers), args.muon_lr, args.adam_lr)
    if state:
        run.model.load_state_dict(state["model"])
        for optimizer, saved in zip(run.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        run.step = state["step"]
    return run


def trained(size: str, work: Path) -> nn.Module:
    state = torch.load(work / f"{size}.pt", weights_only=True)
    model = build_model(size, state["layers"])
    model.load_state_dict(state["model"])
    return model.eval().requires_grad_(False)


def grown(run: Run, args) -> Run:
    deep = Run.start(stacked(run.model, args.size), args.muon_lr, args.adam_lr)
    deep.step = run.step
    return deep


def held_out_losses(model: nn.Module, folder: Path, length: int) -> dict[str, float]:
    """Mean loss in nats a token by domain, over at most 8 rows of held-out text."""
    import numpy as np

    losses = {}
    with torch.no_grad():
        for domain in MIXTURE:
            stream = np.load(folder / f"{domain}.held.npy").astype(np.int64)
            rows = [stream[i : i + length + 1] for i in range(0, len(stream) - length - 1, length)][:8]
            losses[domain] = sum(loss_of(model, torch.from_numpy(r)[None]).item() for r in rows) / max(1, len(rows))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--grow-at", type=float, default=0.45, help="share of the run after which layers are stacked")
    parser.add_argument("--anneal-at", type=float, default=0.83, help="share after which copying is practised more")
    parser.add_argument("--rows", type=int, default=8, help="rows of a global batch")
    parser.add_argument("--micro", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--save-minutes", type=float, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--teacher", choices=SIZES, help="distil from this trained size instead of the text itself")
    args = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    train(args)


def train(args) -> None:
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    path = args.work / f"{args.size}.pt"
    run, data = opened(args, path), Rows(args.work / "streams", seed=args.seed)
    forward = distillation_loss(trained(args.teacher, args.work)) if args.teacher else loss_of
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    saved = time.monotonic()
    while run.step < args.steps:
        started = time.monotonic()
        if run.model.config.num_hidden_layers < SIZES[args.size]["layers"] and run.step >= args.grow_at * args.steps:
            run = grown(run, args)
        mixture = ANNEAL_MIXTURE if run.step >= args.anneal_at * args.steps else MIXTURE
        first, mine = run.step * args.rows, args.rows // world
        rows = torch.from_numpy(data.batch(first + rank * mine, mine, args.length, mixture))
        loss = train_step(run, forward, rows, args.micro, rate_at(run.step, args.steps))
        run.step += 1
        if rank == 0:
            seconds = time.monotonic() - started
            entry = {"step": run.step, "loss": round(loss, 4), "seconds": round(seconds, 2)}
            with (args.work / f"{args.size}.jsonl").open("a") as log:
                log.write(json.dumps(entry) + "\n")
            print(entry, flush=True)
            if time.monotonic() - saved > 60 * args.save_minutes or stop:
                run.save(path)
                saved = time.monotonic()
        if stop:
            return
    if rank == 0:
        run.save(path)
        print(json.dumps(held_out_losses(run.model, args.work / "streams", args.length), indent=2))


if __name__ == "__main__":
    main()
