"""A small tokenizer in the folder layout of zhixuan-lin/longcrawl64-json-gpt2-tokenizer."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

EOT = "<|endoftext|>"


def save_tokenizer(folder: Path) -> Path:
    """Writes vocab.json, merges.txt and tokenizer_config.json as those repositories hold them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([r"said \n \" \\ \u00eb \u2014 \ud83d\ude00 " * 9], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(folder))
    vocab = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(vocab | {EOT: len(vocab)}))
    config = {
        "add_bos_token": True,
        "add_prefix_space": False,
        "auto_map": {"AutoTokenizer": ["tokenization_json_gpt2.JSONGPT2Tokenizer", None]},
        "bos_token": EOT,
        "clean_up_tokenization_spaces": True,
        "eos_token": EOT,
        "errors": "replace",
        "model_max_length": 1024,
        "pad_token": None,
        "tokenizer_class": "JSONGPT2Tokenizer",
        "unk_token": EOT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
