"use strict";
// An evaluation: scores, pass@k, the matrix of swapped roles, its tasks; and two teams task by task.
// Every number is one that Python has computed: of results.json, or of the answers `tasks` and `compare`.

function EvalView({ place, tick, theme }) {
  const { value: sources } = useSources(tick);
  const name = place.params.get("s");
  const source = byName(sources && sources.sources, name);
  const going = source && source.state === "running" ? tick : 0;
  const { value: labels, error } = useAnswer("labels", { source: name }, going);
  const { value: results } = useAnswer("results", { source: name }, going);
  const teams = labels ? labels.labels.map(({ label }) => label) : [];
  useKeys({ u: () => go(href("list", {})) }, [place]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!labels || !source) return html`<${Waiting} />`;
  const scores = results && results.results ? results.results : null;
  return html`
    <h1>${visible(name)}</h1>
    <p class="lead"><${State} state=${source.state} /> ${visible(whatOf(source))} · ${settingText(source.settings.split)} split ·
      ${" "}${settingText(source.settings.tasks)} tasks, ${settingText(source.settings.samples)} of each</p>
    <${Broken} lines=${labels.broken} />
    <h2>Teams <small>choose one to see its episodes</small></h2>
    <${Teams} labels=${labels.labels} source=${name} scores=${scores} />
    ${teams.length > 1 && html`<p><a class="button" href=${href("compare", { a: name, al: teams.includes("base") ? "base" : teams[0], b: name, bl: teams.find((team) => team !== "base" && team !== teams[0]) || teams.find((team) => team !== "base") })}>
      A against B: which tasks became right, which wrong</a></p>`}
    <div class="charts"><${PassAt} scores=${scores} theme=${theme} /></div>
    <${Matrix} scores=${scores} />
    <${Tasks} source=${name} teams=${teams} again=${JSON.stringify(labels.labels)} />
    <${Scores} scores=${scores} />
    <${RunDetails} source=${source} />
  `;
}

function scoreOf(scores, team) {
  const row = scores && scores.results && scores.results[team] && scores.results[team][0];
  return row && "eval/success" in row ? row : null;
}

function Teams({ labels, source, scores }) {
  return html`<div class="scroll narrow" tabindex="0" role="region" aria-label="Teams"><table class="rows">
    <thead><tr><th scope="col">Team</th><th scope="col" class="num">Episodes</th><th scope="col" class="num">Solved</th><th scope="col" class="num">Success</th></tr></thead>
    <tbody>${labels.map(({ label, episodes, solved }) => html`<tr key=${label}>
      <td><a data-row href=${href("step", { s: source, l: label })}>${visible(label)}</a></td>
      <td class="num">${episodes}</td><td class="num">${solved}</td>
      <td class="num">${scoreOf(scores, label) ? html`<${Share} value=${scoreOf(scores, label)["eval/success"]} /> <span class="sub">${interval(scoreOf(scores, label), "eval/success")}</span>` : "–"}</td></tr>`)}</tbody></table></div>`;
}

function interval(row, name) {
  return `${row[`${name}/low`].toFixed(2)} to ${row[`${name}/high`].toFixed(2)}`;
}

// A paired difference in the words of the tables, and what its test says.
function gainText(gain) {
  const [mean, low, high] = [gain.mean, gain.low, gain.high].map((each) => signed(Number(each.toFixed(2))));
  return `${mean} [${low}, ${high}], ${gain.verdict || "no verdict"}`;
}

function PassAt({ scores, theme }) {
  const found = scores && scores.results ? Object.entries(scores.results) : [];
  const ks = (row) => Object.keys(row).map((name) => (/^eval\/pass@(\d+)$/.exec(name) || [])[1]).filter(Boolean).map(Number);
  const xs = [...new Set(found.flatMap(([, [row]]) => ks(row)))].sort((a, b) => a - b);
  if (!xs.length) return null;
  const at = (row, k) => row[k === 1 ? "eval/success" : `eval/pass@${k}`] ?? null;
  const lines = found.map(([team], place) => ({ label: team, color: place % 8, dash: [], dots: true }));
  const data = [[1, ...xs], ...found.map(([, [row]]) => [1, ...xs].map((k) => at(row, k)))];
  return html`<${Plot} title="pass@k" lines=${lines} data=${data} theme=${theme} xName="k" />`;
}

