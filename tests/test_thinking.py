"""What a model thinks before its reply: never read as an answer, shown to teammates only if asked for."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pettingllms.envs import load_env
from pettingllms.envs.thinking import SHOWN_CHARS, shown_thoughts, thought_in, without_thought
from tests import toy_env

PROGRAM = "```python\nprint(1)\n```"
TESTS = "```input\n1\n```\n```output\n2\n```"
REPLIES = {
    "coding": {"coder": PROGRAM, "tester": TESTS},
    "math": {"tool": PROGRAM, "reasoner": r"\boxed{7}"},
    "plan_path": {"tool": "#### [R]", "planner": "#### [R]"},
    "sokoban": {"tool": "#### [R]", "planner": "#### [L]"},
    "sudoku": {"tool": "#### [a1=1]", "planner": "#### [a2=2]"},
    "tests.toy_env:env": {"guesser": "7", "checker": "higher"},
}
"""Environment -> role -> a reply that can be read."""
ALL = pytest.mark.parametrize("name", sorted(REPLIES))
DRAFTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                PROGRAM,
                TESTS,
                r"\boxed{3}",
                "#### [U, U]",
                "[a1=2]",
                "3",
                "<think>",
                "</think>",
                "```",
            ]
        ),
        st.text(max_size=12),
    ),
    max_size=6,
).map("\n".join)


def started(name, **kwargs):
    env = load_env(name, max_turns=2, **kwargs)
    env.reset(seed=5)
    return env


def seen(env):
    """What everybody knows and has earned."""
    return (
        env.state(),
        {agent: env.observe(agent)["text"] for agent in env.possible_agents},
        env.rewards,
        env.infos,
    )


def role(env):
    return env.agent_selection.rpartition("_")[0]


@ALL
@settings(max_examples=12)
@given(drafts=DRAFTS)
@example(drafts="")
@example(drafts="<think>a</think>b<think>")
def test_drafts_in_a_thought_never_count(name, drafts):
    env = started(name)
    for _ in range(2):
        reply = REPLIES[name][role(env)]
        plain, thinking, cut = env.branch([reply, f"<think>{drafts}</think>{reply}", ""])
        assert seen(plain) == seen(thinking)
        assert thinking.transcript[-1].reply.startswith("<think>"), "the record keeps all"
        # Cut while thinking: as a reply that says nothing, whatever was thought.
        unclosed = drafts.replace("</think>", "")
        (cut, empty) = env.branch([f"<think>{unclosed}", "<think>"])
        assert seen(cut) == seen(empty)
        agent = env.agent_selection
        assert "thought is not closed" in cut.infos[agent]["parse_error"]
        assert cut.rewards[agent] <= max(0.0, plain.rewards[agent])
        env.step(reply)


@ALL
def test_an_unclosed_thought_costs_what_any_unreadable_reply_costs(name):
    env = started(name)
    cut, unreadable = env.branch([f"<think>{REPLIES[name][role(env)]}", "nothing to read"])
    assert cut.rewards == unreadable.rewards


@settings(max_examples=60)
@given(st.text(max_size=30), DRAFTS)
@example("", "a </think> b <think> c")
def test_no_text_crashes_and_what_is_said_and_shown_holds_no_tag(before, drafts):
    for text in (before + drafts, f"<t<think>hink>{drafts}</t</think>hink>{before}"):
        reply = without_thought(text) or ""
        # A tag between quotation marks is text; to teammates no tag is shown in a thought.
        assert without_thought(reply) == reply
        assert "<think>" not in thought_in(text)
        assert "</think>" not in thought_in(text)
        assert len(thought_in(text * 200)) <= 4 * SHOWN_CHARS


def test_a_closing_tag_alone_ends_a_thought_that_the_template_opened():
    assert without_thought("I guess [U].</think>[R]") == "[R]"


@pytest.mark.parametrize(
    "said",
    [
        "```python\nprint('</think>')\n```",
        '```python\nre.sub(r"<think>.*?</think>", "", s)\n```',
        "The tag `<think>` opens a thought, and I don't count it: [R]",
    ],
)
def test_a_tag_in_a_string_is_text(said):
    for text in (said, f"<think>isn't it '?</think>{said}", f"a guess\n</think>\n{said}"):
        assert (without_thought(text) or "").strip() == said
    assert without_thought("It's <think> that's [R]") is None


@ALL
def test_teammates_are_shown_a_thought_only_if_asked_for(name):
    env, open_env = started(name), started(name, show_thinking=True)
    for game in (env, open_env):
        game.step(f"<think>a secret draft</think>{REPLIES[name][role(game)]}")
    mate = env.agent_selection
    assert "secret draft" not in env.observe(mate)["text"]
    text = env.observe(mate)["text"]
    assert open_env.observe(mate)["text"] == (
        f"{text}\n\n{env.possible_agents[0]} thought:\na secret draft"
    )
    assert "secret draft" not in open_env.observe(open_env.possible_agents[0])["text"]
    open_env.step(REPLIES[name][role(open_env)])
    assert "secret draft" not in open_env.observe(mate)["text"], "only since its last reply"


def test_who_does_not_see_an_agent_is_not_shown_its_thought():
    env = started("math", reasoners=2, topology="chain", show_thinking=True)
    env.step(f"<think>first</think>{PROGRAM}")
    env.step(r"<think>second</think>\boxed{1}")
    assert env.observe("reasoner_1")["text"].count("thought:") == 1
    assert "second" in env.observe("reasoner_1")["text"]
    assert "thought:" not in env.observe("tool_0")["text"], "it sees only itself"


def test_copies_show_the_same_thoughts():
    env = started("tests.toy_env:env", show_thinking=True)
    env.step("<think>maybe 3</think>5")
    other = toy_env.env(max_turns=2, show_thinking=True)
    other.restore(env.snapshot())
    assert env.clone().observe("checker_0") == other.observe("checker_0")
    assert "maybe 3" in other.observe("checker_0")["text"]


def test_long_thoughts_are_shortened_in_the_middle():
    env = started("tests.toy_env:env")
    env.step(f"<think>{'a' * 5000}{'b' * 5000}</think>5")
    shown = shown_thoughts(env.transcript, "checker_0", ["guesser_0"])
    assert shown.count("a") >= SHOWN_CHARS // 2
    assert shown.endswith("b" * (SHOWN_CHARS // 2))
    assert len(shown) < SHOWN_CHARS + 60
