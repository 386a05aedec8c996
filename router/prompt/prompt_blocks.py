"""One door from a request's body to the hashes of its blocks.

    body -> written anew -> rendered in a process -> split, looked up, encoded -> hashed

Every prompt has two seconds and, until its text is there, a permit, which is waited for 20 ms.
Encode processes are waited for without one, so that a burst of new text keeps nobody from
rendering; such texts are bounded by their number and bytes. What goes wrong has a result of its
own, and the request goes out by load all the same (RND-07): nothing here raises but for
cancellation. The libraries that render and encode are imported in processes only, so without the
extra `kv` all of this still imports, and every prompt is RENDER_UNAVAILABLE.

Sources: requirement rows RND-01..14; decisions 40, 61.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, Protocol

import orjson

from projections.bounds import (
    ENCODE_TEXTS_BYTES_MAX,
    ENCODE_TEXTS_MAX,
    GIB,
    MIB,
    PROMPT_HASHES_BYTES_MAX,
    PROMPT_SEGMENTS_BYTES_MAX,
    PROMPT_TEXT_BYTES_MAX,
    RENDER_FRAME_BYTES_MAX,
    RENDER_PERMIT_US_MAX,
    RENDER_PERMITS_MAX,
    RENDER_PERMITS_MIN,
    RENDER_US_MAX,
    SECOND_US,
)
from projections.events.picks import KvResult
from projections.kv.block_hash import HASH_BYTES, TOKEN_BYTES, seed_of
from router.prompt.hash_memo import HashMemo
from router.prompt.render_input import (
    RenderInput,
    TextGiven,
    TokensGiven,
    TooLarge,
    Unsupported,
    render_input,
    salt_of,
)
from router.prompt.render_pool import JobFailed, Load, RenderPool, TextTooLarge, Unavailable
from router.prompt.render_wire import RENDER_HEAD, Kind, RenderFlag
from router.prompt.segment_memo import SegmentMemo
from router.prompt.simple_chat import new_mark, packed
from router.prompt.tokenizer_pool import TokenizerPool, TokenizerUnavailable, TooManyTokens

LIBRARIES: Final = ("jinja2", "minijinja", "tokenizers")
DEFAULT_ENGINE: Final = "minijinja"
RENDER_MEMORY_BYTES: Final = 1 * GIB  # of address space, most of it libraries
ENCODE_MEMORY_BYTES: Final = 4 * GIB  # four tokenizers
ENCODERS_MAX: Final = 4
ENCODE_NICENESS: Final = 5  # new text takes milliseconds; the event loop and renders go first
HASHED_AT_ONCE: Final = 1 * MIB  # bytes of tokens; others have their turn between
TEMPLATES_NAMED_MAX: Final = 64
_ADDS_PROMPT, _CONTINUES, _IS_PLAIN, _IS_SIMPLE = map(
    int, (RenderFlag.ADDS_PROMPT, RenderFlag.CONTINUES, RenderFlag.IS_PLAIN, RenderFlag.IS_SIMPLE)
)


class Files(Protocol):
    """A model's files, verified; `artifact_set.LoadedFiles`. key: of all of them together."""

    @property
    def tokenizer(self) -> bytes: ...
    @property
    def tokenizer_config(self) -> bytes | None: ...
    @property
    def chat_template(self) -> bytes | None: ...
    @property
    def key(self) -> str: ...


class PromptRequest(NamedTuple):
    """One prompt to hash.

    body: parsed, as it goes to the frontend. headers: names in any case. block_sizes: one or
    two, each 16..65536. hides_unwanted_tools: of the card; `tool_choice: none` hides tools.
    """

    body: Mapping[str, Any]
    headers: Mapping[str, str]
    path: str
    files: Files
    block_sizes: tuple[int, ...]
    lora_name: str | None = None
    hides_unwanted_tools: bool = True


class PromptResult(NamedTuple):
    """What came of a prompt.

    result: READY, PROMPT_TOO_LARGE, RENDER_UNAVAILABLE, UNSUPPORTED or TOKENIZER_UNAVAILABLE.
    isl_tokens: of the prompt, 0 where not known. hashes: (block size, packed big-endian tokens
    hashes of complete blocks). token_ids: packed little-endian u32. detail: for the log.
    """

    result: KvResult
    isl_tokens: int = 0
    hashes: tuple[tuple[int, bytes], ...] = ()
    token_ids: bytes = b""
    detail: str = ""


