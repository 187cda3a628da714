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

Limits: fitted and measured on `duet` (docs/advice.md). A callback: it changes nothing of the training.

Shapes: _R roles, _J blocks, _D weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pettingllms.errors import ConfigError
from pettingllms.policies.roles import trained_policies
from pettingllms.trainers.callbacks import Callback
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.schedule import last_step
from pettingllms.types import Sample

if TYPE_CHECKING:
    from pettingllms.trainers.at_grpo import ATGRPO

BLOCKS = 8
SHARE = 0.1
"""Of a run that is read, but at least one step for each block."""
WIDER = 1.25
"""Factor of the jackknife's error; without it intervals held too few means of other seeds."""
STUDENT = 1.415
"""Half the width of an interval of 80 % in standard errors, with 7 degrees of freedom."""
TINY = 1e-12
WORTH = 0.05
"""Least expected difference for which a policy for each role is recommended."""
MEASURED: Mapping[str, str] = {}
"""Recommendation -> how often it was right on `duet` (`python -m benchmarks.advice`)."""


def expected(surplus: float, overlap: float) -> float:
    """Returns the success that a policy for each role is expected to add at the end of a run.

    Args:
        surplus: G.
        overlap: share of prompts that several roles are shown.
    """
    return 0.27 * surplus + overlap * (0.07 + 0.33 * surplus)


def check_advise(config: ResolvedConfig, roles_to_policies: Mapping[str, str]) -> None:
    """Refuses runs whose signals cannot be computed.

    Raises:
        ConfigError: names the reason and what to change.
    """
    learners = trained_policies(config.train_roles, roles_to_policies)
    sharing = [role for role, policy in roles_to_policies.items() if policy in learners]
    reasons = {
        "compares gradients of roles in one shared policy; add --policies shared": len(learners) > 1,
        "needs a policy that several roles share; this team has one role": len(sharing) < 2,
        "reads gradients in this process; leave out --workers": config.workers > 0,
        "reads gradients of rewards, and beta adds those of a penalty; leave out --beta": config.beta > 0,
        f"needs at least {BLOCKS} steps, got max_steps {config.max_steps}": config.max_steps < BLOCKS,
        "needs updates, got num_iterations 0": config.num_iterations == 0,
    }
    for reason, applies in reasons.items():
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
    def expected(self) -> float:
        """Success that a policy for each role is expected to add."""
        return expected(self.surplus, self.overlap)

    @property
    def recommendation(self) -> str:
        """`per-role`, `shared`, or `undecided`."""
        if abs(self.surplus) <= self.reach:
            return "undecided"
        return "per-role" if self.surplus > 0 and self.expected >= WORTH else "shared"

    @property
    def missing(self) -> int | None:
        """More steps that would settle a G of this size; None where it is 0."""
        if not self.surplus:
            return None
        return max(math.ceil(self.steps * ((self.reach / self.surplus) ** 2 - 1)), 0)

    def record(self) -> dict[str, Any]:
        """What advice.json holds."""
        low, high = self.surplus - self.reach, self.surplus + self.reach
        return {
            **{"recommendation": self.recommendation, "G": self.surplus, "interval": [low, high]},
            **{"level": 0.8, "expected": self.expected, "steps": self.steps},
            **{"missing_steps": self.missing if self.recommendation == "undecided" else 0},
            **{"cosines": {pair: value and list(value) for pair, value in self.cosines.items()}},
            **{"token_shares": dict(self.shares), "overlap": self.overlap},
            "measured": MEASURED.get(self.recommendation),
        }

    def text(self, step: int, total: int) -> str:
        """What a user sees."""
        which = {
            "per-role": "a policy for each role learns faster at the same rate",
            "shared": "a policy for each role is not worth its adapters"
            if self.surplus > 0
            else "one shared policy learns faster at the same rate",
            "undecided": "either may learn faster",
        }[self.recommendation]
        lines = [
            f"Advice after {step} of {total} steps",
            f"  G {spread(self.surplus, self.reach)}: {which}",
        ]
        for pair, value in self.cosines.items():
            agree = "cannot be told from noise" if value is None else spread(value[0], STUDENT * value[1])
            lines.append(f"  {pair}: gradients agree by {agree}")
        shares = ", ".join(f"{role} {share:.2f}" for role, share in self.shares.items())
        lines.append(f"  shares of the tokens: {shares}")
        lines.append(f"  {self.overlap:.2f} of prompts are shown to several roles")
        return "\n".join([*lines, f"  -> {self._conclusion()}"])

    def _conclusion(self) -> str:
        if self.recommendation == "undecided":
            more = "" if self.missing is None else f". About {self.missing} more steps would settle a G of this size"
            return f"not enough evidence yet: the interval of G holds 0{more}"
        choice = {
            "per-role": "a policy for each role (--policies per-role)",
            "shared": "one shared policy loses little",
        }[self.recommendation]
        measured = MEASURED.get(self.recommendation)
        return f"{choice}; expected difference {self.expected:+.2f} success" + (
            f"; {measured}" if measured else ""
        )


