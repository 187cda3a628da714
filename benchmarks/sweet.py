"""Does a critic that was trained as SWEET-RL's rank replies better than knowing the solution does alone?

    python -m benchmarks.sweet [--tasks N]

SmolLM2 plays `TASKS` training tasks of `read`, eight episodes each. A pair is an episode that earned more and one of the same task that
earned less. On these an adapter is trained by DPO, on the mean log-probability of each reply behind the solution (SWEET-RL, section 4), and
another without the solution. Then eight replies to each prompt of held-out tasks, with names that are in no training task, are scored by
`hindsight` with either critic, by `hindsight` without one, and by their length, as in `benchmarks.hindsight`. Writes
`results/sweet.json`; the critic is left in `out/sweet`. One core, four CPU-minutes.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.advice import spearman
from benchmarks.evidence import Table, revision
from benchmarks.hindsight import cells_of
from benchmarks.options import Options
from benchmarks.reading import MODEL, SETTINGS
from pettingllms.envs import make
from pettingllms.evaluation import roles_of
from pettingllms.evaluation.report import as_text
from pettingllms.methods.distill import read
from pettingllms.methods.hindsight import CRITIC, Hindsight, informed
from pettingllms.names import BASE, model_path, parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.episode import tasks_of_step
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import versions
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.metrics import Clock
from pettingllms.types import Candidate, Group, Sample

HERE = Path(__file__).parent
RESULTS, OUT = HERE / "results" / "sweet.json", HERE / "out" / "sweet"
TASKS, HELD_OUT, REPLIES = 24, 24, 8
SEED = 4
PAIRS = 3
"""Of a task, as in the paper's code."""
BETA, RATE, EPOCHS, AT_ONCE = 0.1, 5e-4, 1, 4
"""Of DPO; `AT_ONCE` are the pairs of an update. The paper trains all weights of 8B with the rate 2e-7, 4 epochs."""
SCORES = ("critic", "critic without the solution", "hindsight", "length")


def config_of(env: Any, method: str, tasks: int, **settings: Any) -> Any:
    """Resolved settings of a step of `read`."""
    changes = {"method": method, "num_generations": REPLIES, "tasks_per_step": tasks, "seed": SEED}
    return resolve(ATGRPOConfig(env="read", **{**SETTINGS, **changes, **settings}), env)


def played(method: str, split: str, tasks: int) -> list[Trajectory]:
    """Episodes of the untrained model: whole ones of a task with `grpo`, K replies a prompt with `at_grpo`."""
    env = make("read", split=split)
    config = config_of(env, method, tasks)
    policies = load_policies(
        model_path(MODEL), parse_policies("per-role", roles_of(env)), dtype=config.dtype
    )
    trainer = ATGRPO(config, env, policies)
    try:
        return trainer.rollout(tasks_of_step(env, "read", 0, tasks, SEED), Clock())
    finally:
        policies.close()


