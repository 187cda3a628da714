"""`Advice`: does a team learn more with one shared policy, or with a policy for each role?

It reads the gradients of a shared policy in the first part of a run. Only products of gradients of different blocks of
steps count: the noise of a step is in no product, while cosines of single steps are biased to 0 by it.

    b[i,k]   mean gradient of role i in block k; a step belongs to block (step mod 8)
    p[i,j]   mean over k != l of b[i,k] * b[j,l]          by coordinate
    own_i    sum p[i,i] / sqrt(v[i])                      what a step of Adam adds to role i in a policy
    all_i    sum_j s[j] sum p[i,j] / sqrt(v_all)          for itself, and in the shared one, to first order
    G        mean_i (own_i - all_i) / (own_i + all_i)     -1 to 1, negative parts as 0

`v` is the mean square of a gradient, `s` a role's share of the tokens. The error of G is the jackknife's over blocks, widened by
`WIDER`; its interval is Student's. G says how much faster roles learn apart at the same rate. How much of that is left at the end depends on
`overlap`, the share of prompts that another role is shown as well: `expected`.

`expected` was fitted elsewhere; docs/advice.md has how far it held on `duet`. Reading changes nothing of the training.

Shapes: _R roles, _J blocks, _D weights.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pettingllms.errors import ConfigError
from pettingllms.names import trained_policies
from pettingllms.trainers.at_grpo import last_step
from pettingllms.trainers.callbacks import Callback
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.types import Sample

if TYPE_CHECKING:
    from pettingllms.trainers.at_grpo import ATGRPO

BLOCKS = 8
SHARE = 0.1
"""Of a run that is read, but at least one step for each block."""
WIDER = 1.25
"""Factor of the jackknife's error, which is too small for estimates of so few blocks."""
STUDENT = 1.415
"""Half the width of an interval of 80 % in standard errors, with 7 degrees of freedom."""
TINY = 1e-12
WORTH = 0.05
"""Least expected difference for which a policy for each role is recommended."""
MEASURED = {
    "per-role": "after a third of a run on duet it was right in 16 of 19 runs",
    "shared": "after a third of a run on duet it was right in 1 of 2 runs",
    "undecided": "after a tenth of a run on duet the sign of G was right in 90 of 108 runs",
}
"""Recommendation -> how often it was right (`python -m benchmarks.advice`)."""


def expected(surplus: float, overlap: float) -> float:
    """Returns the success that a policy for each role adds at the end, as a study of small networks has it."""
    return 0.27 * surplus + overlap * (0.07 + 0.33 * surplus)


def check_advise(config: ResolvedConfig, roles_to_policies: Mapping[str, str]) -> None:
    """Refuses runs whose signals cannot be computed.

    Raises:
        ConfigError: names the reason and what to change.
    """
    learners = trained_policies(config.train_roles, roles_to_policies)
    sharing = [role for role, policy in roles_to_policies.items() if policy in learners]
    few, steps = config.max_steps < BLOCKS, f"at least {BLOCKS} steps, got {config.max_steps}"
    for applies, reason in (
        (len(learners) > 1, "compares roles in one shared policy; add --policies shared"),
        (len(sharing) < 2, "needs a policy that several roles share; this team has one role"),
        (config.workers > 0, "reads gradients in this process; leave out --workers"),
        (config.beta > 0, "reads gradients of rewards alone; leave out --beta"),
        (few, f"needs {steps}; raise --max-steps"),
        (config.num_iterations == 0, "needs updates, got num_iterations 0"),
    ):
        if applies:
            raise ConfigError(f"advise {reason}")


