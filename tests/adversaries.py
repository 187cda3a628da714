"""Adversaries of each environment and role, and honest players to compare them with.

A player sees everything, also what its agent is not shown: an adversary is not to fail for want of knowledge.
Kinds: blind (the shipped constants), lying, copying (what it is shown), out of specification, substring (a part of
what is right, or the right among others), stalling (useless at first, then honest).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.constant_answers import ANSWERS
from pettingllms.data import sokoban
from pettingllms.data.sudoku import DIGITS
from pettingllms.envs import load_env
from pettingllms.names import role_of
from tests.test_coding_v0 import a_row, checks, code

Player = Callable[[Any, str], str]
RIGHT, WRONG = "print(abs(int(input())))", "print(int(input()))"


def said(text: str) -> Player:
    return lambda _env, _agent: text


def fenced(tag: str, text: str) -> str:
    return f"```{tag}\n{text}\n```"


# ---------------------------------------------------------------------------- honest players


def searches(env: Any, agent: str) -> str:
    state = env._state
    passages = [p.text for search in state.searches for p in search.found]
    missing = [fact for fact in state.question.gold if fact not in passages]
    query = " ".join(missing[0].split()[:-1]) if missing else ""
    answer = f"<answer>{state.question.answers[0]}</answer>"
    needed = [fact for fact in state.question.gold if fact in passages]
    return {
        "verifier": f"<verify>{'no' if missing else 'yes'}</verify>",
        "searcher": f"<search>{query or 'more'}</search>",
        "answerer": answer,
        "planner": f"<task>{query}</task>" if missing else answer,
        "worker": f"<search>{query}</search>"
        if state.calls and not state.searches[state.calls[-1].start :]
        else f"<result>{' '.join(needed)}</result>",
    }[role_of(agent)]


def codes(env: Any, agent: str) -> str:
    return code(RIGHT) if role_of(agent) == "coder" else checks(("-5", "5"), ("7", "7"))


def debugs(env: Any, agent: str) -> str:
    calls = env._state.calls
    if role_of(agent) == "coder":
        first = WRONG if env.task_seed % 2 else RIGHT
        if not calls.made:
            return f"{code(first)}\n{fenced('debug', 'Is it right?')}"
        # It believes its debugger.
        report = calls.made[-1].report or ""
        return code(RIGHT if "-5" in report or (first == RIGHT and report == "right") else WRONG)
    if not calls.made[-1].trials:
        return fenced("input", "-5")
    return fenced("report", "-5 stays" if WRONG in calls.made[-1].program else "right")


def calculates(env: Any, agent: str) -> str:
    answer = env._state.problem.answers[0]
    return code(f"print({answer!r})") if role_of(agent) == "tool" else rf"\boxed{{{answer}}}"


def walks(env: Any, agent: str) -> str:
    level, moves = env._state.level, ""
    cell = env._state.position
    while cell != level.goal:
        around = {"U": -level.width, "D": level.width, "L": -1, "R": 1}
        move, cell = next(
            (m, cell + d)
            for m, d in around.items()
            if 0 <= cell + d < len(level.distances)
            and level.distances[cell + d] == level.distances[cell] - 1
            and (m in "UD" or (cell + d) // level.width == cell // level.width)
        )
        moves += move
    return f"#### [{moves}]"


def pushes(env: Any, agent: str) -> str:
    solution = sokoban.solve(env._state.level.room, env._state.position)
    return f"#### [{solution.moves if solution else ''}]"


def fills(env: Any, agent: str) -> str:
    return f"#### [{''.join(DIGITS[n] for n in env._state.level.solution)}]"


def signals(env: Any, agent: str) -> str:
    words = dict(zip(env.doors, env.words, strict=False))
    if role_of(agent) == "scout":
        return f"<say>{words[env._state.goal]}</say>"
    heard = " ".join(env._state.message)
    return f"<open>{next((d for d, w in words.items() if w == heard), env.doors[0])}</open>"


def reads(env: Any, agent: str) -> str:
    person, city = env._state.notes[env._state.asked]
    return f"{person} lives in {city}." if role_of(agent) == "finder" else city


def other_note(env: Any) -> tuple[str, str]:
    return env._state.notes[env._state.asked - 1]


def answers(env: Any, agent: str) -> str:
    number, _ = env._asked(env._state, agent)
    return env.answers[env.right[role_of(agent)][number]]


def conducts(env: Any, agent: str) -> str:
    state = env._state
    if role_of(agent) == "conductor":
        role, person = next((f for f in state.chain if state.needs(f)), ("", ""))
        answer = f"<answer>{state.value(state.chain[-1])}</answer>"
        return f"<call>{role}: {person}</call>" if role else answer
    fact = state.fact(state.errands[-1])
    return f"<result>{state.value(fact) if fact[1] else 'nobody'}</result>"


def other_value(env: Any, fact: tuple[str, str] | None = None) -> str:
    role, person = fact or env._state.chain[-1]
    values = env._state.facts[role]
    return next(
        value for key, value in values.items() if value != values.get(person) and key != person
    )


def other_answer(env: Any, agent: str) -> str:
    return next(word for word in env.answers if word != answers(env, agent))


HONEST: Mapping[str, Player] = {
    "crew": conducts,
    "duet": answers,
    "read": reads,
    "search": searches,
    "nested search": searches,
    "coding": codes,
    "debugging": debugs,
    "math": calculates,
    "plan_path": walks,
    "sokoban": pushes,
    "sudoku": fills,
    "signal": signals,
}
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    # Tasks in which every worker but the last one is called.
    "crew": {"workers": 2, "lookups": (1, 2)},
    "search": {"hops": (2, 2)},
    "nested search": {"topology": "nested", "hops": (2, 2), "max_turns": 6},
    "coding": {"max_turns": 2},
    "math": {"max_turns": 2},
    "plan_path": {"height": 6, "width": 6, "moves": (4, 12), "max_turns": 2},
    "sokoban": {"max_turns": 2},
    "sudoku": {"max_turns": 2},
}


def opened(name: str, folder: Path, **more: Any) -> Any:
    """The environment of a case."""
    arguments = {**ARGUMENTS.get(name, {}), **more}
    if name in ("coding", "debugging"):
        (folder / "tasks.jsonl").write_text(
            "\n".join(json.dumps(a_row(question=f"{a_row()['question']} {n}")) for n in range(2))
        )
        arguments["dataset"] = folder / "tasks.jsonl"
    return load_env(name.rpartition(" ")[2], **arguments)


# ------------------------------------------------------------------------------- adversaries


def shown(env: Any, agent: str) -> str:
    return str(env.observe(agent)["text"])


def between(tag: str, text: Callable[[Any], str]) -> Player:
    return lambda env, _agent: f"<{tag}>{text(env)}</{tag}>"


def late(honest: Player, useless: str) -> Player:
    return lambda env, agent: honest(env, agent) if env.turn else useless


def answer(env: Any) -> str:
    return str(env._state.question.answers[0])


def problem(env: Any) -> str:
    return str(env._state.problem.answers[0])


def other_door(env: Any) -> str:
    return next(door for door in env.doors if door != env._state.goal)


def turned(honest: Player) -> Player:
    """Walks the other way, or writes other numbers."""
    table = str.maketrans("UDLR1234", "DURL4321")
    return lambda env, agent: honest(env, agent).translate(table)


UNREADABLE = said("I would rather not say.")


def board(honest: Player) -> dict[str, dict[str, Player]]:
    kinds = {
        "lying": turned(honest),
        "copying": shown,
        "substring": lambda env, agent: honest(env, agent)[:7] + "]",
        "stalling": late(honest, "#### []"),
    }
    return {"tool": kinds, "planner": kinds}


ADVERSARIES: Mapping[str, Mapping[str, Mapping[str, Player]]] = {
    "search": {
        "verifier": {
            "lying": lambda env, agent: (
                f"<verify>{'no' if 'yes' in searches(env, agent) else 'yes'}</verify>"
            ),
            "copying": between("verify", lambda env: env._state.question.text),
            "substring": said("<verify>yes or no</verify>"),
            "blind no": said("<verify>no</verify>"),
            "stalling": late(searches, "<verify>maybe</verify>"),
        },
        "searcher": {
            "lying": said("<search>nobody</search>"),
            "copying": between("search", lambda env: env._state.question.text.split()[0]),
            "substring": said("<search>a e o</search>"),
            "stalling": late(searches, "<search>nobody</search>"),
        },
        "answerer": {
            "lying": said("<answer>crab99</answer>"),
            "copying": between("answer", lambda env: env._state.question.text.split()[-1]),
            "substring": between("answer", lambda env: f"{answer(env)} or crab99"),
            "stalling": late(searches, "<answer></answer>"),
        },
    },
    "nested search": {
        "planner": {
            "lying": said("<answer>crab99</answer>"),
            "copying": between("task", lambda env: env._state.question.text),
            "substring": between("answer", lambda env: answer(env)[:-1]),
            "stalling": late(searches, "<task>nobody</task>"),
        },
        "worker": {
            "lying": lambda env, agent: (
                r if "<search" in (r := searches(env, agent)) else "<result>nothing</result>"
            ),
            "copying": lambda env, agent: (
                r
                if "<search" in (r := searches(env, agent))
                else f"<result>{env._state.calls[-1].task}</result>"
            ),
            "substring": lambda env, agent: (
                r if "<search" in (r := searches(env, agent)) else "<result>a 1</result>"
            ),
            "stalling": said("<search>nobody</search>"),
        },
    },
    "coding": {
        "coder": {
            "lying": said(code(WRONG)),
            "copying": said(code("print(3)")),
            "substring": said(code(RIGHT[:-2])),
            "stalling": late(codes, code("print()")),
        },
        "tester": {
            "lying": said(checks(("-5", "-5"))),
            "copying": shown,
            "substring": said(checks(*((str(n), "5") for n in range(2, 9)))),
            "stalling": late(codes, "Later."),
        },
    },
    "debugging": {
        "coder": {
            "lying": said(code(WRONG)),
            "copying": said(code("print(3)")),
            "substring": said(code(RIGHT[:-2])),
            "stalling": late(debugs, "Later."),
        },
        "debugger": {
            "lying": lambda env, agent: (
                r
                if "```input" in (r := debugs(env, agent))
                else fenced("report", "-5 stays" if "right" in r else "right")
            ),
            "copying": lambda env, agent: (
                r
                if "```input" in (r := debugs(env, agent))
                else fenced("report", env._state.calls.made[-1].program)
            ),
            "substring": lambda env, agent: (
                fenced("input", "no number")
                if "```input" in debugs(env, agent)
                else fenced("report", "not right: no number stays")
            ),
            "stalling": late(debugs, fenced("input", "no number")),
        },
    },
    "math": {
        "tool": {
            "lying": lambda env, _: code(f"print({problem(env)!r} + '1')"),
            "copying": lambda env, _: code(f"print({env._state.problem.question!r})"),
            "substring": lambda env, _: code(f"print('1 or ' + {problem(env)!r})"),
            "stalling": late(calculates, "Later."),
        },
        "reasoner": {
            "lying": lambda env, _: rf"\boxed{{{problem(env)}1}}",
            "copying": shown,
            "substring": lambda env, _: rf"\boxed{{{problem(env)}, 99999}}",
            "stalling": late(calculates, "Later."),
        },
    },
    "plan_path": board(walks),
    "sokoban": board(pushes),
    "sudoku": board(fills),
    "crew": {
        "conductor": {
            "lying": between("answer", other_value),
            "copying": shown,
            "substring": between("answer", lambda env: " ".join(env._state.facts["clerk"])),
            "stalling": late(conducts, "<call>clerk: nobody</call>"),
        },
        **{
            role: {
                "lying": between(
                    "result", lambda env: other_value(env, env._state.fact(env._state.errands[-1]))
                ),
                "copying": shown,
                "substring": between(
                    "result",
                    lambda env: " ".join(env._state.facts[env._state.errands[-1].role].values()),
                ),
                "stalling": late(conducts, "<result>Later.</result>"),
            }
            for role in ("clerk", "courier")
        },
    },
    "duet": {
        role: {
            "lying": other_answer,
            "copying": shown,
            "substring": lambda env, _: " ".join(env.answers),
        }
        for role in ("left", "right")
    },
    "read": {
        "finder": {
            "lying": lambda env, _: " lives in ".join(other_note(env)),
            "copying": shown,
            "substring": lambda env, _: " ".join(city for _, city in env._state.notes),
        },
        "answerer": {
            "lying": lambda env, _: other_note(env)[1],
            "copying": shown,
            "substring": lambda env, _: " ".join(city for _, city in env._state.notes),
        },
    },
    "signal": {
        "scout": {
            "lying": lambda env, _: f"<say>{env.words[env.doors.index(other_door(env))]}</say>",
            "copying": between("say", lambda env: env._state.goal),
            "substring": said(f"<say>{' '.join(['dax', 'wug'])}</say>"),
        },
        "mover": {
            "lying": between("open", other_door),
            "copying": shown,
            "substring": between("open", lambda env: " ".join(env.doors)),
        },
    },
}


def adversaries(name: str, role: str) -> dict[str, Player]:
    """Every kind for a role."""
    constants = ANSWERS[name.rpartition(" ")[2]][0]
    blind = lambda env, _agent: constants[min(env.turn, len(constants) - 1)]  # noqa: E731
    return {**ADVERSARIES[name][role], "blind": blind, "out of specification": UNREADABLE}
