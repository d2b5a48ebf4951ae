"""A decoder as a folder that Hugging Face's `AutoModelForCausalLM.from_pretrained` loads, written without it."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from trainwright.errors import InputError
from trainwright.files import make_directory, write_atomically
from trainwright.models.decoder import INIT_STD, RMS_EPS, ROPE_THETA, Decoder, Shape


def export(
    folder: Path, decoder: Decoder, *, tokenizer: Path | None = None, stop_token: tuple[int, str] | None = None
) -> None:
    """Write model.safetensors, the tokenizer (a tokenizer.json) and its settings if there is one, config.json last.

    `stop_token`: id and text of the token that ends a document. Errors: InputError when `tokenizer` cannot be read;
    OSError of the failing write, in which case the folder holds no new config.json.
    """
    make_directory(folder)
    write_atomically(folder / "model.safetensors", save(weights(decoder), metadata={"format": "pt"}))
    if tokenizer is not None:
        write_atomically(folder / "tokenizer.json", _read(tokenizer))
        settings = _tokenizer_settings(decoder.shape.context, stop_token)
        write_atomically(folder / "tokenizer_config.json", _json(settings))
    dtype = str(decoder.embed_tokens.weight.dtype).removeprefix("torch.")
    write_atomically(folder / "config.json", _json(configuration(decoder.shape, stop_token, dtype)))


def weights(decoder: Decoder) -> dict[str, Tensor]:
    """Give the tensors under the names of `LlamaForCausalLM`. A tied head is no tensor of its own."""
    return {
        name if name.startswith("lm_head.") else f"model.{name}": tensor.detach().contiguous()
        for name, tensor in decoder.state_dict().items()
    }


def configuration(shape: Shape, stop_token: tuple[int, str] | None = None, dtype: str = "float32") -> dict[str, Any]:
    """Give what `LlamaConfig` reads. Every default that would change a logit or a token is written out."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.width,
        "intermediate_size": shape.mlp_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "max_position_embeddings": shape.context,
        "hidden_act": "silu",
        "rms_norm_eps": RMS_EPS,
        "rope_theta": ROPE_THETA,  # read by releases before 5
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},  # read from 5 on
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": shape.tied,
        "initializer_range": INIT_STD,
        "dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": stop_token[0] if stop_token else None,
        "pad_token_id": None,
    }


def _tokenizer_settings(context: int, stop_token: tuple[int, str] | None) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "eos_token": stop_token[1] if stop_token else None,
    }


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: the tokenizer cannot be read: {error.strerror}") from error


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"
