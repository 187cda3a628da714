"""A whole evaluation: from settings to a plan, from the plan to episodes, scores and a folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pettingllms.assembly import (
    EnvSource,
    build_policies,
    check_adapters,
    check_bases,
    check_partners,
    isolation_of,
    located,
    make_env,
    name_of_env,
    one_of,
    partners_of,
)
from pettingllms.data.rows import data_digests, digest
from pettingllms.envs.aec import entries_of, parts_of, roles_of, seats_of
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.evaluation import report
from pettingllms.evaluation.chunks import EPISODES_AT_ONCE, Sampling
from pettingllms.evaluation.compare import Comparison, gain_in, paired, together
from pettingllms.evaluation.config import SHARED, EvalConfig
from pettingllms.evaluation.ensembles import ROUTED, VOTE, plan_with, with_members, write_routes
from pettingllms.evaluation.folder import EvalFolder, write_file
from pettingllms.evaluation.gate import with_gate
from pettingllms.evaluation.playing import playing
from pettingllms.evaluation.plots import bars
from pettingllms.evaluation.rollouts import (
    ADAPTERS,
    PARTNERS,
    ClosableSampler,
    Lineup,
    Verdicts,
    evaluate_lineups,
    held_out,
    lineups_of,
    title_of_swap,
)
from pettingllms.evaluation.scores import Evaluation, refusals, summarise
from pettingllms.evaluation.step import teacher_of
from pettingllms.names import (
    BASE,
    is_own,
    is_partner,
    model_path,
    own_names,
    parse_policies,
    shipped,
)
from pettingllms.policies.sources import is_adapter, is_folder, located_adapters
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.files import RESULTS, SETTINGS
from pettingllms.rollout.trajectory import Trajectory, overlong_note
from pettingllms.runs import CONFIG, read_config
from pettingllms.runs.team import team_of
from pettingllms.sandbox import SandboxSettings
from pettingllms.sandbox.isolation import announce
from pettingllms.statistics import Difference, Estimate, corrected
from pettingllms.trainers.callbacks import Display, Silent
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve
from pettingllms.trainers.settings import check_policy_settings, embedded_arguments
from pettingllms.types import JsonObject, Task

AT_ONCE_ELSEWHERE = 512
"""Episodes of a chunk with vLLM or another engine that schedules requests itself."""


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """An evaluation before any model is loaded."""

    config: ResolvedConfig
    """Settings of the environment and the policies."""
    split: str
    env: AnyEnv
    roles_to_policies: Mapping[str, str]
    """Role -> policy."""
    teams: Sequence[Lineup]
    tasks: Sequence[Task]
    sampling: Sampling
    adapters: Mapping[str, Path]
    """Policy -> the folder of its adapter."""
    source: EnvSource | None = None
    """The environment, or what makes it, in place of the one that the settings name."""
    divide: bool = True
    """Whether a data set without splits is divided: that of a run is, one that is given here is not."""
    route_out: Path | None = None
    """Where the table of what each member of an ensemble is worth is written."""

    @property
    def episodes(self) -> int:
        """Episodes of each team."""
        return len(self.tasks) * self.sampling.samples

    def settings(self) -> JsonObject:
        """Everything that the results follow from; a folder is resumed with equal settings only."""
        config, embedded = self.config, self.config.embedded
        fitted = [embedded_arguments(config, part.unwrapped) for part in parts_of(self.env)]
        # A file of the same name may have been edited since: its content is compared.
        data = data_digests(config.dataset, config.env_args)
        asked = any(map(is_partner, self.roles_to_policies.values()))

        def named(*names: str) -> JsonObject:
            return {name: getattr(config, name) for name in names}

        return {
            **named("env", "env_args", "dataset"),
            "data": data.pop("dataset", config.dataset),
            **({"env_data": data} if data else {}),
            "split": self.split,
            "tasks": len(self.tasks),
            **named("alpha", "sandbox"),
            "embedded_args": fitted[0] if len(fitted) == 1 else fitted,
            "model": shipped(config.model) if embedded else config.model,
            # An update of this package may bring another embedded model under the same name.
            "model_digest": digest(Path(model_path(config.model))) if embedded else None,
            **named("revision", "load_in_4bit", "long_context", "full", "dtype", "device"),
            **named("chat_template_kwargs", "sampler", "vllm"),
            "policies": dict(self.roles_to_policies),
            "adapters": config.adapters,
            "adapter_digests": {
                policy: digest(folder) for policy, folder in sorted(self.adapters.items())
            },
            "teams": {team.title: team.described() for team in self.teams},
            **dataclasses.asdict(self.sampling),
            **({"api_args": config.api_args} if asked else {}),
            **({"policy_settings": per_policy} if (per_policy := config.policy_settings) else {}),
        }

    def load(self, adapters: bool, folder: Path | None = None) -> ClosableSampler:
        """Loads the policies with their adapters, or as the base model; to be closed.

        Nothing is loaded where models behind an API play all roles. What they answer is kept in
        `folder`.
        """
        partners = partners_of(self.config, self.roles_to_policies, folder)
        if not own_names(self.roles_to_policies):
            assert partners is not None
            return partners
        config = self.config if adapters else dataclasses.replace(self.config, adapters=None)
        policies = build_policies(config, self.roles_to_policies, partners=partners)
        longest = config.vllm.get("max_model_len")
        if longest is not None:
            # Contexts are of the models, and vLLM refuses prompts beyond its own bound.
            policies.contexts = {n: min(c, longest) for n, c in policies.contexts.items()}
        return policies


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The episodes and scores of an evaluation."""

    plan: EvalPlan
    episodes: Mapping[str, Sequence[Trajectory]]
    """Team -> its episodes."""
    teams: Mapping[str, Evaluation]
    """Team (base, adapters, swapped, ...) -> its scores."""

    def __repr__(self) -> str:
        return f"EvalResult({', '.join(f'{title}: {evaluation}' for title, evaluation in self.teams.items())})"

    @property
    def main(self) -> Evaluation:
        """The scores of the adapters; without any, of the base model or of what plays in its place."""
        evaluation = self.teams.get(ADAPTERS) or self.teams.get(ROUTED) or self.teams.get(VOTE)
        return evaluation or next(iter(self.teams.values()))

    @property
    def success(self) -> Estimate | None:
        """Mean success of `main` with its 95 % interval; None if the environment reports none."""
        return self.main.scores.get("success")

    def matrix(self) -> JsonObject:
        """The swap matrix of the team's success, or of the role's reward without a success."""
        for score in ("success", "{role}/reward"):
            if cells := report.matrix(self.teams, score):
                return cells
        return {}

    def shown(self) -> dict[str, Evaluation]:
        """The teams without those that the matrix is made of."""
        if not self.matrix():
            return dict(self.teams)
        return {
            title: evaluation
            for title, evaluation in self.teams.items()
            if title in (BASE, PARTNERS, ADAPTERS)
        }

    def gains(self) -> list[Comparison]:
        """The other teams that are shown against the first, paired by task."""
        first, *others = self.shown()
        seed = self.plan.sampling.seed
        return together(
            [
                paired(self.episodes[first], self.episodes[other], (first, other), seed)
                for other in others
            ]
        )

    def swaps(self) -> dict[str, dict[str, Difference]]:
        """Role -> other role -> the gain in the matrix's score with the other's policy in the role."""
        rows = {}
        for role, row in self.matrix().items():
            name = "success" if "success" in self.teams[ADAPTERS].scores else f"{role}/reward"
            for other in (policy for policy in row if policy != role):
                pair = (self.episodes[title] for title in (ADAPTERS, title_of_swap(role, other)))
                if gain := gain_in(name, *pair, seed=self.plan.sampling.seed):
                    rows[role, other] = gain
        swaps: dict[str, dict[str, Difference]] = {}
        for (role, other), gain in corrected(rows).items():
            swaps.setdefault(role, {})[other] = gain
        return swaps

    def sizes(self) -> str:
        """One line: what was sampled, and what the intervals are."""
        plan = self.plan
        episodes = (
            f", {plan.sampling.samples} episodes of each" if plan.sampling.samples > 1 else ""
        )
        how = "greedy" if plan.sampling.greedy else "sampled"
        return f"{plan.split} split, {len(plan.tasks)} held-out tasks{episodes}, {how}; {report.INTERVALS}"

    def warnings(self) -> list[str]:
        """Lists the teams with prompts without room in the context, and with refused answers."""
        limit, notes = self.plan.sampling.max_new_tokens, []
        for title, trajectories in self.episodes.items():
            if note := overlong_note(trajectories, limit):
                notes.append(f"{title}: {note}")
            for role, count in refusals(trajectories).items():
                notes.append(
                    f"{title}: the model of {role} refused {count} times or answered without a text; "
                    f"these answers are scored as they are ({role}/refused)"
                )
        return notes

    def record(self, head: Mapping[str, Any]) -> JsonObject:
        """The content of results.json; `head` is that of settings.json."""
        success = self.success
        return {
            "success": None if success is None else success._asdict(),
            **head,
            # A list, because a summary of a run has several ways of decoding side by side.
            "results": {title: [evaluation.row()] for title, evaluation in self.teams.items()},
            "differences": [gain.row() for gain in self.gains()],
            "matrix": {
                role: {other: list(estimate) for other, estimate in row.items()}
                for role, row in self.matrix().items()
            },
            "swaps": {
                role: {other: gain.row() for other, gain in row.items()}
                for role, row in self.swaps().items()
            },
            "warnings": self.warnings(),
        }


