"""Micro-batches of the update and their forward pass, with every distinct text computed once.

The completions of a group share their prompt, so computing it once for all of them saves most of
the work if prompts are long and completions short. Where completions begin alike, so that
beginning is computed once as well. A prompt that begins with another one and a completion of it
continues their conversation, which is computed once, too. A packed micro-batch is one flat list of
tokens, prompt 1, its completions, prompt 2, its completions, and so on, without padding;
`PackedLayout` decides which token sees which. The numbers are those of separate rows. A model whose
attention cannot be replaced gets separate ("flat") rows: a prompt and a completion each, padded,
with an ordinary mask.

Shapes: `_B` completions, `_T` completion tokens, `_M` completion tokens of all completions, one after
the other, `_P` different pairs of a text and the token after it, `_C` tokens of one chunk in the head,
`_X` hidden size, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from pettingllms.errors import GroupError
from pettingllms.models.shared_prompts import PackedLayout, Reply, hidden_states
from pettingllms.types import Sample

_Ids = tuple[int, ...]
_Turn = tuple[_Ids, _Ids]
"""A prompt and a completion."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: completions of one policy as tensors for the loss."""

    samples: tuple[Sample, ...]
    """Completions of the same prompt stand side by side."""
    index: tuple[int, ...]
    """Position of each completion in the list that was cut into micro-batches."""
    packed: bool
    tokens: int
    """Positions that the forward pass computes, padding included."""
    mask_BT: torch.Tensor
    """True on completion tokens."""
    token_ids_BT: torch.Tensor
    old_logprobs_BT: torch.Tensor
    advantages_BT: torch.Tensor
    """Of each token; 0 where `mask_BT` is False."""
    counts_B: torch.Tensor
    """How many identical completions each one stands for, float32."""
    earlier: Mapping[_Ids, _Turn]
    """The turn that a prompt continues (`earlier_turns`), of any micro-batch."""


def microbatches(
    samples: Sequence[Sample],
    tokens_per_batch: int,
    *,
    packed: bool,
    device: torch.device | str = "cpu",
) -> list[Batch]:
    """Cuts samples into micro-batches of at most `tokens_per_batch` positions.

    A group that does not fit into one is cut between completions. A completion that is too long
    even alone, with its prompt, is a micro-batch of its own: nothing is ever left out.

    Args:
        samples: completions of one policy, each of at least one token; those with equal prompt
            ids form a group, wherever they stand in the list.
        tokens_per_batch: counts padding if rows are flat.
        packed: True for packed lists, False for flat rows.
        device: of the tensors.

    Raises:
        GroupError: a sample without prompt or completion tokens.
    """
    for number, sample in enumerate(samples):
        if not sample.prompt_ids or not sample.token_ids:
            raise GroupError(f"sample {number} has no prompt or no completion tokens")
    earlier = earlier_turns(samples) if packed else {}
    parts = (
        _packed_parts(samples, earlier, tokens_per_batch)
        if packed
        else _flat_parts(samples, tokens_per_batch)
    )
    return [_batch(samples, indices, earlier, packed, device) for indices in parts]


def _packed_parts(
    samples: Sequence[Sample], earlier: Mapping[_Ids, _Turn], limit: int
) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    used, here = 0, _Contents(earlier)
    for indices in _conversations(samples, earlier):
        alone = _Contents(earlier)
        opened = used and used + sum(alone.add(samples[index]) for index in indices) > limit
        for index in indices:
            cost = here.cost(samples[index])
            # The turns that a long conversation went through cost nothing beside it.
            if opened or (used and cost and used + cost > limit):
                parts.append([])
                used, here, opened = 0, _Contents(earlier), False
            used += here.add(samples[index])
            parts[-1].append(index)
    return [indices for indices in parts if indices]


