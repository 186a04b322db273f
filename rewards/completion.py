"""The two forms of a completion that TRL passes: a string, or a list of messages."""

from collections.abc import Sequence
from typing import Any


def texts(completions: Sequence[Any]) -> list[str]:
    """The text of each completion: the string itself, or what the assistant says in a list of messages.

    Several assistant messages (a conversation with tools) are joined by a line break. Raises `ValueError` for
    anything else.
    """
    return [_text(completion) for completion in completions]


def is_assistant(message: dict[str, Any]) -> bool:
    """Whether the model wrote `message`; a message without a role counts as the model's."""
    return bool(message.get("role", "assistant") == "assistant")


def _text(completion: Any) -> str:
    match completion:
        case str():
            return completion
        case list():
            return "\n".join(_content(part.get("content")) for part in completion if is_assistant(part))
        case _:
            raise ValueError(f"a completion is a string or a message list, not {type(completion).__name__}")


def _content(content: Any) -> str:
    """The text of a message's content: a string, a list of typed parts, or `None` beside tool calls."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")
    return str(content)
