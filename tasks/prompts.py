"""How a question becomes the token ids that the model continues.

Training (inside TRL), baseline and evaluation build prompts here, so that all see the same ids.
"""

from collections.abc import Sequence
from typing import Any

from tasks.config import PromptSettings

Messages = list[dict[str, str]]

# Appended to the tokenizer's chat template. It does nothing unless the keyword `opening` is given, so a tokenizer
# saved with it renders as before. A last assistant message would not do: TRL always asks for a generation prompt,
# which makes such a message a closed turn.
_OPENING = "{% if add_generation_prompt and opening is defined %}{{ opening }}{% endif %}"


def build_prompt(question: str, settings: PromptSettings) -> Messages | str:
    """The prompt of one question: messages, or the text alone where `settings.conversational` is false."""
    asked = settings.template.replace("{question}", question)
    if not settings.conversational:
        shots = [f"{settings.template.replace('{question}', shot.question)}{shot.answer}" for shot in settings.examples]
        return "\n\n".join([*([settings.system] if settings.system else []), *shots, asked])
    messages = [{"role": "system", "content": settings.system}] if settings.system else []
    for shot in settings.examples:
        messages.append({"role": "user", "content": settings.template.replace("{question}", shot.question)})
        messages.append({"role": "assistant", "content": shot.answer})
    return [*messages, {"role": "user", "content": asked}]


def template_arguments(settings: PromptSettings) -> dict[str, Any]:
    """What goes to `apply_chat_template` besides the messages (TRL's `chat_template_kwargs`)."""
    return {"opening": settings.opening} if settings.opening else {}


def teach_opening(tokenizer: Any, settings: PromptSettings) -> None:
    """Let the tokenizer's chat template append `settings.opening` to the generation prompt when it is asked to."""
    if settings.opening and _OPENING not in tokenizer.chat_template:
        tokenizer.chat_template += _OPENING


def encode(prompts: Sequence[Messages | str], tokenizer: Any, settings: PromptSettings) -> list[list[int]]:
    """Token ids of each prompt, exactly as TRL's `_tokenize_prompts` makes them. Nothing is padded."""
    if not prompts:
        return []
    if not settings.conversational:
        return tokenizer(text=list(prompts))["input_ids"]
    return tokenizer.apply_chat_template(
        conversation=list(prompts),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **template_arguments(settings),
    )["input_ids"]


def fitting(ids: Sequence[list[int]], settings: PromptSettings) -> list[int]:
    """The places of the prompts that are within `settings.max_tokens`."""
    return [place for place, prompt in enumerate(ids) if len(prompt) <= (settings.max_tokens or len(prompt))]


def as_completion(text: str, settings: PromptSettings) -> Messages | str:
    """A completion in the form in which TRL hands it to reward functions."""
    return [{"role": "assistant", "content": text}] if settings.conversational else text
