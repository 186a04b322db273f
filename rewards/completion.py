"""The two forms of a completion that TRL passes: a string, or a list of messages."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def texts(completions: Sequence[Any]) -> list[str]:
    """The text of each completion: the string itself, or what the assistant says in a list of messages.

    Several assistant messages (a conversation with tools) are joined by a line break. Raises `ValueError` for
    anything else.
    """
    return [_text(completion) for completion in completions]


def per_completion(completions: Sequence[Any], column: str, values: Sequence[T]) -> Iterator[tuple[str, T]]:
    """The text of each completion with its value of `column`. Raises `ValueError` where their numbers differ."""
    if len(values) != len(completions):
        raise ValueError(f"there are {len(values)} values of {column} for {len(completions)} completions")
    return zip(texts(completions), values, strict=True)


def is_assistant(message: dict[str, Any]) -> bool:
    """Whether the model wrote `message`; a message without a role counts as the model's."""
    return bool(message.get("role", "assistant") == "assistant")


def _text(completion: Any) -> str:
    match completion:
        case str():
            return completion
        case list():
            return "\n".join([_content(part.get("content")) for part in completion if is_assistant(part)])
        case _:
            raise ValueError(f"a completion is a string or a message list, not {type(completion).__name__}")


def _content(content: Any) -> str:
    """The text of a message's content: a string, a list of typed parts, or `None` beside tool calls."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")
    return str(content)