def _conversations(samples: Sequence[Sample], earlier: Mapping[_Ids, _Turn]) -> list[list[int]]:
    """Positions of the samples of each conversation: one prompt, or all that continue each other.

    Completions that begin alike stand side by side, and prompts behind those that continue them.
    """
    groups: dict[_Ids, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.prompt_ids, []).append(index)
    conversations: dict[_Ids, list[_Ids]] = {}
    for prompt in groups:
        first = prompt
        while first in earlier:
            first, _ = earlier[first]
        conversations.setdefault(first, []).append(prompt)
    return [
        [
            index
            for prompt in sorted(prompts, reverse=True)
            for index in sorted(groups[prompt], key=lambda index: samples[index].token_ids)
        ]
        # Similar prompts go together, because attention pads them.
        for prompts in sorted(conversations.values(), key=lambda prompts: max(map(len, prompts)))
    ]


def earlier_turns(samples: Sequence[Sample]) -> dict[_Ids, _Turn]:
    """The latest turn that a prompt begins with: a shorter prompt and a completion of it.

    Compared token by token: chat templates may write a reply in another way than it was sampled.
    """
    completions: dict[_Ids, list[_Ids]] = {}
    for sample in samples:
        completions.setdefault(sample.prompt_ids, []).append(sample.token_ids)
    earlier: dict[_Ids, _Turn] = {}
    beginnings: list[_Ids] = []
    """The prompts that the current one begins with, which stand before it in this order."""
    for prompt in sorted(completions):
        while beginnings and prompt[: len(beginnings[-1])] != beginnings[-1]:
            beginnings.pop()
        for begin in reversed(beginnings):
            rest = prompt[len(begin) :]
            turns = [(begin, ids) for ids in completions[begin] if rest[: len(ids)] == ids]
            if turns:
                earlier[prompt] = turns[0]
                break
        beginnings.append(prompt)
    return earlier


class _Contents:
    """What a micro-batch holds, and what another sample adds to it: positions in memory.

    Attention keeps a prompt's keys and values once for each completion that no prompt continues. What
    a layer keeps of one position in all is about eight times as much.
    """

    def __init__(self, earlier: Mapping[_Ids, _Turn]) -> None:
        self._earlier = earlier
        self._prompts: set[_Ids] = set()
        """With those that they continue."""
        self._turns: set[_Turn] = set()
        """Those that the prompts continue."""
        self._last: Sample | None = None

    def cost(self, sample: Sample) -> int:
        """Positions that the sample would add."""
        prompt, completion = len(sample.prompt_ids), len(sample.token_ids)
        if self._turns and (sample.prompt_ids, sample.token_ids) in self._turns:
            return 0
        cost = completion - _begun(self._last, sample) + (prompt + completion) // 8
        if self._last is None or self._last.prompt_ids != sample.prompt_ids:
            cost += prompt - self._shared(sample.prompt_ids)
        return cost

    def _shared(self, prompt: _Ids) -> int:
        """How many tokens of a prompt are there already."""
        turn: _Turn | None = None
        while prompt not in self._prompts:
            turn = self._earlier.get(prompt)
            if turn is None:
                return 0
            if turn in self._turns:
                return len(turn[0]) + len(turn[1])
            prompt = turn[0]
        return len(prompt)

    def add(self, sample: Sample) -> int:
        """Adds a sample; returns its cost."""
        cost, prompt = self.cost(sample), sample.prompt_ids
        if self._last is None or self._last.prompt_ids != prompt:
            self._prompts.add(prompt)
            while prompt in self._earlier:
                self._turns.add(self._earlier[prompt])
                prompt, _ = self._earlier[prompt]
                self._prompts.add(prompt)
        self._last = sample
        return cost


