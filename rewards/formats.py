"""Format rewards beside GSM8K's: thinking before answering, and named sections in order."""

import re
from collections.abc import Sequence
from typing import Any

from rewards.completion import texts
from rewards.traits import declare


@declare(maximum=1.0)
def think_format_reward_func(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """1.0 where the whole completion is `<think>…</think><answer>…</answer>`, otherwise 0.0.

    Each tag occurs once, both pairs hold some text (line breaks do not matter), and around and between them
    there is nothing but blank space.
    """
    return [float(_consists_of(text, ("think", "answer"))) for text in texts(completions)]


@declare(maximum=1.0)
def sections_format_reward_func(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    sections: Sequence[str] = ("intro", "body", "conclusion"),
    **columns: Any,
) -> list[float]:
    """1.0 where the whole completion is the named sections in order, `<intro>…</intro><body>…` and so on.

    Each tag occurs once, every section holds some text, and around and between them there is nothing but
    blank space. Raises `ValueError` for `sections` that are not different tag names.
    """
    _check_sections(sections)
    return [float(_consists_of(text, sections)) for text in texts(completions)]


def _check_sections(sections: Sequence[str]) -> None:
    listed = isinstance(sections, (list, tuple)) and len(sections) > 0
    if not listed or not all(isinstance(name, str) and re.fullmatch(r"[\w-]+", name) for name in sections):
        raise ValueError(f"sections must be a list of tag names such as intro, not {sections!r}")
    if len(set(sections)) < len(sections):
        raise ValueError(f"sections must be different names, not {sections!r}")


def _consists_of(text: str, names: Sequence[str]) -> bool:
    """Whether `text` is one filled pair of tags per name, in order, and otherwise blank."""
    rest = text
    for name in names:
        opening, closing = f"<{name}>", f"</{name}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            return False
        before, _, rest = rest.partition(opening)
        content, closed, rest = rest.partition(closing)
        if before.strip() or not content.strip() or not closed:
            return False
    return not rest.strip()