def pairs_of(episodes: Sequence[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    """Pairs of episodes of a task, the one that earned more first; at most `PAIRS` of a task."""
    by_task, pairs = defaultdict[str, list[Trajectory]](list), []
    for episode in episodes:
        by_task[episode.task.id].append(episode)
    for task, own in by_task.items():
        all_of = [(a, b) for a in own for b in own if total(a) > total(b)]
        # By the task's name, so that the same episodes always give the same pairs.
        rng = random.Random(f"{task} sweet")
        pairs += all_of if len(all_of) <= PAIRS else rng.sample(all_of, PAIRS)
    return pairs


def total(episode: Trajectory) -> float:
    """What the team's replies earned together."""
    return sum(group.chosen.reward for group in episode.groups)


def dpo_loss(better: torch.Tensor, worse: torch.Tensor, beta: float = BETA) -> torch.Tensor:
    """`-log sigmoid(beta sum_t A_t(better) - beta sum_t A_t(worse))`, of the A of each turn."""
    margin: torch.Tensor = beta * (better.sum() - worse.sum())
    return -torch.nn.functional.logsigmoid(margin)


Reads = Callable[[Group, PolicySet], tuple[int, ...] | None]
"""The prompt behind which a critic reads a decision; None where there is no room."""


def with_solution(group: Group, policies: PolicySet) -> tuple[int, ...] | None:
    """As `hindsight` does."""
    return informed(group, policies, CRITIC)


def without_solution(group: Group, policies: PolicySet) -> tuple[int, ...]:
    """As the agent did."""
    del policies
    return group.prompt_ids


def train_critic(pairs: Sequence[tuple[Trajectory, Trajectory]], reads: Reads, out: Path) -> float:
    """Trains a critic on pairs of episodes, and writes its adapter.

        A_t = mean over tokens of log pi_critic(y | c, o) - log pi_ref(y | o)

    Returns:
        The mean loss of the last epoch; log 2 is that of no critic.
    """
    config = config_of(make("read"), "at_grpo", 1)
    policies = critic_on(None)
    optimizer = torch.optim.AdamW(policies.parameters(CRITIC), lr=RATE, weight_decay=0.0)
    rng, losses = random.Random(f"{SEED} critic"), list[float]()

    def turns(episode: Trajectory) -> Iterator[tuple[Sample, Sample]]:
        """What the critic and the reference read of each decision that has room."""
        for group in episode.groups:
            if (prompt_ids := reads(group, policies)) is not None:
                yield read(prompt_ids, group.chosen), read(group.prompt_ids, group.chosen)

    for _ in range(EPOCHS):
        order = rng.sample(pairs, len(pairs))
        losses.clear()
        for batch in (order[start : start + AT_ONCE] for start in range(0, len(order), AT_ONCE)):
            rows = [[list(turns(episode)) for episode in pair] for pair in batch]
            both = [turn for pair in rows for episode in pair for turn in episode]
            told = list(dict.fromkeys(informed_sample for informed_sample, _ in both))
            ref = policies.sample_logprobs(
                ((BASE, sample) for _, sample in both), config.tokens_per_batch, config.temperature
            )
            logp = dict[Sample, torch.Tensor]()
            # All of a batch at once, because the loss of a pair does not divide into parts.
            for micro in policies.microbatches(CRITIC, told, 1 << 20):
                logp_BT, _ = policies.logprobs(CRITIC, micro, temperature=config.temperature)
                for sample, logp_T in zip(micro.samples, logp_BT, strict=True):
                    logp[sample] = logp_T[: len(sample.token_ids)].float().mean()
            advantages = [
                [
                    torch.stack([logp[a] - ref[BASE, b].mean() for a, b in episode])
                    for episode in pair
                ]
                for pair in rows
            ]
            loss = torch.stack([dpo_loss(better, worse) for better, worse in advantages]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            print(f"{out.name} {losses[-1]:.4f}", flush=True)
    policies.save(CRITIC, out)
    policies.close()
    return fmean(losses)


def critic_on(adapter: Path | None) -> PolicySet:
    """The base model and a critic on it, a new one if None."""
    return load_policies(
        model_path(MODEL),
        {"informed": CRITIC, "uninformed": BASE},
        dtype=config_of(make("read"), "at_grpo", 1).dtype,
        lora_target_modules=SETTINGS["lora_target_modules"].split(","),
        merge=False,
        seed=SEED,
        adapters=None if adapter is None else {CRITIC: adapter},
    )


def scores_of(groups: Sequence[Group], critic: Path | None) -> list[float]:
    """What `hindsight` says of every reply, by a critic, or by the untrained model."""
    env = make("read")
    arguments = {} if critic is None else {"critic": str(critic)}
    method = Hindsight(config_of(env, "hindsight", 1, method_args=arguments), **arguments)
    policies = load_policies(
        model_path(MODEL), parse_policies("per-role", roles_of(env)), dtype=method.config.dtype
    )
    method.attach(env, policies)
    return method.scores(groups)


def scores_without(groups: Sequence[Group], critic: Path) -> list[float]:
    """What a critic that is not told the solution says of every reply."""
    config, policies = config_of(make("read"), "at_grpo", 1), critic_on(critic)
    samples = [read(group.prompt_ids, one) for group in groups for one in group.candidates]
    pairs = ((name, sample) for name in (CRITIC, BASE) for sample in samples)
    says = policies.sample_logprobs(pairs, config.tokens_per_batch, config.temperature)
    policies.close()
    return [(says[CRITIC, s].mean() - says[BASE, s].mean()).item() for s in samples]


def agreement(
    groups: Sequence[Group], scores: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Any]]:
    """Role -> prompts, and for each score its correlation with unlike rewards, and what its best reply earns more."""
    roles: dict[str, dict[str, Any]] = {}
    start = 0
    for group in groups:
        own = roles.setdefault(group.key.role, {"prompts": 0, **{name: [] for name in scores}})
        own["prompts"] += 1
        places = range(start, start := start + len(group.candidates))
        rewards = [candidate.reward for candidate in group.candidates]
        for name, values in scores.items():
            mine = [values[place] for place in places]
            if (rank := spearman(mine, rewards)) is not None:
                own[name].append((rank, rewards[int(np.argmax(mine))] - fmean(rewards)))
    return roles


def table(results: Mapping[str, Any]) -> Table:
    """A row for each role and score: ranks, the best reply above the mean one, and ranks of the critic above these.

    The last is paired by prompt.
    """
    roles, rows = results["roles"], []
    both = {name: [pair for of_role in roles.values() for pair in of_role[name]] for name in SCORES}
    prompts = sum(of_role["prompts"] for of_role in roles.values())
    for role, measured in {**roles, "both": {"prompts": prompts, **both}}.items():
        for name in SCORES:
            pairs = list(zip(measured[SCORES[0]], measured[name], strict=True))
            gain, _ = cells_of([(critic[0] - other[0], 0.0) for critic, other in pairs])
            few = f"{len(pairs)} of {measured['prompts']}"
            rows.append([role, few, name, *cells_of(measured[name]), gain])
            if name == SCORES[0]:
                rows[-1][-1] = ""
    return ["role", "prompts", "score", "ranks", "best above mean", "critic's ranks above"], rows


def _length(candidate: Candidate) -> float:
    return float(len(candidate.completion.token_ids))


def main() -> None:
    """Plays, trains, scores, writes and prints."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs = pairs_of(played("grpo", "train", options.tasks))
    if not pairs:
        raise SystemExit("no two episodes of a task earned differently; play more --tasks")
    print(len(pairs), "pairs", flush=True)
    losses = {
        name: train_critic(pairs, reads, OUT / name)
        for name, reads in ((CRITIC, with_solution), ("without", without_solution))
    }
    held_out = played("at_grpo", "test", HELD_OUT)
    groups = [group for episode in held_out for group in episode.groups]
    scores = {
        SCORES[0]: scores_of(groups, OUT / CRITIC),
        SCORES[1]: scores_without(groups, OUT / "without"),
        SCORES[2]: scores_of(groups, None),
        SCORES[3]: [_length(candidate) for group in groups for candidate in group.candidates],
    }
    results = {
        "versions": versions(),
        "revision": revision(),
        "tasks": options.tasks,
        "pairs": len(pairs),
        "losses": losses,
        "roles": agreement(groups, scores),
    }
    options.out.write_text(f"{json.dumps(results, indent=1)}\n", encoding="utf-8")
    header, rows = table(results)
    print(as_text([header, *rows]))


if __name__ == "__main__":
    main()