def spread(value: float, reach: float) -> str:
    """Returns `+0.21 [+0.09, +0.33]`."""
    return f"{value:+.2f} [{value - reach:+.2f}, {value + reach:+.2f}]"


class Sums:
    """Sums of the gradients of several steps, from which `read` makes a `Reading`.

    Args:
        roles: that share the policy.
    """

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
            self.prompts[sample.role].add(_digest(sample.prompt_ids))
        if gradients:
            whole_D = torch.stack(list(gradients.values())).sum(0)
            if not self.blocks_RJD.numel():
                self._open(len(whole_D))
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

    def _open(self, weights: int) -> None:
        self.blocks_RJD = torch.zeros(len(self.roles), BLOCKS, weights)
        self.squares_RD = torch.zeros(len(self.roles), weights)
        self.whole_D = torch.zeros(weights)

    def read(self) -> Reading:
        """Returns what the steps so far say; at least one for each block."""
        total, prompts = sum(self.tokens.values()), self.prompts
        shares = {role: count / max(total, 1) for role, count in self.tokens.items()}
        others = {
            role: set().union(*(prompts[other] for other in self.roles if other != role))
            for role in self.roles
        }
        both = sum(len(prompts[role] & others[role]) for role in self.roles)
        overlap = both / max(sum(map(len, prompts.values())), 1)
        surplus, cosines = self._signals(list(range(BLOCKS)), shares)
        without = [
            self._signals([k for k in range(BLOCKS) if k != left_out], shares)
            for left_out in range(BLOCKS)
        ]
        pairs = {}
        for pair, value in cosines.items():
            values = [other[pair] for _, other in without]
            kept = [one for one in values if one is not None]
            whole = value is not None and len(kept) == BLOCKS
            pairs[pair] = (value, jackknife(kept)) if value is not None and whole else None
        error = jackknife([one for one, _ in without])
        return Reading(surplus, error, pairs, shares, overlap, self.steps)

    def _signals(
        self, blocks: Sequence[int], shares: Mapping[str, float]
    ) -> tuple[float, dict[str, float | None]]:
        """G, and the cosine of each pair of roles, from some of the blocks."""
        roles, steps = range(len(self.roles)), max(self.steps, 1)
        counts = torch.tensor([len(range(k, steps, BLOCKS)) for k in blocks])
        means_RJD = self.blocks_RJD[:, list(blocks)] / counts[:, None]
        own = [
            products(means_RJD[i : i + 1], self.squares_RD[i] / steps)[0, 0].item() for i in roles
        ]
        shared_RR = products(means_RJD, self.whole_D / steps)
        plain_RR = products(means_RJD, None)
        mixed = [
            sum(shares[role] * shared_RR[i, j].item() for j, role in enumerate(self.roles))
            for i in roles
        ]
        surplus = sum(ratio(*pair) for pair in zip(own, mixed, strict=True)) / len(self.roles)
        cosines = dict[str, float | None]()
        for i in roles:
            for j in range(i + 1, len(self.roles)):
                norms = plain_RR[i, i].item(), plain_RR[j, j].item()
                cosines[f"{self.roles[i]}, {self.roles[j]}"] = (
                    plain_RR[i, j].item() / math.sqrt(norms[0] * norms[1]) if min(norms) > 0 else None
                )
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


def ratio(own: float, mixed: float) -> float:
    """Returns (own - mixed) / (own + mixed), with negative values as 0."""
    own, mixed = max(own, 0.0), max(mixed, 0.0)
    return (own - mixed) / (own + mixed) if own + mixed else 0.0


def jackknife(values: Sequence[float]) -> float:
    """Returns the widened standard error from estimates without one block each."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    return WIDER * math.sqrt((len(values) - 1) / len(values) * squares)


def _digest(prompt_ids: Sequence[int]) -> str:
    return hashlib.blake2b(repr(tuple(prompt_ids)).encode(), digest_size=8).hexdigest()


class Advice(Callback):
    """Reads the first part of a run, and says once whether its roles should share a policy.

    Args:
        say: shows a text.
        write: writes a file of the run folder: its name and its text.
        file: the name of that file.
    """

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
        if self.sums is None or trainer.step < max(BLOCKS, math.ceil(SHARE * total)):
            return
        sums, self.sums, self.wants_gradients = self.sums, None, False
        if not sums.blocks_RJD.numel():
            self._say("Advice: no step so far had anything to learn from, so there is none")
            return
        reading = sums.read()
        self._write(self._file, json.dumps(reading.record() | {"of_steps": total}, indent=2) + "\n")
        self._say(reading.text(trainer.step, total))

    def state_dict(self) -> dict[str, Any]:
        """The sums; nothing once the advice was given."""
        return {} if self.sums is None else self.sums.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        self.sums = None
        if state:
            self.sums = Sums(state["roles"])
            self.sums.load_state_dict(state)
