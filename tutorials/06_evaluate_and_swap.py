"""Evaluate and swap.

How specialized are two roles? Train a team, then evaluate it on the same test tasks three times: as the untrained base model, as trained, and with the
policies of the two roles exchanged. The differences are paired by task. On the command line this is
`pettingllms-eval --adapters runs/latest --swap tool=planner`.
"""

import tempfile
from pathlib import Path

from pettingllms.cli.evaluate import main as evaluate
from pettingllms.evaluation.compare import paired
from pettingllms.evaluation.folder import read_trajectories
from pettingllms.session import run_training
from pettingllms.trainers.config import ATGRPOConfig

with tempfile.TemporaryDirectory() as folder:
    run, out = f"{folder}/run", f"{folder}/evaluation"
    run_training(
        ATGRPOConfig(
            env="plan_path",
            num_generations=4,
            tasks_per_step=2,
            max_steps=1,
            eval_tasks=1,
            eval_steps=0,
            output_dir=run,
        )
    )
    # The arguments are those of the command pettingllms-eval.
    exit_code = evaluate(
        ["--adapters", run, "--limit", "8", "--swap", "tool=planner", "--out", out]
    )
    assert exit_code == 0

    # With --out, all episodes are kept: any other question can be asked of them later.
    teams = read_trajectories(Path(out))
    print(f"\nteams: {', '.join(teams)}")
    found = paired(teams["adapters"], teams["swapped"], ("adapters", "swapped"), seed=0)
    difference = found.differences["success"]
    print(
        f"exchanging the policies changes success by {difference.mean:+.2f} "
        f"[{difference.low:+.2f}, {difference.high:+.2f}] on {difference.tasks} tasks"
    )
    first = teams["adapters"][0].groups[0]
    print(
        f"\n{first.key.agent} read:\n{first.prompt}\nand answered: {first.chosen.completion.text}"
    )
    assert set(teams) == {"base", "adapters", "swapped"}