class Reading(NamedTuple):
    """What the gradients of some steps say."""

    surplus: float
    """G."""
    error: float
    """Of G, widened."""
    cosines: Mapping[str, tuple[float, float] | None]
    """Pair of roles -> how far their gradients agree, and its error; None where a norm is not above 0."""
    shares: Mapping[str, float]
    """Role -> share of the tokens."""
    overlap: float
    steps: int

    @property
    def reach(self) -> float:
        """Half the width of the interval of G."""
        return STUDENT * self.error

    @property
    def silent(self) -> list[str]:
        """Roles that had nothing to learn from; of two policies for them nothing is known."""
        return [role for role, share in self.shares.items() if not share]

    @property
    def expected(self) -> float:
        """Success that a policy for each role is expected to add."""
        return expected(self.surplus, self.overlap)

    @property
    def recommendation(self) -> str:
        """`per-role`, `shared`, or `undecided`."""
        # Not `<=`, so that a G that cannot be computed decides nothing.
        if not abs(self.surplus) > self.reach or self.silent:
            return "undecided"
        return "per-role" if self.surplus > 0 and self.expected >= WORTH else "shared"

    @property
    def missing(self) -> int | None:
        """More steps that would settle a G of this size; None where it is 0, or unknown."""
        if not self.surplus or math.isnan(self.surplus):
            return None
        return max(math.ceil(self.steps * ((self.reach / self.surplus) ** 2 - 1)), 0)

    def record(self) -> dict[str, Any]:
        """What advice.json holds."""
        fields = self._asdict()
        return {
            "recommendation": self.recommendation,
            "G": fields.pop("surplus"),
            "interval": interval(self.surplus, self.error),
            "expected": self.expected,
            "missing_steps": self.missing if self.recommendation == "undecided" else 0,
            **fields,
        }

    def text(self, step: int, total: int) -> str:
        """What a user sees."""
        more = f". About {self.missing} more steps would settle a G of this size"
        more += f"; {MEASURED['undecided']}"
        why = f"the interval of G holds 0{more * (self.missing is not None)}"
        if self.silent:
            why = f"{', '.join(self.silent)} had nothing to learn from"
        worth = f"; expected difference {self.expected:+.2f} success"
        worth += f"; {MEASURED[self.recommendation]}"
        conclusion = {
            "per-role": f"a policy for each role (--policies per-role){worth}",
            "shared": f"one shared policy loses little{worth}",
            "undecided": f"not enough evidence yet: {why}",
        }[self.recommendation]
        pairs = [
            f"  {pair}: gradients agree by {spread(*value) if value else 'an amount lost in noise'}"
            for pair, value in self.cosines.items()
        ]
        shares = ", ".join(f"{role} {share:.2f}" for role, share in self.shares.items())
        return "\n".join(
            [
                f"Advice after {step} of {total} steps (intervals of 80 %)",
                f"  G {spread(self.surplus, self.error)}: above 0, roles learn faster apart at the same rate",
                *pairs,
                f"  shares of the tokens: {shares}",
                f"  {self.overlap:.2f} of prompts are shown to several roles",
                f"  -> {conclusion}",
            ]
        )


def spread(value: float, error: float) -> str:
    """Returns `+0.21 [+0.09, +0.33]`."""
    low, high = interval(value, error)
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def interval(value: float, error: float) -> list[float]:
    """Returns the ends of the interval of 80 % of a value from -1 to 1."""
    return [max(value - STUDENT * error, -1.0), min(value + STUDENT * error, 1.0)]