# ------------------------------------------------------------------------------------------ plan


def plan_of(options: EvalConfig, source: EnvSource | None = None) -> EvalPlan:
    """Resolves the settings, makes the environment, and lists its tasks; loads no model.

    Raises:
        ConfigError, UnknownNameError, DatasetError: settings that cannot be used.
    """
    options, ensemble = with_members(options)
    config = settings_of(options, source)
    env = make_env(config, options.split, source, divide="dataset" not in options.over)
    roles_to_policies = parse_policies(config.policies, *seats_of(env))
    teacher = teacher_of(options.teacher, env)
    seats = teacher.seats if teacher else {}
    check_partners(config, roles_to_policies | seats, given="api_base" in options.over)
    if not any(map(is_own, roles_to_policies.values())):
        config = dataclasses.replace(config, adapters=None)
    # Those of a run were checked when it began, with what it trains.
    if "policy_settings" in options.over:
        policies = own_names(roles_to_policies)
        check_policy_settings(config, policies, policies)
    check_bases(config, roles_to_policies)
    adapters = check_adapters(config, roles_to_policies)
    if adapters:  # where roles are given one by one, the base model answers for the others
        per_policy = config.policy_settings  # such a policy may be on a base of its own
        roles_to_policies = {
            role: BASE if is_own(name) and name not in adapters and name not in per_policy else name
            for role, name in roles_to_policies.items()
        }
    adapted = config.adapters is not None
    teams = lineups_of(roles_to_policies, adapters=adapted, base=options.base, swap=options.swap)
    if teacher:
        teams = [Lineup("corrected", adapted, ensemble=teacher)]
        roles_to_policies |= seats
    tasks = held_out(env, options.split, options.limit)
    plan = EvalPlan(
        config,
        options.split,
        env,
        roles_to_policies,
        teams,
        tasks,
        _sampling_of(options, config),
        adapters,
        source,
        divide="dataset" not in options.over,
    )
    plan = with_gate(plan, options)
    return plan_with(plan, ensemble, options) if ensemble else plan


