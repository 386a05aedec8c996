"""YAML text to plain data with the line of every key, under ceilings.

The loader is the safe one of PyYAML, further narrowed: one document, no tags beyond the plain scalars, no
duplicate keys, bounded size, depth, number of nodes and expanded aliases. Parser events are counted
before any node is built, so neither deep nesting nor an alias bomb costs memory. Timestamps and base-60
numbers (`12:30`) stay text. Whatever the text, the only exception that leaves is `ConfigError`, and it
never quotes the text.
"""

import re

import yaml

from app.config_findings import ConfigError, Finding, KeyPath, Place, Places

FILE_BYTES_MAX = 1 << 20
"""A configuration is written by people; a thousand keys with comments are about 50 KiB."""

DEPTH_MAX = 32
EVENTS_MAX = 100_000
NODES_MAX = 100_000
"""Nodes after aliases are expanded, so an alias costs what it stands for."""

_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset({_TAG + "str", _TAG + "timestamp", _TAG + "value"})
_SCALAR_TAGS = frozenset({_TAG + "int", _TAG + "float", _TAG + "bool", _TAG + "null"})
_QUOTED = re.compile(r"(['\"]).*\1", re.DOTALL)


def parse_yaml(text: bytes, source: str) -> tuple[object, Places]:
    """Data (dict, list, str, int, float, bool, None) of the one document, and where each key stands.

    source: what findings call the text, usually its path. An empty document is an empty mapping.
    Raises ConfigError; nothing else, for any bytes.
    """
    if len(text) > FILE_BYTES_MAX:
        raise _refusal(
            source, None, f"the file is larger than {FILE_BYTES_MAX // 1024} KiB", "split it or trim it"
        )
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise _refusal(source, line, "the file is not UTF-8 text", "save it as UTF-8") from None
    try:
        _check_events(decoded, source)
        node = yaml.compose(decoded, Loader=yaml.SafeLoader)
        reader = _NodeReader(source)
        data = {} if node is None else reader.read(node, (), 0)
    except yaml.YAMLError as error:
        raise _refusal(
            source, _error_line(error), _error_words(error), "check indentation and quoting"
        ) from None
    except RecursionError:
        raise _refusal(
            source, None, "the YAML refers to itself or is nested too deeply", "write it out"
        ) from None
    return ({} if data is None else data), reader.places


def parse_scalar(text: str, source: str) -> object:
    """One value from the environment or a command line.

    Text that starts with a bracket, a brace or a quote is read as YAML; `null` and `~` mean no value; all
    other text stays as it is, so that a password of digits stays a password (numbers and booleans are
    read by the key's own type). Raises ConfigError where bracketed text is not YAML.
    """
    stripped = text.strip()
    if stripped in ("null", "~"):
        return None
    if stripped[:1] in ("[", "{", '"', "'"):
        return parse_yaml(stripped.encode("utf-8", "surrogateescape"), source)[0]
    return text


def _check_events(text: str, source: str) -> None:
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_MAX:
            raise _refusal(source, _event_line(event), f"nested more than {DEPTH_MAX} deep", "flatten it")
        if count > EVENTS_MAX:
            raise _refusal(source, _event_line(event), f"more than {EVENTS_MAX} values", "trim the file")


def _event_line(event: yaml.Event) -> int | None:
    return None if event.start_mark is None else event.start_mark.line + 1


class _NodeReader:
    """Walks composed nodes once, expanding aliases under the node ceiling, and notes the line of each key."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.places = Places()
        self._scalars = yaml.constructor.SafeConstructor()
        self._nodes = 0

    def read(self, node: yaml.Node, keys: KeyPath, depth: int) -> object:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self._refuse(
                node, f"aliases expand to more than {NODES_MAX} values", "write the values out", keys
            )
        if depth > DEPTH_MAX:
            raise self._refuse(
                node, "the YAML refers to itself or is nested too deeply", "write it out", keys
            )
        self.places.known.setdefault(keys, Place(self.source, node.start_mark.line + 1))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, keys, depth)
        if isinstance(node, yaml.SequenceNode):
            if node.tag != _TAG + "seq":
                raise self._refuse(node, "a YAML tag that is not allowed here", "leave the tag out", keys)
            return [self.read(item, (*keys, index), depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node, keys)

    def _mapping(self, node: yaml.MappingNode, keys: KeyPath, depth: int) -> dict[str, object]:
        if node.tag != _TAG + "map":
            raise self._refuse(node, "a YAML tag that is not allowed here", "leave the tag out", keys)
        own: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._refuse(key_node, "a key must be plain text", "quote the key", keys)
            if key_node.tag == _TAG + "merge":
                merged.update(self._merge(value_node, keys, depth))
                continue
            key = key_node.value
            if key in own:
                raise self._refuse(key_node, "the key is written twice", "keep one of the two", (*keys, key))
            self.places.put((*keys, key), Place(self.source, key_node.start_mark.line + 1))
            own[key] = self.read(value_node, (*keys, key), depth + 1)
        return {**merged, **own}

    def _merge(self, node: yaml.Node, keys: KeyPath, depth: int) -> dict[str, object]:
        """`<<: *anchor` or `<<: [*first, *second]`, where the first named wins."""
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, object] = {}
        for part in reversed(parts):
            if not isinstance(part, yaml.MappingNode):
                raise self._refuse(node, "`<<` needs a mapping", "name an anchor of a mapping", keys)
            merged.update(self._mapping(part, keys, depth + 1))
        return merged

    def _scalar(self, node: yaml.Node, keys: KeyPath) -> object:
        if not isinstance(node.value, str) or node.tag in _TEXT_TAGS:
            return node.value
        if node.tag not in _SCALAR_TAGS:
            raise self._refuse(node, "a YAML tag that is not allowed here", "leave the tag out", keys)
        if ":" in node.value:
            return node.value
        try:
            return self._scalars.construct_object(node)
        except (ValueError, LookupError, OverflowError):
            raise self._refuse(node, "the value does not fit its YAML type", "quote it", keys) from None

    def _refuse(self, node: yaml.Node, message: str, hint: str, keys: KeyPath) -> ConfigError:
        return ConfigError([Finding(keys, message, hint, Place(self.source, node.start_mark.line + 1))])


def _refusal(source: str, line: int | None, message: str, hint: str) -> ConfigError:
    return ConfigError([Finding((), message, hint, Place(source, line))])


def _error_line(error: yaml.YAMLError) -> int | None:
    mark = getattr(error, "problem_mark", None)
    return None if mark is None else mark.line + 1


def _error_words(error: yaml.YAMLError) -> str:
    """PyYAML's own sentence without what it quotes from the text, which may be a secret."""
    problem = getattr(error, "problem", None)
    if not isinstance(problem, str):
        return "the file holds characters that YAML does not allow"
    return "not valid YAML: " + _QUOTED.sub("...", problem.splitlines()[0] if problem else "unreadable")