class Sums:
    """Sums of the gradients of steps, from which `read` makes a `Reading`."""

    def __init__(self, roles: Sequence[str]) -> None:
        self.roles, self.steps = tuple(roles), 0
        self.tokens = dict.fromkeys(self.roles, 0)
        self.prompts: dict[str, set[str]] = {role: set() for role in self.roles}
        self.blocks_RJD = self.squares_RD = self.whole_D = torch.zeros(0)

    def add(self, gradients: Mapping[str, torch.Tensor], samples: Sequence[Sample]) -> None:
        """Adds a step; a role without samples counts with a gradient of 0."""
        tokens = dict.fromkeys(self.roles, 0)
        for sample in samples:
            tokens[sample.role] += sample.count * len(sample.token_ids)
            prompt = repr(tuple(sample.prompt_ids)).encode()
            self.prompts[sample.role].add(hashlib.blake2b(prompt, digest_size=8).hexdigest())
        if gradients:
            whole_D = torch.stack(list(gradients.values())).sum(0)
            if not self.blocks_RJD.numel():
                self.blocks_RJD = torch.zeros(len(self.roles), BLOCKS, len(whole_D))
                self.squares_RD = torch.zeros(len(self.roles), len(whole_D))
                self.whole_D = torch.zeros(len(whole_D))
            for number, role in enumerate(self.roles):
                if tokens[role]:
                    # Its mean, as in a policy for this role alone: the part is of all roles' tokens.
                    gradient_D = gradients[role] * (sum(tokens.values()) / tokens[role])
                    self.blocks_RJD[number, self.steps % BLOCKS] += gradient_D
                    self.squares_RD[number] += gradient_D.square()
            self.whole_D += whole_D.square()
        for role, count in tokens.items():
            self.tokens[role] += count
        self.steps += 1

    def read(self) -> Reading:
        """Returns what the steps so far say; at least one for each block."""
        total, prompts = sum(self.tokens.values()), self.prompts
        shares = {role: count / total for role, count in self.tokens.items()}
        shown = Counter(prompt for role in self.roles for prompt in prompts[role])
        overlap = sum(roles for roles in shown.values() if roles > 1) / shown.total()
        surplus, cosines = self._signals(list(range(BLOCKS)))
        without = [
            self._signals([k for k in range(BLOCKS) if k != left_out]) for left_out in range(BLOCKS)
        ]
        pairs = dict[str, tuple[float, float] | None]()
        for pair, cosine in cosines.items():
            values = [others[pair] for _, others in without]
            pairs[pair] = None if math.nan in (cosine, *values) else (cosine, jackknife(values))
        error = jackknife([value for value, _ in without])
        return Reading(surplus, error, pairs, shares, overlap, self.steps)

    def _signals(self, blocks: list[int]) -> tuple[float, dict[str, float]]:
        """G, and the cosine of each pair of roles, from some of the blocks; `math.nan` where there is none."""
        roles, total = range(len(self.roles)), sum(self.tokens.values())
        counts_J = torch.tensor([len(range(k, self.steps, BLOCKS)) for k in blocks])
        means_RJD = self.blocks_RJD[:, blocks] / counts_J[:, None]
        plain_RR = products(means_RJD, None)
        mixed_RR = products(means_RJD, self.whole_D / self.steps)
        share_R = torch.tensor([self.tokens[role] / total for role in self.roles])
        surplus = 0.0
        for i in roles:
            apart = products(means_RJD[[i]], self.squares_RD[i] / self.steps).clamp(min=0).item()
            mixed = (mixed_RR[i] @ share_R).clamp(min=0).item()
            surplus += (apart - mixed) / (apart + mixed) / len(roles) if apart + mixed else 0.0
        cosines = {}
        for i, j in itertools.combinations(roles, 2):
            norms = plain_RR[i, i].item(), plain_RR[j, j].item()
            cosine = (
                plain_RR[i, j].item() / math.sqrt(math.prod(norms)) if min(norms) > 0 else math.nan
            )
            cosines[f"{self.roles[i]}, {self.roles[j]}"] = cosine
        return surplus, cosines

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        kept = {name: value for name, value in vars(self).items() if name != "prompts"}
        return {**kept, "prompts": {role: sorted(seen) for role, seen in self.prompts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        vars(self).update(state)
        self.prompts = {role: set(seen) for role, seen in state["prompts"].items()}


def products(means_RJD: torch.Tensor, square_D: torch.Tensor | None) -> torch.Tensor:
    """Mean over pairs of different blocks of the inner products of two roles' gradients, `_RR`.

    Args:
        means_RJD: mean gradients.
        square_D: mean square by whose root each coordinate is divided, as Adam does; None for 1.
    """
    roles, blocks, _ = means_RJD.shape
    flat = means_RJD.flatten(0, 1)
    # A weight that never had a gradient has no part in a step of Adam.
    scale = 1.0 if square_D is None else 1 / (square_D.sqrt() + TINY)
    gram = ((flat * scale) @ flat.mT).view(roles, blocks, roles, blocks)
    same_RR = torch.einsum("ikjk->ij", gram)
    return (gram.sum((1, 3)) - same_RR) / (blocks * (blocks - 1))


def jackknife(values: Sequence[float]) -> float:
    """Returns the widened standard error from estimates without one block each."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    return WIDER * math.sqrt((len(values) - 1) / len(values) * squares)


class Advice(Callback):
    """Reads the first part of a run, and says once whether its roles should share a policy."""

    wants_gradients = True
    kept_as = "advice"

    def __init__(
        self, say: Callable[[str], None], write: Callable[[str, str], object], file: str
    ) -> None:
        self._say, self._write, self._file = say, write, file
        self.sums: Sums | None = None

    def on_begin(self, trainer: ATGRPO) -> None:
        """Opens the sums of a new run; a run that is resumed after its advice has none."""
        if not trainer.step:
            learners = trainer.policies.roles_to_policies
            self.sums = Sums([role for role in learners if learners[role] in trainer.trained])
        self.wants_gradients = self.sums is not None

    def on_gradients(
        self,
        trainer: ATGRPO,
        policy: str,
        gradients: Mapping[str, torch.Tensor],
        samples: Sequence[Sample],
    ) -> None:
        """Adds a step."""
        del trainer, policy  # there is one that is trained
        assert self.sums is not None
        self.sums.add(gradients, samples)

    def on_step(self, trainer: ATGRPO, row: Mapping[str, Any]) -> None:
        """Says what there is to say, once enough was read."""
        del row
        total = last_step(trainer.config, trainer.step, trainer.tokens)
        if self.sums is None or trainer.step < math.ceil(SHARE * total):
            return
        # A step of silent groups has no gradient, and each block needs one.
        enough = self.sums.steps >= BLOCKS
        if not enough and trainer.step < total:
            return
        sums, self.sums, self.wants_gradients = self.sums, None, False
        if not enough:
            self._say(
                f"Advice: {sums.steps} steps had anything to learn from, and it needs {BLOCKS}"
            )
            return
        reading = sums.read()
        text = reading.text(trainer.step, total)
        record = {**reading.record(), "of_steps": total, "text": text}
        self._write(self._file, f"{json.dumps(record, indent=2)}\n")
        self._say(text)

    def state_dict(self) -> dict[str, Any]:
        """The sums; nothing once the advice was given."""
        return {} if self.sums is None else self.sums.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        self.sums = None
        if state:
            self.sums = Sums(state["roles"])
            self.sums.load_state_dict(state)
