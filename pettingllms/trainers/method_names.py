"""Names of methods, and of parts that are joined to them.

| part | what it does |
|---|---|
| `alternate` | one policy learns at a time (`steps`, 1) |
| `swap` | two policies change places (`steps`, 5) |
| `shared` | a completion is worth what all agents earned in its round |
| `debate` | an answer is worth its own score and those of later rounds |
| `flow` | a reply is worth the mean of the replies that used it |
| `root` | an episode is worth its success and form, once |
| `rivals` | earlier versions of the policy play the other side (`opponents`, `every`, `size`, `itself`) |

A part is joined to a method by a plus sign: `--method alternate+dr_mas`. A method of your own is a
subclass of `pettingllms.trainers.method.Method`, given as `--method my_package.my_module:MyMethod`.
"""

from __future__ import annotations

from pettingllms.registry import Registry

_FILES = {
    "look_ahead": "look_ahead:LookAhead malt:Malt c3:C3",
    "q_tree": "q_tree:QTree",
    "grpo": "grpo:Grpo dr_grpo:DrGrpo gspo:Gspo cispo:Cispo sapo:Sapo",
    "dr_mas": "dr_mas:DrMas decision:PerDecision turn:PerTurn agent_turn:PerAgentTurn",
    "gigpo": "gigpo:Gigpo",
    "gdpo": "gdpo:Gdpo",
    "aligned": "aligned:Aligned",
    "agentrl": "agentrl:AgentRl",
    "rae": "rae:Rae",
    "marshal": "marshal:Marshal",
    "max_rl": "max_rl:MaxRl",
    "counterfactual": "ccpo:Ccpo sharp:Sharp",
    "igrpo": "igrpo:Igrpo",
    "mlpo": "mlpo:Mlpo",
    "marft": "marft:Marft marft_gae:MarftGae gae:Gae alternate:Alternate",
    "cory": "cory:Cory swap:Swap shared:SharedRewards",
    "maporl": "maporl:Maporl debate:Debate",
    "m_grpo": "m_grpo:MGrpo",
    "matpo": "matpo:Matpo root:RootReward",
    "mhgpo": "mhgpo:Mhgpo flow:Flow",
    "cure": "cure:Cure",
    "distill": "distill:Distill",
    "hindsight": "hindsight:Hindsight",
    "league": "league:League rivals:Rivals",
    "judged": "judged:LearnedJudge",
    "ma_airl": "ma_airl:MaAirl",
}
METHODS = Registry(
    "method",
    {"at_grpo": "pettingllms.trainers.at_grpo:AtGrpo"}
    | {
        name: f"pettingllms.methods.{file}:{class_name}"
        for file, entries in _FILES.items()
        for name, class_name in (entry.split(":") for entry in entries.split())
    },
)
PARTS = ("alternate", "swap", "shared", "debate", "flow", "root", "rivals")
"""Names that stand for one hook, and are joined to a method."""
