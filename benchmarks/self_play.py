"""Does a model learn a game by playing itself? Kuhn poker and Tic-Tac-Toe of TextArena.

    python -m benchmarks.priming.games      the bases: they write legal moves, at random
    python -m benchmarks.self_play          three seeds of both games
    python -m benchmarks.self_play --game kuhn --seeds 0

One policy plays both seats. Kuhn poker is measured exactly, from the policy's probabilities in the 12
situations (`benchmarks.kuhn`); Tic-Tac-Toe by games against a random and a perfect player. Writes
`results/self_play.json`, and the picture of `docs/games.md`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch

from benchmarks import kuhn, kuhn_game, noughts
from benchmarks.evidence import Table
from benchmarks.options import Options
from benchmarks.priming.games import OUT, reply
from pettingllms.contrib.games.textarena_v0 import env
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.runs import versions
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig

RESULTS = Path(__file__).parent / "results" / "self_play.json"
PICTURE = Path(__file__).parents[1] / "docs" / "self_play.png"
MATCHES = 200
"""Games of Tic-Tac-Toe against each opponent."""
EVERY = 5
"""Steps between two measurements of Kuhn poker."""


class Setup(NamedTuple):
    """A game and how it is trained on."""

    game: str
    roles: tuple[str, str]
    """Of the seats, for baselines of their own: in Kuhn poker the second seat acts first."""
    settings: Mapping[str, Any]


COMMON = {
    "warmup_steps": 0,
    "max_completion_length": 16,
    "tokens_per_batch": 8192,
    "gradient_checkpointing": False,
    "scoring_threads": 1,
    "scale_rewards": "none",
    "max_grad_norm": 0.3,
}
SETUPS = {
    "kuhn": Setup(
        "KuhnPoker-v1",
        ("second", "first"),
        {
            "method": "dr_mas",
            "num_generations": 8,
            "tasks_per_step": 12,
            "max_steps": 300,
            "learning_rate": 2e-3,
            "lr_scheduler_type": "linear",
            # Weaker, and the repeated situation falls apart; stronger, and play stays near random.
            "beta": 0.1,
        },
    ),
    "tictactoe": Setup(
        "TicTacToe-v0",
        ("first", "second"),
        {
            "method": "rae",
            "num_generations": 1,
            "tasks_per_step": 24,
            "max_steps": 100,
            "learning_rate": 4e-3,
            "lr_scheduler_type": "linear",
        },
    ),
}


def situations() -> dict[kuhn.Situation, str]:
    """What a player of Kuhn poker is shown in each of the 12 situations."""
    made, texts = env("KuhnPoker-v1", prompt="compact"), dict[kuhn.Situation, str]()
    for seed in itertools.count():
        for line in (("check", "bet"), ("bet",)):
            made.reset(seed=seed)
            for done in range(len(line) + 1):
                text = made.observe(made.agent_selection)["text"]
                card = text.partition("card is: '")[2][0]
                texts[card, line[:done]] = text
                if done < len(line):
                    made.step(f"[{line[done]}]")
        if len(texts) == 12:
            return texts
    raise AssertionError  # `count` has no end


@torch.no_grad()
def strategy(
    policies: PolicySet, texts: Mapping[kuhn.Situation, str]
) -> tuple[dict[kuhn.Situation, float], float]:
    """The probability of the bold action in each situation, and the least sum of both actions'.

    The latter is below 1 by what the policy gives to all replies but the two in their plain form.
    """
    rows, places = list[list[int]](), list[int]()
    chat = policies.chat
    for (_, history), text in texts.items():
        prompt = list(chat.prompt_ids(text))
        for action in kuhn.legal(history):
            completion = reply(text, f"[{action}]")
            ids = chat.tokenizer(completion, add_special_tokens=False)["input_ids"]
            rows.append([*prompt, *ids, chat.tokenizer.eos_token_id])
            places.append(len(prompt))
    width = max(map(len, rows))
    inputs = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    logp = policies.sampling_model(policies.names[0])(inputs).logits.float().log_softmax(-1)
    chances = [
        sum(logp[n, at - 1, row[at]].item() for at in range(places[n], len(row)))
        for n, row in enumerate(rows)
    ]
    pairs = torch.tensor(chances).exp().view(-1, 2)
    total = pairs.sum(1)
    return dict(zip(texts, (pairs[:, 1] / total).tolist(), strict=True)), total.min().item()


def kuhn_scores(player: Mapping[kuhn.Situation, float], least: float) -> dict[str, float]:
    """What there is to say about a strategy."""
    perfect, random_ = kuhn.equilibrium(), kuhn.uniform()

    def against(other: Mapping[kuhn.Situation, float]) -> float:
        return (kuhn.value(player, other) - kuhn.value(other, player)) / 2

    value = kuhn.value(player, player)
    return {
        "exploitability": kuhn.exploitability(player),
        "value": value,
        "distance": abs(value - kuhn.VALUE),
        "against_random": against(random_),
        "against_perfect": against(perfect),
        "least_legal": least,
    }


def train(base: Path, setup: Setup, seed: int, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Trains one policy by self-play; returns its scores before, after and on the way."""
    game = env(setup.game, roles=setup.roles, prompt="compact")
    policies = load_policies(base, dict.fromkeys(setup.roles, "player"), seed=seed)
    settings = {**COMMON, **setup.settings, **extra}
    config = ATGRPOConfig(
        env=f"textarena:{setup.game}", model=str(base), policies="shared", seed=seed, **settings
    )
    trainer = ATGRPO(config, game, policies)
    texts = situations() if setup.game.startswith("Kuhn") else {}
    strategies: list[dict[kuhn.Situation, float]] = []

    def measured() -> dict[str, Any]:
        if texts:
            current, least = strategy(policies, texts)
            strategies.append(current)
            return {"step": trainer.step, **kuhn_scores(current, least)}
        return {"step": trainer.step} | {
            name: noughts.matches(
                policies, lambda: env(setup.game, prompt="compact"), opponent, MATCHES, seed
            )._asdict()
            for name, opponent in (("random", noughts.at_random), ("perfect", noughts.optimal))
        }

    started, curve = time.process_time(), [measured()]
    while trainer.step < settings["max_steps"]:
        trainer.train_step()
        if texts and trainer.step % EVERY == 0:
            curve.append(measured())
            print(json.dumps(curve[-1]), flush=True)
    if not texts:
        curve.append(measured())
    result = {"seed": seed, "curve": curve, "tokens": trainer.tokens}
    result["cpu_s"] = round(time.process_time() - started)
    if texts:
        late = strategies[len(strategies) // 2 :]
        result["mean"] = kuhn_scores(kuhn.mean_strategy(late), curve[-1]["least_legal"])
        result["final"] = {
            f"{card} {' '.join(line)}".strip(): round(p, 3)
            for (card, line), p in strategies[-1].items()
        }
    return result


def table(result: Any) -> Table:
    """What each seed reached, before -> after."""
    rows: list[list[str]] = []
    for name in (name for name in SETUPS if name in result):
        runs = result[name]["runs"]
        for title, score in _scores(name).items():
            pairs = [[score(run["curve"][at]) for at in (0, -1)] for run in runs]
            seeds = [f"{before:.3f} -> {after:.3f}" for before, after in pairs]
            rows.append([f"`{result[name]['game']}`", title, ", ".join(seeds)])
    return ["game", "score", "before -> after, by seed"], rows


def draw(result: Any, path: Path) -> None:
    """Exploitability in Kuhn poker against steps, a line for each seed."""
    figure, axis = plt.subplots(figsize=(5, 3.2))
    for run in result["kuhn"]["runs"]:
        points = [(at["step"], at["exploitability"]) for at in run["curve"]]
        axis.plot(*zip(*points, strict=True), label=f"seed {run['seed']}")
    axis.set(xlabel="steps of self-play", ylabel="exploitability, chips a hand", ylim=(0, 0.55))
    axis.axhline(0, color="black", linewidth=0.8)
    axis.text(0, 0.01, "perfect play", fontsize="small")
    axis.legend(frameon=False, fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _scores(name: str) -> dict[str, Callable[[Any], float]]:
    """Title -> what it reads off a measurement."""
    if name == "kuhn":
        return {
            "exploitability, chips a hand (perfect: 0)": lambda at: at["exploitability"],
            "distance of the first player's value to -1/18": lambda at: at["distance"],
            "chips a hand against a random player": lambda at: at["against_random"],
            "chips a hand against a perfect player (at most 0)": lambda at: at["against_perfect"],
        }

    def share(who: str, what: str) -> Callable[[Any], float]:
        return lambda at: float(at[who][what])

    return {
        f"{what} against a {who} player": share(who, what)
        for who in ("random", "perfect")
        for what in ("won", "drawn", "lost")
    }


def main() -> None:
    """Trains, prints, and writes the results."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--game", nargs="+", choices=sorted(SETUPS), default=sorted(SETUPS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--base", type=Path, default=OUT, help="bases of benchmarks.priming.games")
    parser.add_argument("--set", default="{}", help="other settings, as JSON")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    kuhn_game.register()
    torch.set_num_threads(1)
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.game:
        setup, runs = SETUPS[name], []
        for seed in options.seeds:
            run = train(options.base / setup.game, setup, seed, json.loads(options.set))
            runs.append(run)
            print(name, seed, run["curve"][0], run["curve"][-1], run.get("mean"), flush=True)
            print(name, seed, run["cpu_s"], "s", run.get("final"), flush=True)
        settings = {**COMMON, **setup.settings, **json.loads(options.set)}
        kept[name] = {"game": setup.game, "settings": settings, "runs": runs}
        kept["versions"] = versions()
        options.out.write_text(f"{json.dumps(kept, indent=1)}\n", encoding="utf-8")
    if options.out == RESULTS:
        draw(kept, PICTURE)


if __name__ == "__main__":
    main()
