"""Repeat each layer of the draft model: a deeper one to go on training from, which begins with what this one knows.

python recipes/tiny/grow_draft.py --times 2 --output .work/tiny/heads/grown
"""

import argparse
from copy import deepcopy
from pathlib import Path

from torch import nn

from foredraft.training.target_network import TargetNetwork


def grow(network: TargetNetwork, times: int) -> None:
    """Put `times` copies of each layer in its place."""
    module = network.module
    layers = [deepcopy(layer) for layer in module.model.layers for _ in range(times)]
    for index, layer in enumerate(layers):
        layer.self_attn.layer_idx = index
    module.model.layers = nn.ModuleList(layers)
    module.config.num_hidden_layers = len(layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    network = TargetNetwork.load("tiny-draft", dtype="fp32", device="cpu")
    grow(network, args.times)
    network.module.save_pretrained(args.output)
    network.tokenizer.save_pretrained(args.output)
    print(f"{args.output}: {len(network.module.model.layers)} layers")


if __name__ == "__main__":
    main()
