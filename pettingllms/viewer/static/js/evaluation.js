"use strict";
// An evaluation: scores, pass@k, the matrix of swapped roles; and two teams task by task.

// The unbiased chance that one of k of n episodes with c successes succeeds (arXiv 2107.03374).
function passAtK(n, c, k) {
  if (n - c < k) return 1;
  let miss = 1;
  for (let i = n - c + 1; i <= n; i++) miss *= 1 - k / i;
  return 1 - miss;
}

function byTask(outcome) {
  const tasks = new Map();
  outcome.tasks.forEach((task, place) => {
    const own = tasks.get(task) || { lines: [], successes: [] };
    own.lines.push(outcome.lines[place]);
    own.successes.push(outcome.successes[place]);
    tasks.set(task, own);
  });
  return tasks;
}

function useOutcomes(source, labels, again) {
  const [found, setFound] = useState({ key: null, outcomes: {} });
  const key = JSON.stringify([source, labels, again]);
  useEffect(() => {
    let current = true;
    Promise.all(labels.map((label) => answers.ask("outcomes", { source, label }).catch(() => null))).then((all) => {
      const outcomes = Object.fromEntries(labels.map((label, place) => [label, all[place]]).filter(([, each]) => each));
      if (current) setFound({ key, outcomes });
    });
    return () => {
      current = false;
    };
  }, [key]);
  return found.outcomes;
}

function EvalView({ place, tick, theme }) {
  const { value: sources } = useSources(tick);
  const name = place.params.get("s");
  const source = byName(sources && sources.sources, name);
  const going = source && source.state === "running" ? tick : 0;
  const { value: labels, error } = useAnswer("labels", { source: name }, going);
  const { value: results } = useAnswer("results", { source: name }, going);
  const teams = labels ? labels.labels.map(([label]) => label) : [];
  const outcomes = useOutcomes(name, teams, labels ? JSON.stringify(labels.labels) : "");
  useKeys({ u: () => go(href("list", {})) }, [place]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!labels || !source) return html`<${Waiting} />`;
  const scores = (results && results.results) || null;
  return html`
    <h1>${visible(name)}</h1>
    <p class="lead"><${State} state=${source.state} /> ${visible(whatOf(source))} · ${settingText(source.settings.split)} split ·
      ${" "}${settingText(source.settings.tasks)} tasks, ${settingText(source.settings.samples)} of each</p>
    <${Indexing} labels=${labels} source=${source} />
    <h2>Teams <small>choose one to see its episodes</small></h2>
    <${Teams} labels=${labels.labels} source=${name} />
    ${teams.length > 1 && html`<p><a class="button" href=${href("compare", { a: name, al: teams.includes("base") ? "base" : teams[0], b: name, bl: teams.find((team) => team !== "base" && team !== teams[0]) || teams.find((team) => team !== "base") })}>
      A against B: which tasks became right, which wrong</a></p>`}
    <div class="charts"><${PassAt} teams=${teams} outcomes=${outcomes} theme=${theme} /></div>
    <${Matrix} scores=${scores} />
    <${Scores} scores=${scores} />
    <${RunDetails} source=${source} />
  `;
}

function Teams({ labels, source }) {
  return html`<div class="scroll narrow" tabindex="0" role="region" aria-label="Teams"><table class="rows">
    <thead><tr><th scope="col">Team</th><th scope="col" class="num">Episodes</th><th scope="col" class="num">Solved</th><th scope="col" class="num">Success</th></tr></thead>
    <tbody>${labels.map(([label, episodes, solved, unsaid]) => html`<tr key=${label}>
      <td><a data-row href=${href("step", { s: source, l: label })}>${visible(label)}</a></td>
      <td class="num">${episodes}</td><td class="num">${solved}</td>
      <td class="num"><${Share} value=${episodes - unsaid ? solved / (episodes - unsaid) : null} /></td></tr>`)}</tbody></table></div>`;
}

function PassAt({ teams, outcomes, theme }) {
  const lines = [];
  let most = 0;
  teams.forEach((team, place) => {
    const tasks = outcomes[team] ? [...byTask(outcomes[team]).values()] : [];
    const said = tasks.filter((task) => task.successes.every((success) => success !== null));
    const n = said.length ? Math.min(...said.map((task) => task.successes.length)) : 0;
    if (n < 2) return;
    most = Math.max(most, n);
    const points = Array.from({ length: n }, (_, i) =>
      mean(said.map((task) => passAtK(task.successes.length, task.successes.filter(Boolean).length, i + 1))),
    );
    lines.push({ label: team, color: place % 8, dash: [], dots: true, values: points });
  });
  if (!lines.length) return null;
  const xs = Array.from({ length: most }, (_, i) => i + 1);
  const data = [xs, ...lines.map((line) => xs.map((_, i) => line.values[i] ?? null))];
  return html`<${Plot} title="pass@k" lines=${lines} data=${data} theme=${theme} xName="k" />`;
}

