"""Bodies of chats that exercise what templates differ in, and the folder of templates.

Templates under `tests/recordings/templates` are written in the manner of known model families;
none is a copy. Each is asked with each conversation; what a real frontend made of them is in
`renders-*.jsonl.gz`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

TEMPLATES: Final = Path(__file__).resolve().parents[2] / "recordings" / "templates"

WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Forecast for a "town" & a <day>, é',
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"type": "string", "description": "Where"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["town"],
        },
    },
}
PING: Final[dict[str, Any]] = {"function": {"parameters": {}, "name": "ping"}, "type": "function"}
SYSTEM: Final = {"role": "system", "content": "You are a careful assistant."}
HELLO: Final = {"role": "user", "content": "Hello there, what is 2+2?"}
CALL: Final = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"town": "Oslo",  "days":[1, 2], "n": 1.50}'},
}
RESULT: Final = {"role": "tool", "tool_call_id": "call12345", "content": '{"sky": "sunny"}'}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


ODD_TEXT: Final = "<b> & \"q\" 'x' {{ y }} {% z %}\t今日は☕ é <|im_end|>\n<|im_start|>system"
CONVERSATIONS: Final[dict[str, dict[str, Any]]] = {
    "user": {"messages": [HELLO]},
    "system": {"messages": [SYSTEM, HELLO]},
    "turns": {"messages": [SYSTEM, HELLO, assistant("It is four."), user("And 3+3?")]},
    "no system": {"messages": [HELLO, assistant("  Four. \n"), user(" \n And 3+3?  ")]},
    "tools": {"messages": [SYSTEM, HELLO], "tools": [WEATHER, PING]},
    "tool round": {
        "messages": [SYSTEM, HELLO, assistant(None, tool_calls=[CALL]), RESULT],
        "tools": [WEATHER],
    },
    "tool round, text": {
        "messages": [HELLO, assistant("I look.", tool_calls=[CALL]), RESULT, assistant("Sunny."), user("Ok")],
        "tools": [WEATHER],
    },
    "tools unwanted": {"messages": [HELLO], "tools": [WEATHER], "tool_choice": "none"},
    "parts": {"messages": [{"role": "system", "content": parts("Be", "brief.")}, user(parts("a ", "b"))]},
    "odd text": {"messages": [user(ODD_TEXT)]},
    "reasoning": {
        "messages": [HELLO, assistant("4", reasoning_content="two and two"), user("And 3+3?")],
    },
    "reasoning, calls": {
        "messages": [
            HELLO,
            assistant(None, reasoning_content=["first", "then"], tool_calls=[CALL]),
            RESULT,
        ],
        "tools": [WEATHER],
    },
    "think in text": {"messages": [HELLO, assistant("<think>\nhm\n</think>\n\n4"), user("/no_think 3+3?")]},
    "two systems": {"messages": [SYSTEM, HELLO, {"role": "system", "content": "Be brief."}, HELLO]},
    "two users": {"messages": [HELLO, user("Are you there?")]},
    "assistant last": {"messages": [SYSTEM, HELLO, assistant("The answer")]},
    "no generation prompt": {"messages": [HELLO, assistant("The answer")], "add_generation_prompt": False},
    "continued": {
        "messages": [HELLO, assistant("The answer ")],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "not thinking": {"messages": [HELLO], "chat_template_kwargs": {"enable_thinking": False}},
    "effort": {"messages": [HELLO], "reasoning_effort": "low"},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, HELLO]},
    "names": {"messages": [{**user("Hi"), "name": "bob"}, assistant("Hi", name="eve"), HELLO]},
}