class _NoPermit(Exception):
    """All permits are taken and stayed so."""


class _TooManyTexts(Exception):
    """So many rendered texts wait for their tokens that there is no room for another one."""


class _NoPrompt(Exception):
    """The body has no prompt that is predicted. result: why."""

    def __init__(self, result: KvResult, detail: str) -> None:
        super().__init__(detail)
        self.result = result


class _Permits:
    """At most `count` prompts are rendered at one time; who waits longer than a moment goes without."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)

    async def __aenter__(self) -> None:
        if not self._semaphore.locked():
            await self._semaphore.acquire()
            return
        try:
            async with asyncio.timeout(RENDER_PERMIT_US_MAX / SECOND_US):
                await self._semaphore.acquire()
        except TimeoutError:
            raise _NoPermit from None

    async def __aexit__(self, *_: object) -> None:
        self._semaphore.release()


class _Texts:
    """Texts whose tokens are waited for: at most ENCODE_TEXTS_MAX, and ENCODE_TEXTS_BYTES_MAX together."""

    def __init__(self) -> None:
        self.count = 0
        self.text_bytes = 0

    @contextmanager
    def held(self, text: bytes) -> Iterator[None]:
        """Hold a text for the length of a block. Raises _TooManyTexts."""
        if self.count >= ENCODE_TEXTS_MAX or self.text_bytes + len(text) > ENCODE_TEXTS_BYTES_MAX:
            raise _TooManyTexts
        self.count += 1
        self.text_bytes += len(text)
        try:
            yield
        finally:
            self.count -= 1
            self.text_bytes -= len(text)


class PromptBlocks:
    """Prompts of one router. All calls are made on one event loop.

    engine: minijinja or jinja2. cores: how many it may use, by default those of this process.
    """

    def __init__(self, engine: str = DEFAULT_ENGINE, cores: int | None = None) -> None:
        cores = cores or len(os.sched_getaffinity(0))
        self._engine = engine
        self._missing = [name for name in LIBRARIES if find_spec(name) is None]
        self._permits = _Permits(min(max(cores, RENDER_PERMITS_MIN), RENDER_PERMITS_MAX))
        self._texts = _Texts()
        self.renderers = RenderPool(min(cores, RENDER_PERMITS_MAX), RENDER_MEMORY_BYTES)
        self.encoders = RenderPool(min(max(2, cores), ENCODERS_MAX), ENCODE_MEMORY_BYTES, ENCODE_NICENESS)
        self.memo = SegmentMemo(PROMPT_SEGMENTS_BYTES_MAX)
        self._hash_memo = HashMemo(PROMPT_HASHES_BYTES_MAX)
        self._tokenizers = TokenizerPool(self.encoders, self.memo)
        self._names: dict[str, tuple[Load, str]] = {}
        self._mark = new_mark()

    async def blocks_of(self, request: PromptRequest) -> PromptResult:
        """The hashes of a prompt's blocks, or why there are none. Raises CancelledError only."""
        try:
            tokens = await self._tokens(request)
        except _NoPermit:
            return PromptResult(KvResult.RENDER_UNAVAILABLE, detail="no permit became free")
        except _TooManyTexts:
            return PromptResult(KvResult.RENDER_UNAVAILABLE, detail="too many texts wait to be encoded")
        except _NoPrompt as problem:
            return PromptResult(problem.result, detail=str(problem))
        except (Unavailable, JobFailed) as problem:
            return PromptResult(KvResult.RENDER_UNAVAILABLE, detail=str(problem))
        except TokenizerUnavailable as problem:
            return PromptResult(KvResult.TOKENIZER_UNAVAILABLE, detail=str(problem))
        except TextTooLarge:
            return PromptResult(KvResult.PROMPT_TOO_LARGE, detail="too much text")
        except TooManyTokens:
            return PromptResult(KvResult.PROMPT_TOO_LARGE, detail="too many tokens")
        seed = seed_of(request.lora_name, salt_of(request.headers, request.body))
        hashes = [(size, await self._hashed(tokens, size, seed)) for size in request.block_sizes]
        return PromptResult(KvResult.READY, len(tokens) // TOKEN_BYTES, tuple(hashes), tokens)

    def reconfigure(self, engine: str) -> None:
        """Render with this engine from now on."""
        if engine != self._engine:
            self._engine = engine
            self._names.clear()

    async def close(self) -> None:
        """End all processes."""
        await self._tokenizers.close()
        await self.renderers.close()
        await self.encoders.close()

    async def _tokens(self, request: PromptRequest) -> bytes:
        """Packed tokens. Raises what blocks_of has results for."""
        async with self._permits:
            deadline = asyncio.get_running_loop().time() + RENDER_US_MAX / SECOND_US
            text = await self._text(request, deadline)
        if isinstance(text, TokensGiven):
            return text.tokens
        with self._texts.held(text):
            _, tokenizer = self._named(request.files)
            return await self._tokenizers.tokens_of(tokenizer, request.files.tokenizer, text, deadline)

    async def _text(self, request: PromptRequest, deadline: float) -> bytes | TokensGiven:
        """The text to encode, UTF-8, or the tokens that a client gave."""
        given = render_input(request.path, request.body, hides_unwanted_tools=request.hides_unwanted_tools)
        if isinstance(given, TokensGiven):
            return given
        if isinstance(given, Unsupported):
            raise _NoPrompt(KvResult.UNSUPPORTED, given.detail)
        if isinstance(given, TooLarge):
            raise _NoPrompt(KvResult.PROMPT_TOO_LARGE, given.detail)
        if self._missing:
            raise Unavailable(f"{self._missing[0]} is not installed: the extra kv has it")
        if isinstance(given, TextGiven):
            return given.text.encode("utf-8", "replace")
        template, _ = self._named(request.files)
        return await self._rendered(template, given, deadline)

    async def _rendered(self, template: Load, given: RenderInput, deadline: float) -> bytes:
        """The rendered text, UTF-8."""
        try:
            body = (
                packed(given.messages, self._mark) if given.is_simple else orjson.dumps(given.messages),
                orjson.dumps(given.tools) if given.tools else b"",
                orjson.dumps(given.variables),
            )
        except (orjson.JSONEncodeError, UnicodeEncodeError, RecursionError) as problem:
            raise JobFailed("a body that JSON cannot hold") from problem
        if sum(map(len, body)) > RENDER_FRAME_BYTES_MAX // 2:
            raise TextTooLarge
        head = RENDER_HEAD.pack(_flags_of(given), len(body[0]), len(body[1])) + template.key.encode()
        frame = await self.renderers.run(template, Kind.RENDER, head, body, deadline)
        if len(frame.body) > PROMPT_TEXT_BYTES_MAX:
            raise TextTooLarge
        return frame.body

    async def _hashed(self, tokens: bytes, block_size: int, seed: int) -> bytes:
        """The block hashes, in turns with others where there are many tokens."""
        if len(tokens) <= HASHED_AT_ONCE:
            return self._hash_memo.block_hashes(tokens, block_size, seed)
        step = HASHED_AT_ONCE // (block_size * TOKEN_BYTES) * (block_size * TOKEN_BYTES)
        hashes = bytearray()
        for at in range(0, len(tokens), step):
            hashes += self._hash_memo.block_hashes(tokens[at : at + step], block_size, seed)
            await asyncio.sleep(0)
        assert len(hashes) % HASH_BYTES == 0
        return bytes(hashes)

    def _named(self, files: Files) -> tuple[Load, str]:
        """Short names of a model's template and tokenizer, and how to load the template."""
        named = self._names.get(files.key)
        if named is None:
            if len(self._names) >= TEMPLATES_NAMED_MAX:
                self._names.clear()
            name = hashlib.sha256(f"{self._engine} {files.key}".encode()).hexdigest()[:32]
            config, own = files.tokenizer_config, files.chat_template
            head = {
                "key": name,
                "engine": self._engine,
                "config": None if config is None else len(config),
                "template": None if own is None else len(own),
            }
            load = Load(name, Kind.TEMPLATE, orjson.dumps(head), (config or b"", own or b""))
            tokenizer = hashlib.sha256(files.key.encode()).hexdigest()[:32]
            named = self._names[files.key] = (load, tokenizer)
        return named


def _flags_of(given: RenderInput) -> int:
    """RenderFlags, as a number: sums of flags cost a microsecond each."""
    return (
        _ADDS_PROMPT * given.adds_generation_prompt
        + _CONTINUES * given.continues
        + _IS_PLAIN * given.is_plain
        + _IS_SIMPLE * given.is_simple
    )