function Matrix({ scores }) {
  const matrix = scores && scores.matrix;
  const roles = matrix ? Object.keys(matrix) : [];
  if (!roles.length) return null;
  const others = [...new Set(roles.flatMap((role) => Object.keys(matrix[role])))];
  const values = roles.flatMap((role) => Object.values(matrix[role]).map(([value]) => value));
  const [low, high] = [Math.min(0, ...values), Math.max(1, ...values)];
  return html`<h2>Roles with each other's policies</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Swap matrix"><table class="heat">
      <thead><tr><th scope="col">role \\ policy of</th>${others.map((other) => html`<th scope="col">${visible(other)}</th>`)}</tr></thead>
      <tbody>${roles.map((role) => html`<tr><th scope="row">${visible(role)}</th>
        ${others.map((other) => {
          const cell = matrix[role][other];
          if (!cell) return html`<td class="absent">–</td>`;
          const strength = Math.round((70 * (cell[0] - low)) / (high - low));
          return html`<td style=${{ background: `color-mix(in oklab, var(--up) ${strength}%, var(--ground))` }}>
            <b>${cell[0].toFixed(2)}</b><div class="sub">${cell[1].toFixed(2)} to ${cell[2].toFixed(2)}</div></td>`;
        })}</tr>`)}</tbody></table></div>`;
}

function Scores({ scores }) {
  const found = scores && scores.results ? Object.entries(scores.results) : [];
  if (!found.length) return null;
  const rows = found.map(([, [row]]) => row);
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))]
    .filter((key) => key.startsWith("eval/") && key.endsWith("/low"))
    .map((key) => key.slice(5, -4));
  return html`<details class="settings"><summary>All ${names.length} scores, with 95 % intervals</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="Scores"><table class="rows">
      <thead><tr><th scope="col">Score</th>${found.map(([team]) => html`<th scope="col" class="num">${visible(team)}</th>`)}</tr></thead>
      <tbody>${names.map((name) => html`<tr><th scope="row">${visible(name)}</th>
        ${rows.map((row) => {
          const key = `eval/${name}`;
          return html`<td class="num">${key in row ? html`${number(row[key], 2)} <span class="sub">${number(row[`${key}/low`], 2)} to ${number(row[`${key}/high`], 2)}</span>` : "–"}</td>`;
        })}</tr>`)}</tbody></table></div></details>`;
}

// -------------------------------------------------------------------------- A against B

const CHANGES = {
  right: ["became right", "right more often", (a, b) => b > a],
  wrong: ["became wrong", "right less often", (a, b) => b < a],
  same: ["the same", "the same", (a, b) => b === a],
};

