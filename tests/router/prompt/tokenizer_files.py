"""Small tokenizers of the kinds that models have, made here: files as a card would name them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

TINY = Path(__file__).resolve().parents[3] / "deploy" / "demo" / "tiny-chat" / "tokenizer.json"
SPECIAL: Final = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]
TEXT: Final = [
    "the quick brown fox jumps over the lazy dog and the cat",
    "user assistant system hello world what is two and two",
    "Ein Beispiel mit Umlauten: zwölf Euro, é à ☕ 今日は良い天気",
    "def main(): return 12345 + 678 # comment\n\tindented   spaces",
] * 4


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def byte_level() -> Tokenizer:
    return Tokenizer.from_buffer(TINY.read_bytes())


def byte_level_with_prefix_space() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    return _trained(made, trainer)


def _metaspace(scheme: str) -> Tokenizer:
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _trained(made, trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL))


def metaspace_first() -> Tokenizer:
    return _metaspace("first")


def metaspace_always() -> Tokenizer:
    return _metaspace("always")


def llama_like() -> Tokenizer:
    """A normalizer that puts a mark before every text, as older conversions have it."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made = _trained(made, trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL))
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def word_piece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return _trained(made, trainers.WordPieceTrainer(vocab_size=500, special_tokens=special))


def unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return _trained(made, trainers.UnigramTrainer(vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>"))


def tokens_that_take_blanks() -> Tokenizer:
    """As phi-3 has them: some take the blanks behind them along."""
    made = byte_level()
    made.add_special_tokens(
        [
            AddedToken("<|end|>", rstrip=True, normalized=False),
            AddedToken("<|user|>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("<mask>", lstrip=True, normalized=False),
        ]
    )
    return made


def tokens_that_overlap() -> Tokenizer:
    made = byte_level()
    made.add_special_tokens(
        [
            AddedToken("<|im_start|><|im_start|>", rstrip=True, normalized=False),
            AddedToken("<|x|>", normalized=False),
            AddedToken("<|x|>y", normalized=False),
        ]
    )
    return made


def tokens_that_are_words() -> Tokenizer:
    made = byte_level()
    made.add_special_tokens([AddedToken("word", single_word=True, normalized=False)])
    return made


def tokens_that_are_normalized() -> Tokenizer:
    made = word_piece()
    made.add_tokens([AddedToken("QUICK fox", normalized=True), AddedToken("<t>", normalized=True)])
    return made


def no_special_token() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    return _trained(made, trainers.BpeTrainer(vocab_size=300, special_tokens=[]))


KINDS: Final[dict[str, Callable[[], Tokenizer]]] = {
    make.__name__: make
    for make in (
        byte_level,
        byte_level_with_prefix_space,
        metaspace_first,
        metaspace_always,
        llama_like,
        word_piece,
        unigram,
        tokens_that_take_blanks,
        tokens_that_overlap,
        tokens_that_are_words,
        tokens_that_are_normalized,
        no_special_token,
    )
}


@cache
def tokenizer_file(kind: str) -> bytes:
    """The file of a kind."""
    return KINDS[kind]().to_str().encode()


@cache
def plain_tokenizer(kind: str) -> Tokenizer:
    """The kind as the library reads it, which is what segments are compared with."""
    return Tokenizer.from_buffer(tokenizer_file(kind))
