"""A decoder as a folder that Hugging Face's `AutoModelForCausalLM.from_pretrained` loads, written without it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from safetensors.torch import save
from torch import Tensor

from trainwright.errors import InputError
from trainwright.files import make_directory, write_atomically
from trainwright.models import state_space
from trainwright.models.decoder import INIT_STD, RMS_EPS, ROPE_THETA, Decoder, Shape
from trainwright.models.state_space import Mamba2Decoder

AnyDecoder: TypeAlias = Decoder | Mamba2Decoder
AnyShape: TypeAlias = Shape | state_space.Shape
Token: TypeAlias = tuple[int, str]


def export(
    folder: Path, decoder: AnyDecoder, *, tokenizer: Path | None = None, stop_token: Token | None = None
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
    dtype = str(next(decoder.parameters()).dtype).removeprefix("torch.")
    write_atomically(folder / "config.json", _json(configuration(decoder.shape, stop_token, dtype)))


def weights(decoder: AnyDecoder) -> dict[str, Tensor]:
    """Give the tensors under the names of the class in `configuration`. A tied head is no tensor of its own."""
    stem = "model" if isinstance(decoder, Decoder) else "backbone"
    return {
        name if name.startswith("lm_head.") else f"{stem}.{name}": tensor.detach().contiguous()
        for name, tensor in decoder.state_dict().items()
    }


def configuration(shape: AnyShape, stop_token: Token | None = None, dtype: str = "float32") -> dict[str, Any]:
    """Give what `LlamaConfig` or `Mamba2Config` reads, with every default that would change a logit or a token."""
    own = _llama(shape) if isinstance(shape, Shape) else _mamba2(shape)
    return {
        **own,
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "tie_word_embeddings": shape.tied,
        "dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": stop_token[0] if stop_token else None,
        "pad_token_id": None,
    }


def _llama(shape: Shape) -> Mapping[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": shape.mlp_width,
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
        "initializer_range": INIT_STD,
    }


def _mamba2(shape: state_space.Shape) -> Mapping[str, Any]:
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "num_heads": shape.heads,
        "head_dim": shape.head_width,
        "state_size": shape.state_size,
        "expand": shape.expand,
        "n_groups": shape.groups,
        "conv_kernel": shape.conv_width,
        "chunk_size": shape.chunk,
        "hidden_act": "silu",
        "layer_norm_epsilon": state_space.NORM_EPS,
        "use_bias": False,
        "use_conv_bias": True,
        "residual_in_fp32": True,
    }


def _tokenizer_settings(context: int, stop_token: Token | None) -> dict[str, Any]:
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