function Tasks({ source, teams, again }) {
  const { value, error } = useAnswer("tasks", { source }, again);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<${Waiting} what="Looking for tasks" />`;
  return html`<h2>Tasks <small>the hardest first; choose a number to read an episode</small></h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Tasks of the evaluation"><table class="rows">
      <thead><tr><th scope="col">Task</th>${teams.map((team) => html`<th scope="col" class="num">${visible(team)}</th>`)}</tr></thead>
      <tbody>${value.tasks.slice(0, 1000).map((row) => html`<tr key=${row.task}>
        <td><${TaskText} row=${row} /></td>
        ${teams.map((team) => html`<td class="num">${row.teams[team] ? html`<a data-row href=${href("read", { s: source, l: team, e: row.teams[team].lines[0] })}>${solvedText(row.teams[team])}</a>` : "–"}</td>`)}
      </tr>`)}</tbody></table></div>`;
}

function TaskText({ row }) {
  const text = row.text.replace(/\s+/g, " ");
  return html`${text ? html`<span title=${visibleText(row.text.slice(0, 2000))}>${visible(text.slice(0, 160))}${text.length > 160 ? " …" : ""}</span>` : ""} <span class="sub">${visible(row.task)}</span>`;
}

function solvedText({ solved, said, episodes }) {
  return said ? `${solved} of ${said}` : `${episodes} not said`;
}

// An episode from top to bottom, as it was played.
function ReadView({ place }) {
  const [source, label, line] = [place.params.get("s"), place.params.get("l"), Number(place.params.get("e"))];
  const { value, error } = useAnswer("episode", { source, line });
  useKeys({ u: () => go(href("eval", { s: source })) }, [place]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<${Waiting} />`;
  return html`<h1>${visible(value.row.task)} <small>${visible(source)}, team ${visible(label || value.label)}</small></h1>
    <p class="lead">${verdict(value.row.success)} · <a href=${href("tree", { s: source, l: label, e: line })}>tree and details</a>
      ${value.beside.length > 1 && html` · episodes of this task: ${value.beside.map(([each, number, success]) => html` <a aria-current=${each === line ? "page" : null} href=${hrefWith(place, { e: each })}>${number + 1} ${verdict(success)}</a>`)}`}</p>
    <${Decisions} row=${value.row} open=${true} />`;
}

function Decisions({ row, open }) {
  return row.decisions.map((decision, d) => {
    const candidate = decision.candidates.find((each) => each.chosen) || decision.candidates[0];
    return html`<section key=${d} class="decision"><h4>${visible(decision.role)} <small>turn ${decision.turn} · reward ${number(candidate.reward)}</small></h4>
      ${(open || d === 0) && html`<details open=${open && d === 0}><summary>Prompt</summary><${Text} text=${decision.prompt} label="Prompt" programs=${false} /></details>`}
      <${Text} text=${candidate.completion} label="Reply" />
      ${candidate.info.parse_error != null && html`<p class="unreadable"><b>Unreadable:</b> ${visible(String(candidate.info.parse_error))}</p>`}</section>`;
  });
}

