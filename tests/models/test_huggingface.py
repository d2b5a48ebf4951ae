import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from trainwright.errors import InputError
from trainwright.models import huggingface
from trainwright.models.decoder import Decoder, Shape

SHAPE = Shape(2, 32, 4, 2, 48, 16, 61)

LOADER = """
import sys
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

for folder in sys.argv[1:]:
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    tokens = load_file(f"{folder}/tokens.safetensors")["tokens"]
    with torch.no_grad():
        save_file({"logits": model.eval()(tokens).logits}, f"{folder}/logits.safetensors")
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
assert tokenizer.eos_token == "<|end|>", tokenizer.eos_token
assert tokenizer.model_max_length == 16
print(tokenizer.decode(tokenizer("to be or not")["input_ids"]), tokenizer("to be")["input_ids"])
"""


def make_decoder(tied: bool) -> Decoder:
    torch.manual_seed(int(tied))
    decoder = Decoder(replace(SHAPE, tied=tied))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return decoder


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(["to be or not to be"], trainers.BpeTrainer(special_tokens=["<|end|>"], vocab_size=61))
    made.save(str(tmp_path / "made.json"))
    return tmp_path / "made.json"


def test_a_fresh_process_of_transformers_gives_the_same_logits(tmp_path: Path, tokenizer: Path) -> None:
    folders, expected = [tmp_path / "tied", tmp_path / "untied"], []
    tokens_bt = torch.arange(32).view(2, 16) * 5 % 61
    for folder, tied in zip(folders, (True, False), strict=True):
        decoder = make_decoder(tied)
        huggingface.export(folder, decoder, tokenizer=tokenizer, stop_token=(0, "<|end|>"))
        save_file({"tokens": tokens_bt}, folder / "tokens.safetensors")
        with torch.no_grad():
            expected.append(decoder(tokens_bt))
    done = subprocess.run([sys.executable, "-c", LOADER, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    own = Tokenizer.from_file(str(tokenizer)).encode("to be").ids
    assert done.stdout.strip().endswith(str(own))
    for folder, logits_btv in zip(folders, expected, strict=True):
        torch.testing.assert_close(load_file(folder / "logits.safetensors")["logits"], logits_btv, rtol=0, atol=1e-5)


def test_a_tied_head_is_written_once(tmp_path: Path) -> None:
    for tied in (True, False):
        huggingface.export(tmp_path, make_decoder(tied))
        assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is tied
        assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied


def test_without_a_tokenizer_no_tokenizer_is_written(tmp_path: Path) -> None:
    huggingface.export(tmp_path / "new" / "folder", make_decoder(tied=True))
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {"config.json", "model.safetensors"}


def test_two_exports_of_the_same_weights_are_equal_in_every_byte(tmp_path: Path, tokenizer: Path) -> None:
    for name in ("one", "two"):
        huggingface.export(tmp_path / name, make_decoder(tied=False), tokenizer=tokenizer)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_missing_tokenizer_is_refused_and_no_config_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json: the tokenizer cannot be read"):
        huggingface.export(tmp_path / "out", make_decoder(tied=True), tokenizer=tmp_path / "nowhere.json")
    assert not (tmp_path / "out" / "config.json").exists()
