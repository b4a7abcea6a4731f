"""Writes a Llama in transformers' format as GGUF, in bf16 as it is stored. Runs where `gguf` is installed.

python benchmarks/forward_gguf.py FOLDER FILE
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def main(folder: Path, file: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    require_plain(config)
    writer = GGUFWriter(str(file), "llama")
    describe(writer, config)
    for name, bits in tensors(folder / "model.safetensors"):
        if bits.ndim == 1:  # llama.cpp computes norms in fp32
            writer.add_tensor(gguf_name(name), as_float(bits))
        else:
            rows = np.ascontiguousarray(arranged(name, bits, config)).view(np.uint8)
            writer.add_tensor(gguf_name(name), rows, raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def require_plain(config: dict) -> None:
    """Raises `ValueError` for a model that would be written as another than it is."""
    kind, rotation = config["model_type"], config["rope_parameters"].get("rope_type", "default")
    if (kind, rotation) != ("llama", "default"):
        raise ValueError(f"the model is a {kind} with rotation {rotation}; only llama with default is written")


def describe(writer, config: dict) -> None:
    """What llama.cpp must know of the model; it gets no vocabulary, because it is only handed token ids."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def tensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor by name as the bits of its bf16 numbers, uint16; numpy has no such type."""
    with file.open("rb") as stored:
        size = int.from_bytes(stored.read(8), "little")
        header = json.loads(stored.read(size))
    header.pop("__metadata__", None)
    data = np.memmap(file, np.uint8, "r", offset=8 + size)
    for name, entry in header.items():
        if entry["dtype"] != "BF16":
            raise ValueError(f"tensor {name} is {entry['dtype']}; only BF16 is written")
        start, stop = entry["data_offsets"]
        yield name, data[start:stop].view(np.uint16).reshape(entry["shape"])


def as_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in ENDS:
        return f"{ENDS[stem]}.weight"
    number, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{PARTS[part]}.weight"


def arranged(name: str, matrix: np.ndarray, config: dict) -> np.ndarray:
    """Rows as llama.cpp has them: it rotates neighbouring rows of a head, transformers rows half a head apart."""
    if ".q_proj." in name:
        return interleaved(matrix, config["num_attention_heads"])
    if ".k_proj." in name:
        return interleaved(matrix, config["num_key_value_heads"])
    return matrix


def interleaved(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Row i of each half of a head becomes rows 2 i and 2 i + 1; [heads * size, in]."""
    halves = matrix.reshape(heads, 2, -1, matrix.shape[1])
    return halves.swapaxes(1, 2).reshape(matrix.shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
