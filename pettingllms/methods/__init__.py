"""Methods of the literature, one file each, besides AT-GRPO (`pettingllms.trainers.at_grpo`).

Each is a subclass of `pettingllms.trainers.method.Method` with the paper's formula in its docstring.
`pettingllms.trainers.method_names` has their names.

Returns are sums of the very rewards that `at_grpo` compares, of all roles and turns, so that methods
differ in grouping alone. Where agents have returns of their own (environments without a team reward),
each agent is compared with itself, and rewards paid at other agents' steps are included.
"""