def _sampling_of(options: EvalConfig, config: ResolvedConfig) -> Sampling:
    # Large chunks would leave several workers nothing to do beside the first.
    small = config.sampler == "transformers" or config.workers
    return Sampling(
        max_new_tokens=config.max_completion_length,
        samples=options.samples,
        greedy=options.greedy,
        temperature=config.temperature,
        top_p=options.top_p,
        seed=config.seed,
        at_once=EPISODES_AT_ONCE if small else AT_ONCE_ELSEWHERE,
    )


def settings_of(options: EvalConfig, source: EnvSource | None = None) -> ResolvedConfig:
    """The run's settings, if there is a run, with those of the evaluation over them.

    Raises:
        ConfigError: no adapters where they should be, a value that cannot be used.
    """
    config, changes = ATGRPOConfig(), dict(options.over)
    if options.adapters is not None:
        adapters = changes["adapters"] = located_adapters(options.adapters)
        run, team = run_of(adapters), team_of(Path(adapters), changes.get("env"))
        config = team or config if run is None else read_config(run)
        # One adapter for all roles is a shared policy, unless the user says otherwise.
        if is_adapter(adapters):
            changes.setdefault("policies", "shared")
    if changes.get("env") in entries_of(config.env):
        config = one_of(config, changes.pop("env"))
    elif changes.get("env", config.env) != config.env:
        # These are the run's environment's own, and another one may not take them.
        config = dataclasses.replace(config, env_args={}, dataset=None, alpha=ATGRPOConfig.alpha)
    # The run's limits stay where the new setting does not name them: programs are judged as in
    # training.
    if "sandbox" in options.over:
        changes["sandbox"] = SandboxSettings.of(config.sandbox).under(changes["sandbox"]).text
    if source is not None:
        changes["env"] = name_of_env(source)
    # Settings of neither environment nor policies (such as workers) are not inherited from the run.
    usual = ATGRPOConfig()
    defaults = {name: getattr(usual, name) for name, by in SHARED.items() if by == "default"}
    config = located(dataclasses.replace(config, **(defaults | {"adapters": None} | changes)))
    return resolve(config, source)