function CompareView({ place, tick }) {
  const { value } = useSources(tick);
  const evals = value ? value.sources.filter((source) => source.kind === "eval") : [];
  const [a, b] = [place.params.get("a") || evals[0]?.name, place.params.get("b") || evals[0]?.name];
  const one = useAnswer("labels", a ? { source: a } : null).value;
  const two = useAnswer("labels", b ? { source: b } : null).value;
  const al = place.params.get("al") || one?.labels[0]?.[0];
  const bl = place.params.get("bl") || two?.labels.at(-1)?.[0];
  const first = useAnswer("outcomes", a && al ? { source: a, label: al } : null);
  const second = useAnswer("outcomes", b && bl ? { source: b, label: bl } : null);
  const rows = useMemo(() => {
    if (!first.value || !second.value) return null;
    const [left, right] = [byTask(first.value), byTask(second.value)];
    const share = (own) => mean(own.successes.filter((success) => success !== null).map(Number)) ?? 0;
    return [...left].filter(([task]) => right.has(task)).map(([task, own]) => {
      const theirs = right.get(task);
      return { task, a: share(own), b: share(theirs), lines: [own.lines[0], theirs.lines[0]], n: [own.lines.length, theirs.lines.length] };
    });
  }, [first.value, second.value]);
  const only = Object.hasOwn(CHANGES, place.params.get("only") || "") ? place.params.get("only") : null;
  const shown = rows ? rows.filter((row) => !only || CHANGES[only][2](row.a, row.b)) : [];
  const task = place.params.get("task");
  const chosen = rows && rows.find((row) => row.task === task);
  const step = (by) => {
    const next = shown[shown.findIndex((row) => row.task === task) + by];
    return next && go(hrefWith(place, { task: next.task }), true);
  };
  useKeys({ j: () => (task ? step(1) : false), k: () => (task ? step(-1) : false), u: () => go(href("list", {})), Escape: () => (task ? go(hrefWith(place, { task: null }), true) : false) }, [place, rows]);
  const choose = (name, label, source, team, known) => html`<fieldset><legend>${name.toUpperCase()}</legend>
    <select aria-label="evaluation ${name}" value=${source} onChange=${(event) => go(hrefWith(place, { [name]: event.target.value, [label]: null, task: null }), true)}>
      ${evals.map((each) => html`<option key=${each.name} value=${each.name}>${visibleText(each.name)}</option>`)}</select>
    <select aria-label="team ${name}" value=${team} onChange=${(event) => go(hrefWith(place, { [label]: event.target.value, task: null }), true)}>
      ${(known?.labels || []).map(([each]) => html`<option key=${each} value=${each}>${visibleText(each)}</option>`)}</select></fieldset>`;
  const several = rows && rows.some((row) => Math.max(...row.n) > 1);
  const count = (name) => rows.filter((row) => CHANGES[name][2](row.a, row.b)).length;
  if (!value) return html`<${Waiting} />`;
  if (!evals.length) return html`<${Failure} error=${new Error("there is no evaluation here")} />`;
  return html`
    <h1>A against B</h1>
    <form class="filters pairing">${choose("a", "al", a, al, one)}${choose("b", "bl", b, bl, two)}</form>
    ${[first.error, second.error].filter(Boolean).map((error) => html`<${Failure} error=${error} />`)}
    ${rows && html`
      <nav class="tabs" aria-label="Which tasks">
        <a class=${only ? "" : "on"} aria-current=${only ? null : "true"} href=${hrefWith(place, { only: null })}>all ${rows.length}</a>
        ${Object.entries(CHANGES).map(([name, titles]) => html`<a key=${name} class="${name} ${only === name ? "on" : ""}" aria-current=${only === name ? "true" : null} href=${hrefWith(place, { only: name })}>${titles[several ? 1 : 0]} ${count(name)}</a>`)}
      </nav>
      ${chosen && html`<${Pair} key=${chosen.task} chosen=${chosen} sides=${[[a, al], [b, bl]]} close=${hrefWith(place, { task: null })} />`}
      <div class="scroll" tabindex="0" role="region" aria-label="Tasks"><table class="rows">
        <thead><tr><th scope="col">Task</th><th scope="col" class="num">A solved</th><th scope="col" class="num">B solved</th><th scope="col">B</th></tr></thead>
        <tbody>${shown.slice(0, 1000).map((row) => html`<tr key=${row.task} class=${row.task === task ? "here" : ""}>
          <td><a data-row href=${hrefWith(place, { task: row.task })}>${visible(row.task)}</a></td>
          <td class="num">${number(row.a, 2)}${row.n[0] > 1 ? html`<span class="sub"> of ${row.n[0]}</span>` : ""}</td>
          <td class="num">${number(row.b, 2)}${row.n[1] > 1 ? html`<span class="sub"> of ${row.n[1]}</span>` : ""}</td>
          <td>${row.b > row.a ? html`<span class="verdict good">▲ better</span>` : row.b < row.a ? html`<span class="verdict bad">▼ worse</span>` : html`<span class="verdict none">the same</span>`}</td>
        </tr>`)}</tbody></table></div>`}
    ${!rows && !first.error && !second.error && html`<${Waiting} />`}
  `;
}

function Pair({ chosen, sides, close }) {
  const found = chosen.lines.map((line, place) => useAnswer("episode", { source: sides[place][0], line }));
  return html`<section class="pair" aria-label="The episodes of both sides">
    <header><h2>${visible(chosen.task)}</h2><a class="button" href=${close}>Close</a></header>
    <div class="both">${found.map(({ value, error }, place) => html`<div key=${place}>
      <h3>${"AB"[place]}: ${visible(sides[place][1])} ${value && verdict(value.row.success)}</h3>
      ${error && html`<${Failure} error=${error} />`}
      ${value && html`<p><a href=${href("tree", { s: sides[place][0], l: sides[place][1], e: value.line })}>Open this episode</a></p>`}
      ${value && value.row.decisions.map((decision, d) => {
        const candidate = decision.candidates.find((each) => each.chosen) || decision.candidates[0];
        return html`<section key=${d} class="decision"><h4>${visible(decision.role)} <small>turn ${decision.turn} · reward ${number(candidate.reward)}</small></h4>
          ${d === 0 && html`<details><summary>Prompt</summary><${Text} text=${decision.prompt} label="Prompt" programs=${false} /></details>`}
          <${Text} text=${candidate.completion} label="Reply" />
          ${candidate.info.parse_error != null && html`<p class="unreadable"><b>Unreadable:</b> ${visible(String(candidate.info.parse_error))}</p>`}</section>`;
      })}</div>`)}</div></section>`;
}
