"""What the names of roles, policies, and base models stand for.

`--policies` maps roles to policies: a shared policy, a policy per role and anything between differ in
this mapping only. `--train-roles` picks those that learn, and `--model` names the base of all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.models import DEFAULT, SHIPPED, SMOLLM2

BASE = "base"
"""The name of the unmodified base model as a policy: it has no adapter and is never trained."""
PARTNER = "api:"
"""Prefix of policies that a model behind an API plays; the name of the model follows."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_WORDS = ("shared", "per-role", "per-agent", BASE, f"{PARTNER}MODEL")


def role_of(agent: str) -> str:
    """Returns the role of an agent: `coder` of `coder_0`; a name without a number is a role."""
    return re.sub(r"(?<=.)_\d+\Z", "", agent)


def is_partner(policy: str) -> bool:
    """Returns whether a model behind an API plays the policy; it is never trained."""
    return policy.startswith(PARTNER)


def policy_of(role: str, roles_to_policies: Mapping[str, str]) -> str:
    """Returns the policy of a role or an agent; without its own, an agent has that of its role.

    Raises:
        UnknownNameError: no policy plays it.
    """
    policy = roles_to_policies.get(role) or roles_to_policies.get(role_of(role))
    if policy is None:
        raise UnknownNameError(
            f"no policy plays the role {role!r}; {did_you_mean(role, roles_to_policies)}"
        )
    return policy


def parse_policies(spec: str, roles: Sequence[str], agents: Sequence[str] = ()) -> dict[str, str]:
    """Turns a command-line spelling into role -> policy, in the order of `roles`.

    An agent may have a policy of its own, beside that of its role or in its place; then there is
    an entry agent -> policy.

    Args:
        spec: `shared` (one policy named `shared`), `per-role` (each role its own, under its own
            name), `per-agent` (each agent), `base` (the unmodified model plays all roles), `api:MODEL`
            (a model behind an API plays all roles), or pairs such as `coder=a,tester=api:MODEL` or
            `reasoner_0=a,reasoner_1=b`.
        roles: all roles that act, in turn order.
        agents: all agents, in turn order.

    Raises:
        ConfigError: a role without a policy, a role named twice, a policy name that PEFT or a
            file system cannot hold.
        UnknownNameError: a role or agent that does not act.
    """
    if spec in ("shared", BASE):
        return dict.fromkeys(roles, spec)
    if spec == "per-role":
        pairs = {role: role for role in roles}
    elif spec == "per-agent":
        pairs = {agent: agent for agent in agents}
    elif _for_all(spec):
        pairs = dict.fromkeys(roles, spec)
    elif "=" in spec:
        pairs = pairs_of("policies", spec, "role=policy")
    else:
        raise ConfigError(
            f"policies {spec!r} is neither a known word nor role=policy pairs; "
            f"{did_you_mean(spec, _WORDS)}"
        )
    return _checked(pairs, roles, agents)


def only_partners(spec: str) -> bool:
    """Returns whether models behind an API play all roles, so that no model is loaded here."""
    return _for_all(spec) or (
        "=" in spec and all(map(is_partner, pairs_of("policies", spec, "role=policy").values()))
    )


