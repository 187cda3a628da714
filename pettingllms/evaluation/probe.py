"""`--probe`: what an untrained team says, before anything is trained on it.

A group teaches only where its candidates earn different rewards. A role whose right reply is never sampled
therefore learns nothing, however long a run is, and so does one whose replies cannot be read. The probe
plays tasks of the training split exactly as a first step would, at several temperatures, and counts.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from pettingllms.evaluation.report import as_text
from pettingllms.names import trained_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.episode import AnyEnv, tasks_of_step
from pettingllms.rollout.trajectory import in_order
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Casting, Method
from pettingllms.trainers.metrics import Clock
from pettingllms.trainers.play import Player
from pettingllms.types import Candidate, Group

TEMPERATURES = (0.7, 1.0)
COMMONEST, SHOWN = 3, 60
"""Replies that are shown of a role, and characters of each."""
RARE, OFTEN, MORE = 0.1, 0.9, 0.15
"""Shares of replies or groups from which on advice changes."""


class ReplyShares(NamedTuple):
    """The replies of a role at one temperature."""

    readable: float
    """Share that the environment could parse."""
    partly: float
    """Share that earned something, and is not right."""
    right: float
    """Share that the environment calls right or a success, or that earned 1 or more."""
    signal: float
    """Share of groups whose candidates earned different rewards."""
    commonest: tuple[tuple[str, int], ...]
    """The most frequent replies, with how often they occurred."""


def probe(
    config: ResolvedConfig,
    env: AnyEnv,
    policies: PolicySet,
    completions: int,
    temperatures: Sequence[float] = TEMPERATURES,
) -> dict[float, dict[str, ReplyShares]]:
    """Plays tasks as a first step does: temperature -> role -> its replies.

    Args:
        config: of the training.
        env: of the training split.
        policies: untrained, or those that training would start from.
        completions: of each role, at least; the number of tasks follows from K.
        temperatures: of sampling.
    """
    count = -(-completions // config.num_generations)
    learners = trained_policies(config.train_roles, policies.roles_to_policies)
    casting = Casting(policies.roles_to_policies, learners)
    tasks = tasks_of_step(env, config.env, 0, count, config.seed)
    shares = {}
    for temperature in temperatures:
        settings = dataclasses.replace(config, temperature=temperature)
        shape = Method.of(settings).shape()
        groups = in_order(Player(settings, env, policies, shape).play(0, tasks, casting, Clock()))
        roles = dict.fromkeys(group.key.role for group in groups)
        shares[temperature] = {
            role: replies_of([g for g in groups if g.key.role == role]) for role in roles
        }
    return shares


def replies_of(groups: Sequence[Group]) -> ReplyShares:
    """Counts the replies of one role."""
    candidates = [candidate for group in groups for candidate in group.candidates]
    right = [_is_right(candidate) for candidate in candidates]
    partly = [candidate.reward > 0 and not _is_right(candidate) for candidate in candidates]
    readable = [not candidate.info.get("parse_error") for candidate in candidates]
    signal = [len({c.reward for c in group.candidates}) > 1 for group in groups]
    texts = Counter(" ".join(c.completion.text.split())[:SHOWN] for c in candidates)
    return ReplyShares(
        fmean(readable),
        fmean(partly),
        fmean(right),
        fmean(signal),
        tuple(texts.most_common(COMMONEST)),
    )


def report(shares: Mapping[float, Mapping[str, ReplyShares]]) -> str:
    """The table, the commonest replies, and a line of advice for each role."""
    table = [["role", "temperature", "readable", "partly right", "right", "groups with signal"]]
    by_role: dict[str, dict[float, ReplyShares]] = {}
    for temperature, roles in shares.items():
        for role, row in roles.items():
            by_role.setdefault(role, {})[temperature] = row
    for role, rows in by_role.items():
        for temperature, row in rows.items():
            numbers = row.readable, row.partly, row.right, row.signal
            table.append([role, f"{temperature:g}", *(f"{number:.2f}" for number in numbers)])
    lines = [as_text(table), ""]
    for role, rows in by_role.items():
        for text, times in rows[min(rows)].commonest:
            lines.append(f"{role}, {times} times: {text!r}")
        lines.append(f"-> {advice(role, rows)}")
    return "\n".join(lines)


def advice(role: str, rows: Mapping[float, ReplyShares]) -> str:
    """One line about what to change before this role is trained."""
    best = max(rows, key=lambda temperature: rows[temperature].signal)
    readable = max(row.readable for row in rows.values())
    partly = max(row.partly for row in rows.values())
    right = max(row.right for row in rows.values())
    if readable < RARE:
        return (
            f"replies of `{role}` can hardly ever be read: ask for one short thing without a format "
            "(--env-args.prompt small), or raise --max-completion-length"
        )
    if right == 0 and partly == 0:
        return (
            f"no reply of `{role}` was ever right; reward parts of it, rephrase its prompt, lower "
            "the temperature, or warm-start it on the form (pettingllms-data warm-start)"
        )
    if rows[best].signal == 0:
        return f"all candidates of `{role}` earn the same: give easier or harder tasks, or raise K"
    if right > OFTEN:
        return f"`{role}` is right nearly always: harder tasks would teach it more"
    if right == 0:
        return f"no reply of `{role}` was right yet: partial rewards have to lead there"
    worst = min(row.signal for row in rows.values())
    if rows[best].signal - worst > MORE:
        return f"`{role}` has most groups with a signal at --temperature {best:g}"
    return f"`{role}` can be trained: right replies occur, and groups have a signal"


def _is_right(candidate: Candidate) -> bool:
    info = candidate.info
    return bool(info.get("right") or info.get("success")) or candidate.reward >= 1
