"""Putting the prompt's opening back in front of a completion.

Where the prompt ends in an opening such as `<reasoning>\\n`, the model goes on from there, and TRL passes
only what it generated. Rewards want the text as it will be read.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rewards.calling import Reward, is_async
from rewards.combine import combine
from rewards.completion import is_assistant
from rewards.traits import traits_of


def with_opening(reward: Reward, opening: str) -> Reward:
    """`reward` for completions that lack `opening`.

    A reward of the completion alone (the length family) stays as it is; of a combined reward each part is
    treated for itself.
    """
    parts = getattr(reward, "parts", None)
    if parts is not None:
        opened = [(with_opening(part, opening), weight) for part, weight in parts]
        return combine(*opened, **reward.options)  # type: ignore[attr-defined]
    if not opening or traits_of(reward).completion_alone:
        return reward
    return _preceded(reward, lambda completions: [put_back(opening, completion) for completion in completions])


def put_back(opening: str, completion: Any) -> Any:
    """`completion` (a string or a message list, which is not changed) with `opening` in front of its text.

    In a message list it goes in front of the first thing the assistant says.
    """
    if isinstance(completion, str):
        return opening + completion
    opened = list(completion)
    for position, message in enumerate(opened):
        if is_assistant(message):
            opened[position] = {**message, "content": _prefixed(opening, message.get("content"))}
            break
    return opened


def _preceded(reward: Reward, change: Callable[[Sequence[Any]], list[Any]]) -> Reward:
    if is_async(reward):

        async def opened_async(completions: Sequence[Any], **columns: Any) -> Any:
            return await reward(completions=change(completions), **columns)

        return opened_async

    def opened(completions: Sequence[Any], **columns: Any) -> Any:
        return reward(completions=change(completions), **columns)

    return opened


def _prefixed(opening: str, content: Any) -> Any:
    if isinstance(content, list):
        return [{"type": "text", "text": opening}, *content]
    return opening + (content or "")
