"""The zoo's byte-level BPE tokenizer: trained for it, able to encode any text."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
BOS_ID, EOS_ID = 1, 2
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains a tokenizer that puts BOS before a text and splits numbers into digits.

    Args:
        texts: sample of the training mixture.
        vocab_size: entries, the 256 bytes and the special ones included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[PAD, BOS, EOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the files that ``AutoTokenizer.from_pretrained`` reads."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
    }
    tokenizer.save(str(folder / TOKENIZER_NAME))
    (folder / TOKENIZER_CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n")
