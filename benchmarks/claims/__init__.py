"""The claims of the AT-GRPO paper, with the controls that it lacks; `python -m benchmarks.claims --help`.

| file | what |
|---|---|
| `experiments.py` | the table: environments, arms, claims and what each claim leaves open |
| `groupings.py` | estimators that compare the completions of a tree in other groups than AT-GRPO's |
| `cells.py` | one cell: a training, read at equal tokens and at equal updates, and its test tasks |
| `statistics.py` | hierarchical bootstrap, Student's test over seeds, Holm's correction |
| `difference.py` | whether a policy for each role gains more where the roles' policies differ more |
| `decisions.py` | whether the grouping matters more in longer episodes, or where prompts of a task pay differently |
| `report.py` | from cells to verdicts, tables and `results/claims.json` |
| `__main__.py` | the command |
"""
