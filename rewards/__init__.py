"""Reward functions in TRL's calling convention, and what they are built from.

Every `*_reward_func` takes `prompts, completions, **columns`: lists of equal length, the completions either
strings or message lists, the dataset's columns as lists beside them. It returns one finite float per
completion, changes none of its arguments, and takes time linear in the length of its input.
"""

from rewards.boxed import boxed_accuracy_reward_func
from rewards.combine import combine
from rewards.errors import RewardError
from rewards.extract import extract_xml_answer
from rewards.formats import sections_format_reward_func, think_format_reward_func
from rewards.gsm8k import (
    correctness_reward_func,
    int_reward_func,
    soft_format_reward_func,
    strict_format_reward_func,
    xmlcount_reward_func,
)
from rewards.length import length_reward_func, long_completion_reward_func
from rewards.number import extract_hash_answer, extract_last_number, parse_number

__all__ = [
    "RewardError",
    "boxed_accuracy_reward_func",
    "combine",
    "correctness_reward_func",
    "extract_hash_answer",
    "extract_last_number",
    "extract_xml_answer",
    "int_reward_func",
    "length_reward_func",
    "long_completion_reward_func",
    "parse_number",
    "sections_format_reward_func",
    "soft_format_reward_func",
    "strict_format_reward_func",
    "think_format_reward_func",
    "xmlcount_reward_func",
]
