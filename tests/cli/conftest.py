"""A model made on the fly, small enough for tests and real enough for the command line."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from foredraft.cli.main import main

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"


def save_model(folder: Path, *, extra_tokens: int = 0) -> Path:
    """A random Llama over bytes, `extra_tokens` more in its vocabulary."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet()) + [f"extra{i}" for i in range(extra_tokens)]
    vocabulary = {letter: index for index, letter in enumerate(["</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", chat_template=CHAT_TEMPLATE)
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=0,
        bos_token_id=None,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    return str(save_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def other_vocabulary(tmp_path_factory) -> str:
    return str(save_model(tmp_path_factory.mktemp("other"), extra_tokens=3))


@pytest.fixture(scope="session")
def stories() -> str:
    folder = SHARED / "stories260K"
    if not folder.is_dir():
        pytest.skip(f"no trained model at {folder}")
    return str(folder)


@pytest.fixture
def run(capsys):
    """Runs the command in this process: its exit code, standard output and standard error."""

    def command(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def refused(run):
    """Runs a command that must be refused; returns the one line it says."""

    def command(*arguments: object) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
        return err

    return command
