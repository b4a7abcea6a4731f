"""Write a trained model of the tiny family into the package: int8 weights, config, tokenizer, figures for its card.

python recipes/tiny/release.py --size target --work .work/tiny --output src/foredraft/assets/tiny
"""

import argparse
import json
import shutil
import subprocess
from pathlib import Path

import torch
import transformers
from pretrain import SIZES, build_model, held_out_losses, llama_config, trained

from foredraft.model.int8_weights import INT8_FILE, read_int8, write_int8


def release(size: str, work: Path, output: Path, length: int) -> dict:
    """Write the files and return held-out losses of the trained and of the stored weights."""
    model = trained(size, work)
    output.mkdir(parents=True, exist_ok=True)
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    write_int8(state, output / INT8_FILE)
    config = llama_config(size)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(output)
    transformers.GenerationConfig(bos_token_id=0, eos_token_id=[0, 4], pad_token_id=5).save_pretrained(output)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(work / "tokenizer" / name, output / name)
    stored = build_model(size, SIZES[size]["layers"])
    stored.load_state_dict(read_int8(output / INT8_FILE, torch.float32), strict=False)
    streams = work / "streams"
    return {"trained": held_out_losses(model, streams, length), "stored": held_out_losses(stored, streams, length)}


def provenance(size: str, work: Path, losses: dict) -> dict:
    model = llama_config(size)
    log = [json.loads(line) for line in (work / f"{size}.jsonl").read_text().splitlines()]
    return {
        "size": size,
        "parameters": sum(p.numel() for p in trained(size, work).parameters()),
        "shape": {k: getattr(model, k) for k in ("hidden_size", "intermediate_size", "num_hidden_layers")},
        "steps": log[-1]["step"],
        "last_training_loss": log[-1]["loss"],
        "held_out_loss_nats_per_token": losses,
        "tokens_by_domain": json.loads((work / "streams" / "counts.json").read_text()),
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--length", type=int, default=1024)
    args = parser.parse_args()
    losses = release(args.size, args.work, args.output, args.length)
    report = provenance(args.size, args.work, losses)
    (args.output / "provenance.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
