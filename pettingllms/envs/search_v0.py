"""# Search.

A verifier decides whether enough has been found, a searcher queries texts, an answerer answers.

A question takes two or three look-ups, and what the first one finds is in no other text.

| | |
|---|---|
| Creation | `search_v0.env()`, `pettingzoo.make("aec", "pettingllms/search-v0")` |
| Agents | `verifier_0`, `searcher_0`, `answerer_0`; other topologies have some of them, `solver_0`, or `planner_0` and `worker_0` |
| Action | `FreeText`: a reply with `<verify>yes</verify>`, `<search>...</search>`, `<answer>...</answer>`, `<task>...</task>` or `<result>...</result>` |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 4 by default, then truncation; one less is the number of searches, in every topology |

Who acts next depends on the replies:

| topology | order |
|---|---|
| `"router"` (default) | verifier: `yes` leads to the answerer, `no` to the searcher, after whom the verifier is next; in its last turn an answer is due whatever it says |
| `"chain"` | searcher, answerer, searcher, ...: the answerer answers, or says `<verify>no</verify>` for another search |
| `"single"` | `solver_0` searches or answers in each reply |
| `"nested"` | planner: a task leads to the worker, an answer ends; worker: searches, and is next again, or reports a result, after which the planner is next |

In the nested topology the planner calls the worker as often as it likes, also never. The worker sees its task and what it has found for it,
not the question nor earlier calls; the planner sees tasks and results, not texts. A call takes at least a search and a report: where the worker's turns do not
allow both, an answer is due, and in its last turn it has to report. In all others,
agents see the question, the queries and what they found. Nobody sees another's thinking. The first answer that
can be read is final and ends the episode; it is a success if it matches an accepted answer exactly, up to case,
punctuation and articles. A reply that cannot be read says why in `infos[agent]["parse_error"]` and uses up the
turn; the verifier's counts as `yes`, the worker's as a report of nothing. Any text is a query: it is split into words and never parsed
(`pettingllms.data.retrieval`). Flow and outcome reward are those of Dr. MAS (arXiv 2602.08847).

# Rewards

`reward = alpha * team + local`, both in `infos`.

| scheme | verifier; worker's report | searcher, worker's search | answerer, planner |
|---|---|---|---|
| `"dense"` (default) | local: -0.5 where its word is wrong; -0.5 of what is not told | team: share of the needed passages that it is the first to find | team: 1 for an exact match |
| `"sparse"` | 0 | 0 | the same |

`yes` is right exactly if all needed passages have been found. An answerer that may say `no` is held to
the same; a solver is paid as searcher or answerer. What is needed is what the data set names; where it names
nothing, one passage that contains an accepted answer, in whole words; where these are yes, no, or one or two characters, which any
passage may contain, nobody knows what is needed: no search is paid and no word is wrong. A reply that cannot be read costs 0.01 of local
reward. A worker's report loses half of the share of the needed passages that its call was the first to find and that it does not tell: of
each it has to give a word of four letters, or with a digit, that is not in its task (where the data set names no passages: the answer).
Every positive reward is a part of a sum that an episode holds at most once, 1 for searching and 1 for the answer, and
words are only ever penalized: a longer episode, a repeated query, or an answer that holds half of a passage earns nothing.

`infos[agent]`: `right` (a right word; a search that finds something needed), `difficulty` (`2 hops`), `recall` (share of the needed passages found so far), `searches`,
`anchor` (equal where the question and the set of found passages are equal); of a report `expert`, the share of the needed passages that its call was the first to find; of an answer `exact`, `f1` and `contains`.

# Tools and questions

With `tools`, roles that search see a conversation with the tool
`search`, and a query is a call of it: `<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`; the
model's chat template must take tools. Under small prompts an answer of at most four words that contains an accepted
one earns 0.3 of local reward.

`reset(options={"question": text})` plays a question without a reference, for which nothing is paid; `answer()` is the
team's answer.

# Version History

* v0: first version (0.2.0)
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

from pettingllms.data import facts
from pettingllms.data.retrieval import Passage, Question
from pettingllms.data.rows import Source
from pettingllms.envs import arguments
from pettingllms.envs.base import Outcome, metadata_of
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.search_text import (
    Call,
    Lookup,
    SearchReply,
    compact_prompt,
    full_prompt,
    parse_reply,
    small_prompt,
)
from pettingllms.envs.search_tools import CALLERS, library, parse_tool_reply, tool_prompt
from pettingllms.envs.team_env import PromptArguments, TeamEnv
from pettingllms.errors import ConfigError
from pettingllms.grading.short_answers import contains, f1, normal, telling

Topology = Literal["router", "chain", "single", "nested"]
ROLES: Mapping[str, tuple[str, ...]] = {
    "router": ("verifier", "searcher", "answerer"),
    "chain": ("searcher", "answerer"),
    "single": ("solver",),
    "nested": ("planner", "worker"),
}
UNREADABLE = 0.01
"""Cost, in local reward, of a reply that cannot be read."""
WRONG_WORD = 0.5
"""Cost, in local reward, of a wrong yes or no."""
MOST_TOP = 20
PARTLY, MOST_PARTLY = 0.3, 4
"""Local reward under small prompts of an answer that contains the right one, and its most words."""


@dataclass(frozen=True, slots=True)
class SearchState:
    """State of an episode: the question, what has been searched, and whose turn it is."""

    question: Question
    due: str
    """Role that acts next."""
    searches: tuple[Lookup, ...] = ()
    used: int = 0
    """Searches that have been made or wasted."""
    turns: int = 0
    """Turns that are over, of the role that opens them."""
    recall: float = 0.0
    calls: tuple[Call, ...] = ()
    """Of a worker; the last one may be at work."""
    acted: int = 0
    """Replies of the worker."""
    answer: str | None = None
    success: bool = False


class raw_env(TeamEnv):
    """The search environment; the module's docstring is its manual.

    Args:
        dataset: None for questions about generated facts (`pettingllms.data.facts`), or a data set's name, hub id,
            file or folder (`pettingllms.data.question_schemas`), or its rows.
        corpus: what is searched: "pooled" (the passages of all rows), "own" (those of the question
            alone), or a corpus's hub id, file or folder; None for "pooled", or the generated facts.
        cache: folder of indexes; None for ~/.cache/pettingllms/search.
        hops: fewest and most look-ups of a generated question.
        topology: who acts when: "router", "chain", "single" for one `solver_0`, or "nested" for a
            planner that calls a worker.
        top: most passages that a search returns.
        tools: search by calls of a tool, in conversations, in place of tags; for full prompts.
        rewards: "dense", or "sparse" for the outcome alone.
        kwargs: as in `TeamEnv`.

    Raises:
        ConfigError: an unknown word, numbers out of range, or questions without a corpus.
        DatasetError: `dataset` or `corpus` cannot be had, or has nothing that can be used.
    """

    metadata = metadata_of("search_v0")
    divides_datasets = True
    embedded = {"prompt": "compact"}
    smollm2 = {"prompt": "small", "hops": (2, 2)}
    embedded_model = "embedded:search"
    embedded_search = {"prompt": "compact", "hops": (2, 2)}
    embedded_search_training = {
        "learning_rate": 4e-3,
        "tasks_per_step": 8,
        "max_steps": 40,
        "max_completion_length": 20,
        "eval_steps": 5,
    }
    schemes = ("dense", "sparse")
    # Where an index lies makes no difference to what is found in it.
    interchangeable = TeamEnv.interchangeable | {"cache"}
    reset_options = ("question",)

    def __init__(
        self,
        *,
        dataset: Source | None = None,
        corpus: str | Path | None = None,
        cache: str | Path | None = None,
        hops: tuple[int, int] = facts.HOPS,
        topology: Topology = "router",
        top: int = 2,
        tools: bool = False,
        rewards: str = "dense",
        **kwargs: Unpack[PromptArguments],
    ) -> None:
        arguments.one_of("topology", topology, get_args(Topology))
        super().__init__(roles=ROLES[topology], rewards=rewards, **kwargs)
        self.topology = topology
        if topology == "nested":
            # Methods for calls find the caller here (`pettingllms.methods.m_grpo`).
            self.metadata = {**self.metadata, "caller": "planner_0"}
        if not 1 <= top <= MOST_TOP:
            raise ConfigError(f"top must be between 1 and {MOST_TOP}, got {top}")
        self.top = top
        self.tools = bool(tools)
        if self.tools and (self.prompt != "full" or self.show_thinking):
            raise ConfigError(
                f"tools need full prompts without thoughts of others, got prompt={self.prompt!r} and "
                f"show_thinking={self.show_thinking}"
            )
        facts.check_hops(tuple(hops))
        self.library = library(dataset, corpus, self.split, (hops[0], hops[1]), cache)
        self.num_tasks = self.library.size

    def _start(self, seed: int, options: dict[str, Any]) -> SearchState:
        # A team without a single search goes straight to its answer.
        first = ROLES[self.topology][0 if self.budget or self.topology != "chain" else -1]
        if "question" in options:  # nobody knows its answer
            return SearchState(Question(str(options["question"]), (), (), "question"), first)
        return SearchState(self.library.question(seed), first)

    def _next_agent(self, state: SearchState, agent: str | None) -> str:
        del agent
        return f"{state.due}_0"

    @property
    def budget(self) -> int:
        """Searches that an episode may make: so many that an answer still fits."""
        return self.max_turns - 1

    def _text(self, state: SearchState, agent: str) -> str:
        role, may_pass = agent.removesuffix("_0"), self._may_pass(state)
        may_pass = may_pass and role == "answerer"
        asked, searches, calls = state.question.text, state.searches, state.calls
        left = self.budget - state.used
        if self.topology == "nested":
            calls, searches = tuple(call for call in calls if call.result is not None), ()
            left = left if self._may_call(state) else 0
        if role == "worker":
            # `_text` may be asked of any agent at any time, also of a worker without a task.
            now = state.calls[-1] if state.calls else Call("", 0)
            asked, searches, calls = now.task, state.searches[now.start :], ()
            left = self.budget - state.acted
        if self.tools and role in CALLERS:
            return tool_prompt(role, asked, searches, left=left)
        if self.prompt == "compact":
            return compact_prompt(role, asked, searches, calls=calls, may_pass=may_pass)
        if self.prompt == "small":
            return small_prompt(role, asked, searches)
        return full_prompt(role, asked, searches, left=left, calls=calls, may_pass=may_pass)

    def _privileged(self, state: SearchState, agent: str) -> str:  # noqa: ARG002 - the same for all
        return " or ".join(state.question.answers)

    def _hears(self, agent: str) -> Collection[str]:
        return () if self.topology == "nested" else super()._hears(agent)

    def _may_call(self, state: SearchState) -> bool:
        # A search and a report of the worker, and then an answer of the planner.
        return state.acted + 2 <= self.max_turns and state.turns + 1 < self.max_turns

    def _may_pass(self, state: SearchState) -> bool:
        return self.topology == "chain" and state.used < self.budget

    def _act(self, state: SearchState, agent: str, text: str) -> Outcome:
        role = agent.removesuffix("_0")
        if self.tools and role in CALLERS:
            return self._judged(state, role, parse_tool_reply(role, text))
        return self._judged(state, role, parse_reply(role, text, self.prompt))

    def _unread(self, state: SearchState, agent: str, reason: str) -> Outcome:
        return self._judged(state, agent.removesuffix("_0"), ParseError(reason))

    def _judged(self, state: SearchState, role: str, reply: SearchReply | ParseError) -> Outcome:
        if isinstance(reply, ParseError):
            return self._unreadable(state, role, reply.why)
        if reply.kind == "verify":
            if role == "answerer" and not self._may_pass(state):
                return self._unreadable(state, role, "no search is left; an answer is due")
            return self._routed(state, role, reply.said)
        if reply.kind == "search":
            # The worker has as many replies as there are turns, and its last one has to be a
            # report.
            if max(state.used, state.acted) >= self.budget:
                due = "a report" if role == "worker" else "an answer"
                return self._unreadable(state, role, f"no search is left; {due} is due")
            return self._searched(state, role, reply.said)
        if reply.kind == "task":
            if not self._may_call(state):
                return self._unreadable(state, role, "the worker has no turns left; answer")
            calls = (*state.calls, Call(reply.said, len(state.searches)))
            turns = state.turns + 1
            return self._outcome(replace(state, due="worker", calls=calls, turns=turns))
        if reply.kind == "result":
            return self._reported(state, reply.said)
        accepted = state.question.answers
        exact = normal(reply.said) in map(normal, accepted)
        info = {"exact": float(exact), "f1": f1(reply.said, accepted)}
        info["contains"] = float(contains(reply.said, accepted))
        after = replace(state, answer=reply.said, success=exact)
        short = self.prompt == "small" and len(reply.said.split()) <= MOST_PARTLY
        partly = PARTLY * info["contains"] if short and not exact else 0.0
        return self._outcome(after, team=float(exact), local=partly, done=True, info=info)

    def _unreadable(self, state: SearchState, role: str, why: str) -> Outcome:
        if role == "verifier":
            counted = self._routed(state, role, "yes")
            return replace(counted, local=counted.local - UNREADABLE, parse_error=why)
        if role == "worker":
            empty = self._reported(state, "")
            return replace(empty, local=empty.local - UNREADABLE, parse_error=why)
        # A search that cannot be read is used up like any other.
        wasted = role == "searcher"
        after = replace(state, used=state.used + wasted, turns=state.turns + 1)
        after = replace(after, due=self._opener(after, role))
        return self._outcome(after, local=-UNREADABLE, parse_error=why)

    def _opener(self, state: SearchState, role: str) -> str:
        """The role after a searcher or answerer; a solver, planner or worker is next again."""
        if self.topology == "router":
            return "verifier"
        if self.topology in ("single", "nested"):
            return role
        searches = role == "answerer" and state.used < self.budget
        return "searcher" if searches else "answerer"

    def _routed(self, state: SearchState, role: str, word: str) -> Outcome:
        """Returns the outcome of a verifier's `yes` or `no`, or of an answerer's `no`."""
        enough = state.recall == 1.0
        # Of a question of a user's own nobody knows when enough has been found.
        has_gold = bool(state.question.gold or telling(state.question.answers))
        wrong = has_gold and enough != (word == "yes")
        local = -WRONG_WORD * wrong if self.rewards_scheme == "dense" else 0.0
        last = state.turns >= self.max_turns - 1
        due = "answerer" if role == "verifier" and (word == "yes" or last) else "searcher"
        return self._outcome(replace(state, due=due), local=local, info={"right": not wrong})

    def _searched(self, state: SearchState, role: str, query: str) -> Outcome:
        before = {passage for search in state.searches for passage in search.found}
        passages = tuple(p for p in self._found(state, query) if p not in before)
        searches = (*state.searches, Lookup(query, passages))
        recall = _recall(state.question, searches)
        worker = role == "worker"  # whose searches are no turns of the planner
        after = replace(
            state,
            searches=searches,
            recall=recall,
            used=state.used + 1,
            turns=state.turns + (not worker),
            acted=state.acted + worker,
        )
        after = replace(after, due=self._opener(after, role))
        dense = self.rewards_scheme == "dense"
        gained = recall - state.recall
        return self._outcome(after, team=gained if dense else 0.0, info={"right": gained > 0})

    def _reported(self, state: SearchState, result: str) -> Outcome:
        """Returns the outcome of a worker's report; an empty one stands for an unreadable reply."""
        *earlier, now = state.calls
        calls = (*earlier, now._replace(result=result))
        after = replace(state, due="planner", calls=calls, acted=state.acted + 1)
        # What was found before the call is not its merit.
        passages = {p for search in state.searches[now.start :] for p in search.found}
        silent = [p for p in passages if not _tells(state.question, now.task, result, p)]
        told = tuple(
            search._replace(found=tuple(p for p in search.found if p not in silent))
            for search in state.searches
        )
        expert = state.recall - _recall(state.question, state.searches[: now.start])
        dense = self.rewards_scheme == "dense"
        untold = state.recall - _recall(state.question, told) if dense else 0.0
        return self._outcome(after, local=-WRONG_WORD * untold, info={"expert": expert})

    def _found(self, state: SearchState, query: str) -> list[Passage]:
        return self.library.index(state.question).find(query, self.top)

    def _outcome(
        self,
        after: SearchState,
        *,
        team: float = 0.0,
        local: float = 0.0,
        info: Mapping[str, Any] | None = None,
        **rest: Any,
    ) -> Outcome:
        shown: dict[str, Any] = {"recall": after.recall, "searches": after.used, **(info or {})}
        shown["anchor"] = _anchor(after)
        if after.question.difficulty is not None:
            shown["difficulty"] = after.question.difficulty
        return Outcome(
            state=after,
            team=team,
            local=local,
            success=after.success,
            info=shown,
            notes={} if after.answer is None else {"answer": normal(after.answer)},
            **rest,
        )

    def _situation(self, state: SearchState) -> str | None:
        return state.question.difficulty

    def _answer(self, state: SearchState) -> str | None:
        return None if state.answer is None else f"<answer>{state.answer}</answer>"

    def _view(self, state: SearchState) -> str:
        lines = [f"question: {state.question.text}"]
        for search in state.searches:
            lines.append(f"search: {search.query}")
            lines += [f"  {passage.title}: {passage.text}" for passage in search.found]
        for call in state.calls:
            lines += [f"task: {call.task}", f"  result: {call.result or '-'}"]
        lines.append(f"answer: {state.answer or '-'}")
        return "\n".join([*lines, f"reference: {' or '.join(state.question.answers) or '-'}"])


def _recall(question: Question, searches: tuple[Lookup, ...]) -> float:
    """Share of what a question takes that the searches have found, from 0 to 1."""
    passages = [passage for search in searches for passage in search.found]
    if question.gold:
        keys = {passage.key for passage in passages}
        return sum(key in keys for key in question.gold) / len(question.gold)
    return float(any(contains(passage.text, telling(question.answers)) for passage in passages))


def _tells(question: Question, task: str, report: str, passage: Passage) -> bool:
    """Whether a worker's report gives something of a passage that its task did not have."""
    if not question.gold:
        return contains(report, question.answers)
    new = {*normal(f"{passage.title} {passage.text}").split()} - {*normal(task).split()}
    return any(len(w) > 3 or not w.isalpha() for w in new.intersection(normal(report).split()))


def _anchor(state: SearchState) -> str:
    """Digest of the question and the set of passages found: equal where the situation is."""
    keys = sorted(passage.key for search in state.searches for passage in search.found)
    told = [f"{call.task}\1{call.result}" for call in state.calls]
    text = "\0".join([state.due, state.question.text, *keys, *told])
    # Tasks and results are a model's, and may hold lone surrogates.
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


env = raw_env
"""The environment as PettingZoo users make it."""
