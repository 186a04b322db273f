"""The prompt of a group computed once, not once for each of its completions.

TRL scores every completion together with its prompt, so with groups of eight each prompt goes eight times through the
model, forward and backward. Where prompts are longer than completions, that is most of a step. Here the distinct
prompts of a batch go through it once; their keys and values are handed to every completion of the group, and the
gradient flows back through them. Log-probabilities and gradients are the same, but for the order of additions; where
that cannot be, it is done as TRL does it.

The last token of a prompt stays with the completion, since it predicts the first token of that.
"""

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from trl import GRPOTrainer

Scores = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]


class SharedPromptTrainer(GRPOTrainer):
    """A `GRPOTrainer` that computes each prompt once where it can.

    It cannot with images or the experts' loss, with gradient checkpointing, where a model wrapped for several processes
    takes one call per step, where dropout would draw for a group what it draws for each completion, where positions
    depend on the length of what is seen at once, and where a model keeps something else than plain keys and values.
    """

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: Any,
    ) -> Scores:
        score = super()._get_per_token_logps_and_entropies
        if any(value is not None and value is not False for value in others.values()) or not self._can_share(model):
            return score(model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others)
        size = batch_size or len(input_ids)
        scored: list[Scores] = [
            self._score_shared(model, ids, mask, logits_to_keep)
            or score(model, ids, mask, logits_to_keep, None, compute_entropy)
            for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True)
        ]
        entropies = torch.cat([part[1] for part in scored if part[1] is not None]) if compute_entropy else None
        return torch.cat([part[0] for part in scored]), entropies, None

    def _can_share(self, model: Any) -> bool:
        plain = self.accelerator.unwrap_model(model)
        config = plain.config.get_text_config()
        rope = getattr(config, "rope_parameters", None) or {}
        drops = model.training and (
            (getattr(config, "attention_dropout", None) or 0.0) > 0
            or any(isinstance(part, torch.nn.Dropout) and part.p > 0 for part in plain.modules())
        )
        return (
            self.accelerator.num_processes == 1
            and not getattr(plain, "is_gradient_checkpointing", False)
            and not drops
            and rope.get("rope_type") not in ("dynamic", "longrope")
            and all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
        )

    def _score_shared(self, model: Any, ids: torch.Tensor, mask: torch.Tensor, completion_length: int) -> Scores | None:
        """Log-probabilities and entropies (both rows × completion_length); None where no two rows have the same
        prompt, or the model has kept no keys and values of it."""
        prefix_length = ids.shape[1] - completion_length - 1
        if prefix_length < 1:
            return None
        prefix, prefix_mask = ids[:, :prefix_length], mask[:, :prefix_length]
        _, group = prefix.masked_fill(prefix_mask == 0, -1).unique(dim=0, return_inverse=True)
        count = int(group.max()) + 1
        if count == len(ids):
            return None
        places = torch.arange(len(ids), device=ids.device)
        first = group.new_full((count,), len(ids)).scatter_reduce(0, group, places, "amin")
        rest = ids[:, prefix_length:]
        labels = rest.masked_fill(mask[:, prefix_length:] == 0, -100)
        labels[:, 0] = -100  # the prompt's last token
        cache = DynamicCache(config=self.accelerator.unwrap_model(model).config)
        with self.accelerator.autocast():
            model(
                input_ids=prefix[first],
                attention_mask=prefix_mask[first],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            if cache.get_seq_length() != prefix_length:
                return None
            cache.batch_select_indices(group)
            found = model(input_ids=rest, attention_mask=mask, past_key_values=cache, labels=labels, fused_lm_head=True)
        return found.log_probs, found.entropy, None