def run_of(adapters: str) -> Path | None:
    """The run that adapters belong to, whose settings are used; None where there is none."""
    if not is_folder(adapters):
        return None
    # A single adapter lies in adapters/POLICY of its run, several lie in adapters.
    folder = Path(adapters).parent if is_adapter(adapters) else Path(adapters)
    return folder.parent if (folder.parent / CONFIG).is_file() else None


# ------------------------------------------------------------------------------------------- run


def run_evaluation(
    options: EvalConfig, env: EnvSource | None = None, display: Display | None = None
) -> EvalResult:
    """Samples the episodes that the settings ask for, and scores them; resumes from `out`.

    With the embedded model, PyTorch is set to one thread in this process: on a model this small,
    synchronizing threads costs more than it saves, and the sandbox needs the other cores.

    Raises:
        PettingLLMsError: settings, a model or a folder that cannot be used.
    """
    return run_plan(plan_of(options, env), options.out, display)


def run_plan(plan: EvalPlan, out: str | None, display: Display | None = None) -> EvalResult:
    """Samples and scores what was planned, as `run_evaluation` says; resumes from `out`."""
    display = display or Silent()
    if plan.config.embedded:
        torch.set_num_threads(1)
    if out is None:
        try:
            return _run(plan, None, display)
        except KeyboardInterrupt:
            display.say("nothing was kept; with --out FOLDER the same command would resume")
            raise
    with EvalFolder(Path(out), plan.settings()) as folder:
        try:
            result = _run(plan, folder, display)
        except KeyboardInterrupt:
            display.say(f"episodes so far are in {folder.path}; the same command resumes from them")
            raise
        _write(folder, result)
    return result


