"""Do seeded trainings still give the same bytes as at an earlier revision? The guard of a refactoring.

    python -m benchmarks.frozen HEAD~1
    python -m benchmarks.frozen v0.1 --envs plan_path --methods at_grpo

Each environment is trained for two steps by each method, in this tree and in that of the revision, with the installed
libraries and one thread. Compared are the SHA-256 of the adapters, and of all decisions: task, agent, completion,
rewards, advantage. Digests are not published, since another CPU rounds in another way. Prints a line for each run,
and exits with 1 where one differs; a change of rules, prompts, or defaults may be meant.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.options import Options

HERE = Path(__file__).parent.parent
ENVS = ("coding", "math", "plan_path", "search", "sokoban", "sudoku")
METHODS = ("at_grpo", "grpo", "gigpo")
SETTINGS = "--policies per-role --max-steps 2 --tasks-per-step 2 --num-generations 4 --eval-steps 0 --eval-tasks 1 --seed 7"
DECISION = ("agent", "turn", "prompt")
CANDIDATE = ("completion", "reward", "team_reward", "local_reward", "advantage", "chosen")


def digest(tree: Path, env: str, method: str, out: Path) -> str:
    """Trains with the code of a tree; sixteen hex digits of what it wrote.

    Raises:
        SystemExit: the training fails.
    """
    command = [sys.executable, "-m", "pettingllms.cli.train", *SETTINGS.split()]
    command += ["--env", env, "--method", method, "--output-dir", str(out)]
    place = {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=out.parent, env=os.environ | place, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{tree}, {env} by {method}: {done.stderr[-400:]}")
    hasher = hashlib.sha256()
    for weights in sorted(out.glob("adapters/*/adapter_model.safetensors")):
        hasher.update(weights.read_bytes())
    for line in (out / "trajectories.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        decisions = [
            [[one[key] for key in DECISION]]
            + [[candidate[key] for key in CANDIDATE] for candidate in one["candidates"]]
            for one in row["decisions"]
        ]
        hasher.update(json.dumps([row["task"], row["episode"], decisions]).encode())
    return hasher.hexdigest()[:16]


def main() -> None:
    """Compares this tree with a revision."""
    parser = Options(__doc__)
    parser.add_argument("revision")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=ENVS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    options = parser.parse_args()
    changed = 0
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder, "tree")
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--detach", "-q", earlier, options.revision], check=True)
        try:
            for env in options.envs:
                for method in options.methods:
                    then, now = (
                        digest(tree, env, method, Path(folder, f"{env}-{method}-{tree.name}"))
                        for tree in (earlier, HERE)
                    )
                    changed += then != now
                    print(f"{env:10} {method:8} {then} {now}", "" if then == now else " CHANGED")
        finally:
            subprocess.run([*git, "remove", "--force", earlier], check=True)
    raise SystemExit(min(1, changed))


if __name__ == "__main__":
    main()