def _begun(before: Sample | None, sample: Sample) -> int:
    """Counts the tokens that two completions of a prompt begin with in common.

    Without the last token of either: nothing follows it, so that it is not computed.
    """
    if before is None or before.prompt_ids != sample.prompt_ids:
        return 0
    pairs = zip(before.token_ids[:-1], sample.token_ids[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _flat_parts(samples: Sequence[Sample], limit: int) -> list[list[int]]:
    def lengths(index: int) -> tuple[int, int]:
        return len(samples[index].prompt_ids), len(samples[index].token_ids)

    parts: list[list[int]] = [[]]
    left = right = 0
    for index in sorted(range(len(samples)), key=lambda index: (sum(lengths(index)), index)):
        prompt, completion = lengths(index)
        left, right = max(left, prompt), max(right, completion)
        if parts[-1] and (len(parts[-1]) + 1) * (left + right) > limit:
            parts.append([])
            left, right = prompt, completion
        parts[-1].append(index)
    return [indices for indices in parts if indices]


def _batch(
    samples: Sequence[Sample],
    indices: Sequence[int],
    earlier: Mapping[_Ids, _Turn],
    packed: bool,
    device: torch.device | str,
) -> Batch:
    chosen = tuple(samples[index] for index in indices)
    if packed:
        tokens = len(Packed(chosen, earlier).ids)
    else:
        width = max(len(s.prompt_ids) for s in chosen) + max(len(s.token_ids) for s in chosen)
        tokens = len(chosen) * width
    return Batch(
        samples=chosen,
        index=tuple(indices),
        packed=packed,
        tokens=tokens,
        mask_BT=_rows([torch.ones(len(s.token_ids), dtype=torch.bool) for s in chosen], device),
        token_ids_BT=_rows([torch.tensor(sample.token_ids) for sample in chosen], device),
        old_logprobs_BT=_rows([torch.tensor(sample.logprobs) for sample in chosen], device),
        # One number for all tokens, or one for each.
        advantages_BT=_rows(
            [
                torch.tensor(s.advantage, dtype=torch.float32).expand(len(s.token_ids))
                for s in chosen
            ],
            device,
        ),
        counts_B=torch.tensor([float(sample.count) for sample in chosen], device=device),
        earlier=earlier,
    )


def _rows(values: list[torch.Tensor], device: torch.device | str) -> torch.Tensor:
    """One row for each, filled up with zeros."""
    return pad_sequence(values, batch_first=True).to(device)


def batch_logprobs(
    model: PreTrainedModel,
    batch: Batch,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_grad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Computes log-probabilities of the completion tokens, in float32, 0 where `mask_BT` is False.

    Args:
        model: a causal model on the batch's device.
        batch: from `microbatches`.
        temperature: divides the logits, as it did in sampling.
        entropy: also return the entropy, in nats, of each token's distribution.
        entropy_grad: let gradients flow through the entropy.

    Returns:
        Log-probabilities `_BT`, and entropies `_BT` or None.
    """
    predicted = predictions(model, batch)
    logprobs_P, entropies_P = token_logprobs(
        model,
        predicted.states_PX,
        predicted.ids_P,
        temperature=temperature,
        entropy=entropy,
        entropy_grad=entropy_grad,
    )
    entropies_BT = (
        None if entropies_P is None else _by_completion(batch, entropies_P[predicted.of_M])
    )
    return _by_completion(batch, logprobs_P[predicted.of_M]), entropies_BT


class Predictions(NamedTuple):
    """The different pairs `_P` of a text and the token after it, and where they are in a batch."""

    states_PX: torch.Tensor
    """Last hidden states of the texts."""
    ids_P: torch.Tensor
    of_M: torch.Tensor
    """The pair of each completion token, one completion after the other."""


def predictions(model: PreTrainedModel, batch: Batch) -> Predictions:
    """Computes the hidden states that predict the completion tokens."""
    return _packed_predictions(model, batch) if batch.packed else _flat_predictions(model, batch)


def _by_completion(batch: Batch, values_M: torch.Tensor) -> torch.Tensor:
    return values_M.new_zeros(batch.mask_BT.shape).masked_scatter(batch.mask_BT, values_M)


class Packed:
    """The flat list of a packed micro-batch.

    Args:
        samples: completions of the same prompt that begin alike stand side by side.
        earlier: the turns that prompts continue.
    """

    def __init__(
        self, samples: Sequence[Sample], earlier: Mapping[_Ids, _Turn] = MappingProxyType({})
    ) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        """Of each token in its own text."""
        self.prompts: list[list[int]] = []
        """The places of each prompt's tokens. One that others continue is the beginning of those."""
        self.completions: list[list[Reply]] = []
        """For each prompt those that follow it or its beginnings, without the last token of each. One
        that a prompt continues is in that prompt."""
        self.predicting: list[int] = []
        """The place before each completion token, one completion after the other."""
        self._next: dict[tuple[int, int], int] = {}
        """Place and following token -> the place of that token."""
        self._earlier = earlier
        self._places: dict[_Ids, list[int]] = {}
        replies: dict[_Ids, list[list[int]]] = {}
        for sample in samples:
            last = self._prompt(sample.prompt_ids)[-1]
            reply = self._behind(last, sample.token_ids[:-1])
            replies.setdefault(sample.prompt_ids, []).append(reply)
            # The prompt's last token predicts the first one of every completion.
            self.predicting += [last, *reply]
        self._hang(replies)

    def _prompt(self, prompt: _Ids) -> list[int]:
        """The places of a prompt's tokens, which are added if they are not there."""
        missing = []
        while prompt not in self._places:
            missing.append(prompt)
            if prompt not in self._earlier:
                break
            prompt, _ = self._earlier[prompt]
        for tokens in reversed(missing):
            if tokens in self._earlier:
                begun = self._places[self._earlier[tokens][0]]
                self._places[tokens] = begun + self._behind(begun[-1], tokens[len(begun) :])
            else:
                self._places[tokens] = [*range(len(self.ids), len(self.ids) + len(tokens))]
                self.ids += tokens
                self.positions += range(len(tokens))
        return self._places[missing[0] if missing else prompt]

    def _hang(self, replies: Mapping[_Ids, Sequence[list[int]]]) -> None:
        """Finds the prompts that no other continues, and hangs the completions from them."""
        later: dict[_Ids, list[_Ids]] = {prompt: [] for prompt in self._places}
        for prompt in self._places:
            if prompt in self._earlier:
                later[self._earlier[prompt][0]].append(prompt)
        rows: dict[_Ids, int] = {}
        """Of each prompt the first one in which it is the beginning."""
        for prompt in (prompt for prompt in self._places if not later[prompt]):
            self.prompts.append(self._places[prompt])
            self.completions.append([])
            beginning: _Ids | None = prompt
            while beginning is not None and beginning not in rows:
                rows[beginning] = len(self.prompts) - 1
                beginning = self._earlier[beginning][0] if beginning in self._earlier else None
        for prompt, places in replies.items():
            start = len(prompt)
            for reply in places:
                continued = (
                    self._places[longer][start : start + len(reply)] for longer in later[prompt]
                )
                if reply not in continued:
                    self.completions[rows[prompt]].append(Reply(reply, start))

    def _behind(self, place: int, tokens: Sequence[int]) -> list[int]:
        """The places of tokens behind a place, of which those that stand there already are used again."""
        places = []
        for token in tokens:
            following = self._next.setdefault((place, token), len(self.ids))
            if following == len(self.ids):
                self.ids.append(token)
                self.positions.append(self.positions[place] + 1)
            places.append(place := following)
        return places


def _packed_predictions(model: PreTrainedModel, batch: Batch) -> Predictions:
    """`predictions` from one row in which each distinct text stands once."""
    packed, device = Packed(batch.samples, batch.earlier), batch.mask_BT.device
    layout = PackedLayout(packed.prompts, packed.completions, device)
    # Completions that begin alike are predicted from the same states, and the same token of them
    # is scored once: logits of all words are computed for each.
    pairs: dict[tuple[int, int], int] = {}
    tokens = (token for sample in batch.samples for token in sample.token_ids)
    of = [pairs.setdefault(p, len(pairs)) for p in zip(packed.predicting, tokens, strict=True)]
    ids_N, position_N, place_P, ids_P, of_M = (
        torch.tensor(values, device=device)
        for values in (packed.ids, packed.positions, *zip(*pairs, strict=True), of)
    )
    states_PX = hidden_states(model, layout, ids_N[None], position_N[None])[0, place_P]
    return Predictions(states_PX, ids_P, of_M)


def _flat_predictions(model: PreTrainedModel, batch: Batch) -> Predictions:
    """`predictions` from one row per completion."""
    device = batch.mask_BT.device
    prompts = [torch.tensor(sample.prompt_ids) for sample in batch.samples]
    ones = [torch.ones_like(prompt) for prompt in prompts]
    # Prompts are padded on the left, so that all completions begin in one column.
    ids_BP, ones_BP = (pad_sequence(rows, True, 0, "left").to(device) for rows in (prompts, ones))
    left, mask_BS = ids_BP.shape[1], torch.cat([ones_BP, batch.mask_BT.long()], 1)
    states: torch.Tensor = model.base_model(
        input_ids=torch.cat([ids_BP, batch.token_ids_BT], 1),
        attention_mask=mask_BS,
        position_ids=(mask_BS.cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
    ).last_hidden_state
    ids_M = batch.token_ids_BT[batch.mask_BT]
    return Predictions(
        states[:, left - 1 : -1][batch.mask_BT], ids_M, torch.arange(len(ids_M), device=device)
    )


def last_states(
    model: PreTrainedModel,
    rows: Sequence[tuple[int, ...]],
    device: torch.device,
    over: Sequence[int] | None = None,
) -> torch.Tensor:
    """The decoder's last hidden state after each list of tokens: float32 `_RX` on the CPU, `_R` rows.

    With `over`, the mean over so many tokens at the end of each list.
    """
    ids_RT = _rows([torch.tensor(row) for row in rows], device)
    ends_R = torch.tensor([len(row) - 1 for row in rows], device=device)
    places_T = torch.arange(ids_RT.shape[1], device=device)
    mask_RT = places_T[None] <= ends_R[:, None]
    states_RTX = model.base_model(
        input_ids=ids_RT, attention_mask=mask_RT.long(), use_cache=False
    ).last_hidden_state
    if over is not None:
        counts_R = torch.tensor(over, device=device)
        read_RT = mask_RT & (places_T[None] > (ends_R - counts_R)[:, None])
        summed_RX: torch.Tensor = (states_RTX.float() * read_RT[:, :, None]).sum(1)
        return (summed_RX / counts_R[:, None]).cpu()
    chosen_RX: torch.Tensor = states_RTX[torch.arange(len(rows), device=device), ends_R]
    return chosen_RX.float().cpu()


# ----------------------------------------------------------------------------------------- head
# The logits of a batch are its tokens times the vocabulary, in several copies: with 150,000 words they are by far the
# largest thing that an update holds. They are computed for a limited number of tokens at a time, so that their size does
# not grow with the batch.

LOGITS_PER_CHUNK = 1 << 25
"""128 MiB in float32; an update holds about three times that."""
_CACHED_LOGITS = 1 << 18
"""1 MiB in float32, what a core keeps at hand."""


def token_logprobs(
    model: PreTrainedModel,
    states_MX: torch.Tensor,
    ids_M: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_grad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each token `_M` after its last hidden state; the options are `batch_logprobs`'s.

    Returns:
        float32 of shape `_M` each; None for entropies that were not asked for.
    """
    score = partial(_score, temperature=temperature, entropy=entropy)
    head = model.get_output_embeddings()
    size = max(1, LOGITS_PER_CHUNK // head.weight.shape[0])
    trained = any(parameter.requires_grad for parameter in head.parameters())

    def whole(states_CX: torch.Tensor, ids_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return score(logits(model, states_CX), ids_C, entropy_grad=entropy_grad)[:2]

    scorer: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    if not torch.is_grad_enabled() or not (entropy_grad or trained):
        scorer = partial(_with_slopes, model, score, temperature)
    elif len(ids_M) <= size:
        scorer = whole  # a single chunk is small enough to be kept until the backward pass
    else:
        scorer = partial(checkpoint, whole, use_reentrant=False)
    chunks = zip(states_MX.split(size), ids_M.split(size), strict=True)
    scored = [scorer(*chunk) for chunk in chunks]
    logprobs, entropies = (torch.cat(values) for values in zip(*scored, strict=True))
    return logprobs, entropies if entropy else None


def _score(
    values_CV: torch.Tensor,
    ids_C: torch.Tensor,
    *,
    temperature: float,
    entropy: bool,
    entropy_grad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of tokens, entropies or nothing, and log-probabilities of the whole vocabulary."""
    # A sum over a vocabulary needs more than the two or three digits of bfloat16.
    values_CV = values_CV.float()
    if temperature != 1.0:
        values_CV = values_CV / temperature
    # Under one name, so that what is no longer needed is freed.
    values_CV = nn.functional.log_softmax(values_CV, -1)
    logprobs_C = -nn.functional.nll_loss(values_CV, ids_C, reduction="none")
    if not entropy:
        # Empty in place of entropies, so that all chunks are joined in the same way.
        return logprobs_C, logprobs_C.new_empty(0), values_CV
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        return logprobs_C, -torch.linalg.vecdot(values_CV.exp(), values_CV), values_CV


def _with_slopes(
    model: PreTrainedModel,
    score: Callable[..., tuple[torch.Tensor, ...]],
    temperature: float,
    states_CX: torch.Tensor,
    ids_C: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores a chunk, and takes its backward pass at once, so that no logits are kept or computed again.

    A log-probability follows from one state alone: its slope is the same whatever the loss makes of it. Slopes take the
    place of the logits. On a CPU a few rows at a time go through all steps, while they are in its cache.
    """
    slopes = torch.is_grad_enabled()
    leaf_CX = states_CX.detach().requires_grad_(slopes)
    values_CV = logits(model, leaf_CX)
    size = (
        max(1, _CACHED_LOGITS // values_CV.shape[1])
        if values_CV.device.type == "cpu"
        else len(ids_C)
    )
    scored = list[tuple[torch.Tensor, ...]]()
    with torch.no_grad():
        for values_RV, ids_R in zip(values_CV.detach().split(size), ids_C.split(size), strict=True):
            *scores, logprobs_RV = score(values_RV, ids_R)
            scored.append(tuple(scores))
            if slopes:  # of softmax: one at the token, less the probabilities
                slopes_RV = logprobs_RV.exp_().neg_()
                slopes_RV[torch.arange(len(ids_R), device=ids_R.device), ids_R] += 1.0
                values_RV.copy_(slopes_RV if temperature == 1.0 else slopes_RV.div_(temperature))
    logprobs_C, entropies_C = (torch.cat(values) for values in zip(*scored, strict=True))
    if not slopes:
        return logprobs_C, entropies_C
    (slopes_CX,) = torch.autograd.grad(values_CV, leaf_CX, values_CV.detach())
    moved_CX = (states_CX - leaf_CX.detach()).float()  # 0, with the gradient of the states
    return logprobs_C + torch.linalg.vecdot(moved_CX, slopes_CX.float()), entropies_C


def logits(model: PreTrainedModel, states: torch.Tensor) -> torch.Tensor:
    """The model's logits from last hidden states, with the scaling that some families add.

    `tests/test_families.py` and a trial at loading compare it with the model's own.
    """
    config = model.config.get_text_config(decoder=True)
    values: torch.Tensor = model.get_output_embeddings()(states)
    if getattr(config, "logit_scale", None) is not None:  # Cohere
        values = values * config.logit_scale
    if getattr(config, "logits_scaling", None) is not None:  # Granite
        values = values / config.logits_scaling
    if getattr(config, "final_logit_softcapping", None) is not None:  # Gemma 2 and 3
        cap = config.final_logit_softcapping
        values = torch.tanh(values / cap) * cap
    return values