def _run(plan: EvalPlan, folder: EvalFolder | None, display: Display) -> EvalResult:
    isolation = isolation_of(plan.env, plan.config.require_isolation)
    if isolation is not None:
        display.say(announce(isolation))

    def on_progress(title: str, verdicts: Verdicts) -> None:
        decided = [won for won in verdicts if won is not None]
        score = f", success {sum(decided) / len(decided):.2f}" if decided else ""
        display.evaluating(f"{title}{score}", len(verdicts), plan.episodes)

    with playing(plan, None if folder is None else folder.path) as play:
        episodes = evaluate_lineups(
            plan.teams, plan.tasks, plan.sampling, play=play, folder=folder, on_progress=on_progress
        )
    sampling, roles = plan.sampling, roles_of(plan.env)
    teams = {
        title: summarise(
            trajectories,
            roles,
            samples=sampling.samples,
            greedy=sampling.greedy,
            seed=sampling.seed,
        )
        for title, trajectories in episodes.items()
    }
    if plan.route_out is not None:
        write_routes(plan.route_out, plan, episodes)
    return EvalResult(plan, episodes, teams)


def _write(folder: EvalFolder, result: EvalResult) -> None:
    cells, plan = result.matrix(), result.plan
    parts = [f"# {plan.config.env}, {plan.split} split", result.sizes(), *result.warnings()]
    parts.append(report.as_markdown(report.scores_table(result.teams)))
    if cells:
        parts += ["## Roles with the policies of other roles"]
        parts += [report.as_markdown(report.matrix_table(cells, result.swaps())), report.TESTED]
    parts += [section(gain) for gain in result.gains()]
    title = f"{plan.config.env}, {plan.split} split, {len(plan.tasks)} tasks"
    folder.write("results.md", "\n\n".join(parts) + "\n")
    folder.write("results.png", bars(result.shown(), title))
    # Last: its presence marks the evaluation as finished.
    folder.write(RESULTS, json.dumps(result.record(folder.head), indent=2) + "\n")


def section(gain: Comparison) -> str:
    """The Markdown section of one comparison."""
    table = report.as_markdown(report.comparison_table(gain))
    parts = [f"## {gain.second} against {gain.first}", table, report.notes(gain)]
    if gain.coverage:
        covered = report.as_markdown(report.coverage_table(gain))
        parts += ["Tasks that at least one of the first k samples solves:", covered]
    return "\n\n".join(parts)


# --------------------------------------------------------------------------- several environments


def run_each(
    options: EvalConfig, envs: Sequence[str], display: Display | None = None
) -> dict[str, EvalResult]:
    """Evaluates several environments, each with a folder of its own below `out`.

    All plans are made first, so that a mistake in the last one does not cost the others.

    Returns:
        Environment -> its result; `out` has them in one table as well.

    Raises:
        PettingLLMsError: settings, a model or a folder that cannot be used.
    """
    out = None if options.out is None else Path(options.out)
    if len({folder_name(env) for env in envs}) < len(envs):
        raise ConfigError(
            "env names an environment twice, or two whose folders would be the same: "
            f"{', '.join(envs)}; evaluate them one by one"
        )
    # Its own results would be overwritten by the table of all.
    if out is not None and (out / SETTINGS).exists():
        raise RunFolderError(
            f"{out} holds the evaluation of one environment; choose another --out for several"
        )
    plans = {
        env: plan_of(dataclasses.replace(options, over={**options.over, "env": env}))
        for env in envs
    }
    results = {
        env: run_plan(plan, None if out is None else str(out / folder_name(env)), display)
        for env, plan in plans.items()
    }
    if out is not None:
        table = report.as_markdown(report.joint_table({e: r.teams for e, r in results.items()}))
        successes = {env: result.success for env, result in results.items()}
        rows = {
            "success": {
                env: None if success is None else success._asdict()
                for env, success in successes.items()
            },
            "folders": {env: folder_name(env) for env in envs},
        }
        write_file(out / "results.md", f"{table}\n\n{sizes(results)}\n")
        write_file(out / RESULTS, json.dumps(rows, indent=2) + "\n")
    return results


def sizes(results: Mapping[str, EvalResult]) -> str:
    """A line for each environment: what was sampled, and what the intervals are."""
    return "\n".join(f"- {env}: {result.sizes()}" for env, result in results.items())


def folder_name(env: str) -> str:
    """The name of an environment as that of a folder."""
    plain = env.rpartition("/")[2].removesuffix(":env").removesuffix(".py")
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in plain)
