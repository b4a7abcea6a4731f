"""Put a trained drafter of the tiny family into the package: int8 weights, config, a card, where they came from.

python recipes/tiny/release_heads.py .work/tiny/heads/eagle3 --name tiny-eagle3
"""

import argparse
import json
import shutil
from pathlib import Path

from safetensors.torch import load_file

from foredraft.checkpoints.head_checkpoint import EMBEDDED_HEADS, find_head
from foredraft.checkpoints.head_writer import write_head
from foredraft.model.capability import Capability
from foredraft.model.int8_weights import INT8_FILE, write_int8
from foredraft.model.loading import embedded_folder, find_checkpoint

DRAFT = "tiny-draft"
FORMATS = {"medusa": "medusa-vllm"}  # of the embedded files; speculators where there is one
DRAFTED = {"eagle3": 5, "mtp": 4, "medusa": 4, "dflash": 7}
CARD = """---
license: apache-2.0
---
# {name}

{method} head of `tiny`, {parameters:.1f} million parameters, stored as int8 with a scale for each 64 weights. Trained
by foredraft on the target's own answers to questions from {questions}. `recipes/tiny/README.md` gives the commands,
`provenance.json` the settings and what held-out answers showed.
"""


MIXTURE = """the training data: gsm8k, reasoning_traces,
instructions, mbpp, and forms, passages and functions derived from json_documents, stories, web_c4 and python_code"""


def release(run: Path, name: str, target: Capability) -> None:
    """Write head, card and provenance into the embedded folder of `name`."""
    head = find_head(str(run), method=None, target=target)
    folder = embedded_folder(name)
    write_head(
        head,
        folder,
        format=FORMATS.get(head.method, "speculators"),
        target_name="tiny",
        target_architectures=[target.architecture],
        speculative_tokens=DRAFTED[head.method],
        target_layers=target.layers,
        int8=True,
    )
    questions = "reasoning_traces alone" if name.endswith("reasoning") else MIXTURE
    count = sum(tensor.numel() for tensor in head.tensors.values() if tensor.is_floating_point())
    (folder / "README.md").write_text(
        CARD.format(name=name, method=head.method, parameters=count / 1e6, questions=questions)
    )
    shutil.copy(run / "provenance.json", folder / "provenance.json")
    print(json.dumps({"name": name, "method": head.method, "bytes": sum(f.stat().st_size for f in folder.iterdir())}))


def release_draft(run: Path, name: str) -> None:
    """Put a distilled draft model's weights, depth and provenance in place of those in `name`'s embedded folder."""
    folder = embedded_folder(name)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = json.loads((run / "config.json").read_text())["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    state = load_file(run / "model.safetensors")
    write_int8({key: tensor for key, tensor in state.items() if key != "lm_head.weight"}, folder / INT8_FILE)
    shutil.copy(run / "provenance.json", folder / "provenance.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", choices=[*sorted(EMBEDDED_HEADS), DRAFT], required=True)
    args = parser.parse_args()
    if args.name == DRAFT:
        release_draft(args.run, args.name)
    else:
        release(args.run, args.name, find_checkpoint("tiny").capability)


if __name__ == "__main__":
    main()
