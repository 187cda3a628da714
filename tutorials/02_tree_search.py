"""Tree search with snapshots.

`snapshot` and `restore` copy an episode exactly, in microseconds, so search needs nothing but the environment. A breadth-first search solves a
Sokoban level here: it tries every move from every state it has reached, until a state is solved.
"""

from collections import deque

from pettingllms.envs import sokoban_v0

env = sokoban_v0.env(size=6, boxes=1, agents="single", max_turns=100, render_mode="ansi")
env.reset(seed=3)
print(env.render())

waiting = deque([(env.snapshot(), "")])
seen = {env.render()}
solution = None
while waiting and solution is None:
    state, path = waiting.popleft()
    for move in "UDLR":
        env.restore(state)
        env.step(f"#### [{move}]")
        if env.infos["planner_0"]["success"]:
            solution = path + move
            break
        board = env.render()
        if board not in seen and not any(env.terminations.values()):
            seen.add(board)
            waiting.append((env.snapshot(), path + move))

print(f"solved by {solution} after looking at {len(seen)} boards")
assert solution is not None

# The whole solution is also one answer: a list of moves.
env.reset(seed=3)
env.step(f"#### [{', '.join(solution)}]")
assert env.infos["planner_0"]["success"]
