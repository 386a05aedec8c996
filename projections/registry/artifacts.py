"""Which files make prompts of a model, as its card names them: tokenizer, formatter, chat template.

Each of three slots of a card is a map with one member, whose name is the kind of the file:

    slot                kinds
    tokenizer           hf_tokenizer_json, tik_token_model
    prompt_formatter    hf_tokenizer_config_json, or a form of a template
    chat_template_file  hf_chat_template (also called hf_chat_template_jinja), hf_chat_template_json

The member is a checked file (path, checksum, size), of a template also a map that holds one
as `file`. A kind that we do not know is kept as OTHER, so that it can be named and counted.
A slot of any other shape reads as absent and is named in `malformed`. Nothing here is
opened or fetched; checksums are compared, paths are opaque.

Cards are written by the fleet, so every text is bounded and no shape raises.

Sources: wire contract 2.3, 2.5; requirement rows ART-01, ART-02, RED-12.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, Final, NamedTuple

from projections.registry.json_text import count_of, object_of, text_of

PATH_CHARACTERS_MAX: Final = 1024  # of a path or URI; real ones have some two hundred
CHECKSUM_PREFIX: Final = "blake3:"
_CHECKSUM: Final = re.compile(r"blake3:[0-9a-f]{64}")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class ArtifactKind(IntEnum):
    """What a file is. OTHER: a kind of a release that we do not know."""

    OTHER = 0
    HF_TOKENIZER_JSON = 1
    TIK_TOKEN_MODEL = 2
    HF_TOKENIZER_CONFIG_JSON = 3
    HF_CHAT_TEMPLATE = 4
    HF_CHAT_TEMPLATE_JSON = 5

    @property
    def label(self) -> str:
        """Spelling in cards and documents."""
        return self.name.lower()


class Artifact(NamedTuple):
    """A checked file. path: where a worker says it lies, a path or a URI.

    checksum: `blake3:` and 64 lower case hex digits. size: bytes, None where not said;
    a claim like all else of a card.
    """

    kind: ArtifactKind
    path: str
    checksum: str
    size: int | None = None


class CardArtifacts(NamedTuple):
    """The files of a card; None where a slot is absent. malformed: slots that could not be read."""

    tokenizer: Artifact | None = None
    prompt_formatter: Artifact | None = None
    chat_template_file: Artifact | None = None
    malformed: tuple[str, ...] = ()

    def slots(self) -> tuple[tuple[str, Artifact], ...]:
        """(slot, file) of the files that are there, in the order of SLOTS."""
        files = (self.tokenizer, self.prompt_formatter, self.chat_template_file)
        return tuple((slot, file) for slot, file in zip(SLOTS, files, strict=True) if file is not None)

    def summary(self) -> str:
        """Slots with the beginnings of their checksums, for sentences; no path."""
        parts = [f"{slot} {file.checksum[len(CHECKSUM_PREFIX) :][:12]}" for slot, file in self.slots()]
        return ", ".join(parts + [f"{slot} malformed" for slot in self.malformed]) or "none"


SLOTS: Final = ("tokenizer", "prompt_formatter", "chat_template_file")
NO_ARTIFACTS: Final = CardArtifacts()

_TEMPLATES: Final = {
    "hf_chat_template": ArtifactKind.HF_CHAT_TEMPLATE,
    "hf_chat_template_jinja": ArtifactKind.HF_CHAT_TEMPLATE,
    "hf_chat_template_json": ArtifactKind.HF_CHAT_TEMPLATE_JSON,
}
_KINDS: Final = {
    "tokenizer": {
        "hf_tokenizer_json": ArtifactKind.HF_TOKENIZER_JSON,
        "tik_token_model": ArtifactKind.TIK_TOKEN_MODEL,
    },
    "prompt_formatter": {
        "hf_tokenizer_config_json": ArtifactKind.HF_TOKENIZER_CONFIG_JSON,
        **_TEMPLATES,
    },
    "chat_template_file": _TEMPLATES,
}


def artifacts_of(card: dict[str, Any]) -> CardArtifacts:
    """The files that a card's JSON object names."""
    tokenizer, formatter, template = (_file_of(card.get(slot), _KINDS[slot]) for slot in SLOTS)
    malformed = tuple(
        slot
        for slot, file in zip(SLOTS, (tokenizer, formatter, template), strict=True)
        if file is None and card.get(slot) is not None
    )
    if not malformed and tokenizer is formatter is template is None:
        return NO_ARTIFACTS
    return CardArtifacts(tokenizer, formatter, template, malformed)


def is_checksum(text: str) -> bool:
    """Whether a text is `blake3:` and 64 lower case hex digits."""
    return _CHECKSUM.fullmatch(text) is not None


def _file_of(raw: object, kinds: dict[str, ArtifactKind]) -> Artifact | None:
    """The one file of a slot."""
    if not isinstance(raw, dict) or len(raw) != 1:
        return None
    ((name, member),) = raw.items()
    fields = object_of(member)
    if "path" not in fields:  # a template tells beside its file whether the user gave it
        fields = object_of(fields.get("file"))
    path = text_of(fields.get("path"), PATH_CHARACTERS_MAX)
    checksum = fields.get("checksum")
    if not path or _CONTROLS.search(path) or not isinstance(checksum, str) or not is_checksum(checksum):
        return None
    kind = kinds.get(name, ArtifactKind.OTHER)
    return Artifact(kind, path, checksum, count_of(fields.get("size")))