function Matrix({ scores }) {
  const [matrix, swaps] = [scores && scores.matrix, (scores && scores.swaps) || {}];
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
            <b>${cell[0].toFixed(2)}</b><div class="sub">${cell[1].toFixed(2)} to ${cell[2].toFixed(2)}</div>
            ${swaps[role] && swaps[role][other] && html`<div class="sub">${gainText(swaps[role][other])}</div>`}</td>`;
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

const CHANGES = { right: ["became right", "right more often"], wrong: ["became wrong", "right less often"], same: ["the same", "the same"] };

function CompareView({ place, tick }) {
  const { value } = useSources(tick);
  const evals = value ? value.sources.filter((source) => source.kind === "eval") : [];
  const [a, b] = [place.params.get("a") || evals[0]?.name, place.params.get("b") || evals[0]?.name];
  const one = useAnswer("labels", a ? { source: a } : null).value;
  const two = useAnswer("labels", b ? { source: b } : null).value;
  const al = place.params.get("al") || one?.labels[0]?.label;
  const bl = place.params.get("bl") || two?.labels.at(-1)?.label;
  const { value: pair, error } = useAnswer("compare", a && al && b && bl ? { a, al, b, bl } : null);
  const rows = pair && pair.rows;
  const only = Object.hasOwn(CHANGES, place.params.get("only") || "") ? place.params.get("only") : null;
  const shown = rows ? rows.filter((row) => !only || row.change === only) : [];
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
      ${(known?.labels || []).map(({ label: each }) => html`<option key=${each} value=${each}>${visibleText(each)}</option>`)}</select></fieldset>`;
  if (!value) return html`<${Waiting} />`;
  if (!evals.length) return html`<${Failure} error=${new Error("there is no evaluation here")} />`;
  return html`
    <h1>A against B</h1>
    <form class="filters pairing">${choose("a", "al", a, al, one)}${choose("b", "bl", b, bl, two)}</form>
    ${error && html`<${Failure} error=${error} />`}
    ${rows && html`
      ${pair.difference && html`<p class="lead">B less A, paired over ${pair.difference.tasks} tasks: <b>${gainText(pair.difference)}</b>,
        exact test p ${number(pair.difference.p, 2)}</p>`}
      <nav class="tabs" aria-label="Which tasks">
        <a class=${only ? "" : "on"} aria-current=${only ? null : "true"} href=${hrefWith(place, { only: null })}>all ${rows.length}</a>
        ${Object.entries(CHANGES).map(([name, titles]) => html`<a key=${name} class="${name} ${only === name ? "on" : ""}" aria-current=${only === name ? "true" : null} href=${hrefWith(place, { only: name })}>${titles[pair.several ? 1 : 0]} ${pair.counts[name]}</a>`)}
      </nav>
      ${chosen && html`<${Pair} key=${chosen.task} chosen=${chosen} sides=${[[a, al], [b, bl]]} close=${hrefWith(place, { task: null })} />`}
      <div class="scroll" tabindex="0" role="region" aria-label="Tasks"><table class="rows">
        <thead><tr><th scope="col">Task</th><th scope="col" class="num">A solved</th><th scope="col" class="num">B solved</th><th scope="col">B</th></tr></thead>
        <tbody>${shown.slice(0, 1000).map((row) => html`<tr key=${row.task} class=${row.task === task ? "here" : ""}>
          <td><a data-row href=${hrefWith(place, { task: row.task })}><${TaskText} row=${row} /></a></td>
          <td class="num">${solvedText(row.a)}</td>
          <td class="num">${solvedText(row.b)}</td>
          <td>${row.change === "right" ? html`<span class="verdict good">▲ better</span>` : row.change === "wrong" ? html`<span class="verdict bad">▼ worse</span>` : html`<span class="verdict none">${row.change ? "the same" : "not said"}</span>`}</td>
        </tr>`)}</tbody></table></div>`}
    ${!rows && !error && html`<${Waiting} />`}
  `;
}

function Pair({ chosen, sides, close }) {
  const found = [chosen.a, chosen.b].map(({ lines }, place) => useAnswer("episode", { source: sides[place][0], line: lines[0] }));
  return html`<section class="pair" aria-label="The episodes of both sides">
    <header><h2>${visible(chosen.task)}</h2><a class="button" href=${close}>Close</a></header>
    <div class="both">${found.map(({ value, error }, place) => html`<div key=${place}>
      <h3>${"AB"[place]}: ${visible(sides[place][1])} ${value && verdict(value.row.success)}</h3>
      ${error && html`<${Failure} error=${error} />`}
      ${value && html`<p><a href=${href("tree", { s: sides[place][0], l: sides[place][1], e: value.line })}>Open this episode</a></p>`}
      ${value && html`<${Decisions} row=${value.row} />`}</div>`)}</div></section>`;
}