def trained_policies(
    train_roles: str | None, roles_to_policies: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns the policies that learn, in the order of the roles.

    Args:
        train_roles: comma-separated roles, or agents with a policy of their own; None for all.
            `base` and models behind an API never learn.
        roles_to_policies: as from `parse_policies`.

    Raises:
        ConfigError: an unknown role, nothing to train, or a policy that a frozen role shares with
            one that learns.
    """
    named = [] if train_roles is None else train_roles.split(",")
    roles = [role.strip() for role in named] or list(roles_to_policies)
    for role in roles:
        if role not in roles_to_policies:
            raise ConfigError(
                f"train_roles names the unknown role {role!r}; {did_you_mean(role, roles_to_policies)}"
            )
    trained = dict.fromkeys(
        policy for role, policy in roles_to_policies.items() if role in roles and is_own(policy)
    )
    if not trained:
        frozen = {roles_to_policies[role]: None for role in roles}
        shown = ", ".join(
            f"the unmodified base model (policy {BASE!r})" if policy == BASE else policy
            for policy in frozen
        )
        raise ConfigError(f"nothing to train: {', '.join(roles)} played by {shown}")
    # Training it would change what the frozen role does.
    for role, policy in roles_to_policies.items():
        if role not in roles and policy in trained:
            raise ConfigError(
                f"role {role!r} is not in train_roles but shares the policy {policy!r} with a role "
                "that is; give it a policy of its own (--policies)"
            )
    return tuple(trained)


def is_own(policy: str) -> bool:
    """Returns whether a policy has weights of its own here: an adapter or a full model."""
    return policy != BASE and not is_partner(policy)


def own_names(roles_to_policies: Mapping[str, str]) -> tuple[str, ...]:
    """The policies that have weights here, each once, in the order of the roles."""
    return tuple(name for name in dict.fromkeys(roles_to_policies.values()) if not is_partner(name))


def check_policy_name(name: str) -> None:
    """Refuses a name that cannot name both an adapter in PEFT and a folder.

    Raises:
        ConfigError: the name does not start with a letter, or has characters other than letters,
            digits, `_` and `-`; or it is that of a model behind an API, and names none.
    """
    if is_partner(name):
        if not name.removeprefix(PARTNER).strip() or not name.isprintable():
            raise ConfigError(
                f"policy name {name!r} names no model; write {PARTNER}MODEL, with the name that the "
                "server gives it"
            )
        return
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"policy name {name!r} must start with a letter and hold only letters, digits, '_' "
            "and '-' (it names an adapter and a folder)"
        )


def _for_all(spec: str) -> bool:
    """Returns whether one model behind an API plays all roles."""
    return is_partner(spec) and "," not in spec


def pairs_of(setting: str, spec: str, form: str, hint: str = "") -> dict[str, str]:
    """Reads `one=a,other=b`.

    Args:
        setting: its name in errors.
        spec: the text.
        form: of a pair, such as `role=policy`.
        hint: the end of the error about another form.

    Raises:
        ConfigError: an item of another form, or a name that occurs twice.
    """
    pairs: dict[str, str] = {}
    for item in spec.split(","):
        name, equals, value = (word.strip() for word in item.partition("="))
        if not (name and equals and value):
            raise ConfigError(f"{setting}: {item!r} is not {form}, in {spec!r}{hint}")
        if name in pairs:
            what = form.partition("=")[0].lower()
            raise ConfigError(f"{setting}: {what} {name!r} is named twice, in {spec!r}")
        pairs[name] = value
    return pairs


def _checked(
    pairs: Mapping[str, str], roles: Sequence[str], agents: Sequence[str]
) -> dict[str, str]:
    players = list(dict.fromkeys([*roles, *agents]))
    for name in pairs:
        if name not in players:
            raise UnknownNameError(
                f"policies: unknown role {name!r}; {did_you_mean(name, players)}"
            )
    agents_of = {role: [agent for agent in agents if role_of(agent) == role] for role in roles}
    # A role needs no policy of its own where each of its agents has one.
    missing = [
        role
        for role in roles
        if role not in pairs
        and not (agents_of[role] and all(agent in pairs for agent in agents_of[role]))
    ]
    if missing:
        raise ConfigError(
            f"policies: no policy for {', '.join(map(repr, missing))}; every role needs one, for "
            f"example {','.join(f'{role}={pairs.get(role, role)}' for role in roles)}"
        )
    for policy in pairs.values():
        check_policy_name(policy)
    # In the order of turns, whatever order they were written in: cast and learners follow it.
    ordered = (name for role in roles for name in (role, *agents_of[role]))
    return {name: pairs[name] for name in ordered if name in pairs}


def declared_in(name: str) -> str:
    """The class attribute in which an environment declares its arguments for a shipped model."""
    return name.replace(":", "_")


def shipped(model: str | None) -> str | None:
    """The key in `SHIPPED` of a model given by name or folder; None for any other model."""
    if model is None or model in SHIPPED:
        return model or DEFAULT
    path = Path(model).resolve()
    return next((name for name, folder in SHIPPED.items() if folder.resolve() == path), None)


def is_gguf(model: str | None) -> bool:
    """Returns whether a value of `--model` is `smollm2` or names a GGUF file."""
    return model is not None and (model == SMOLLM2 or model.endswith(".gguf"))


def model_path(model: str | None) -> str:
    """The name or folder that transformers loads for a value of `--model`.

    Raises:
        ConfigError: `smollm2` or a GGUF file that cannot be used.
    """
    if model is not None and is_gguf(model):
        from pettingllms.models.gguf import folder_of

        return str(folder_of(model))
    name = shipped(model)
    return str(model) if name is None else str(SHIPPED[name])
