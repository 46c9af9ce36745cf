"""Small tokenizers, trained here and saved as a model folder would hold them."""

import names
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from patheval.tasks.ruler import cwe
from patheval.tasks.ruler.niah import NOISE

BOS = "<s>"


def train_tokenizer(text: list[str], vocab_size: int, *, splits_words: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=splits_words
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_folders(tmp_path_factory):
    """Path of a tokenizer folder, by kind of tokenizer.

    `bpe-2k` and `chars` encode byte pairs and bytes, `bpe-12k` knows the words of RULER's lists,
    `-bos` starts every text with a special token, and `two-lines` has a token for two lines of
    noise, so that one more line often costs nothing.
    """
    with open(names.FILES["first:female"]) as file:
        english = [f"{NOISE}\n" * 100, file.read(20_000).title()]
    words = [f" {word}" for word in cwe.list_words()] * 2
    digits = " ".join(f"{number}." for number in range(1000))
    tokenizers = {
        "bpe-2k": train_tokenizer(english, 2000, splits_words=True),
        "bpe-12k": train_tokenizer([*english, *words, digits], 12000, splits_words=True),
        "bpe-2k-bos": train_tokenizer(english, 2000, splits_words=True),
        "chars": train_tokenizer([""], 257, splits_words=True),
        "chars-bos": train_tokenizer([""], 257, splits_words=True),
        "two-lines": train_tokenizer([f"{NOISE}\n" * 2] * 9, 1000, splits_words=False),
    }
    folders = {}
    for kind, tokenizer in tokenizers.items():
        if kind.endswith("-bos"):
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{BOS} $A", special_tokens=[(BOS, 0)]
            )
        folder = tmp_path_factory.mktemp(kind)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS).save_pretrained(folder)
        folders[kind] = str(folder)
    return folders


@pytest.fixture
def bpe_folder(tokenizer_folders):
    return tokenizer_folders["bpe-2k-bos"]


@pytest.fixture
def english_folder(tokenizer_folders):
    return tokenizer_folders["bpe-12k"]
