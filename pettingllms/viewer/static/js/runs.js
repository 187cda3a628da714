"use strict";
// The list of runs and evaluations, and the curves of one run or of several on top of each other.

function useSources(tick) {
  return useAnswer("sources", {}, tick);
}

function byName(sources, name) {
  return sources && sources.find((source) => source.name === name);
}

function State({ state }) {
  return html`<span class="state ${state}"><i aria-hidden="true"></i>${state}</span>`;
}

// Settings that are not the same in all sources, by name.
function differing(sources) {
  // Shown anyway, or for machines: digests, and what the page of an evaluation spells out.
  const hidden = new Set(["output_dir", "seed", "env", "method", "estimator", "policies", "model", "teams", "data", "model_digest", "adapter_digests"]);
  const names = new Set(sources.flatMap((source) => Object.keys(source.settings)));
  const texts = (name) => new Set(sources.map((source) => JSON.stringify(source.settings[name] ?? null)));
  const found = [...names].filter((name) => !hidden.has(name) && texts(name).size > 1);
  return texts("seed").size > 1 ? [...found, "seed"] : found;
}

function settingText(value) {
  if (value === null || value === undefined) return "–";
  let known = value;
  if (typeof value === "string" && value.startsWith("{")) {
    try {
      known = JSON.parse(value); // as runs until 0.2 have env_args
    } catch {
      return value;
    }
  }
  if (typeof known !== "object") return String(known);
  const parts = Array.isArray(known) ? known.map(settingText) : Object.entries(known).map(([name, each]) => `${name}=${settingText(each)}`);
  return parts.join(", ") || "–";
}

function whatOf(source) {
  const { env, policies, model } = source.settings;
  const method = source.settings.method ?? source.settings.estimator; // until 0.2
  const players = typeof policies === "object" && policies ? Object.values(policies).join(", ") : policies;
  return [env, method, players, model && String(model).split("/").at(-1)].filter(Boolean).join(" · ");
}

function ListView({ place, tick }) {
  const { value, error } = useSources(tick);
  const only = value && value.sources.length === 1 && location.hash.length < 2 ? value.sources[0] : null;
  useEffect(() => {
    if (only) go(href(only.kind, { s: only.name }), true); // nothing to choose from
  }, [only && only.name]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<${Waiting} />`;
  const runs = value.sources.filter((source) => source.kind === "run");
  const evals = value.sources.filter((source) => source.kind === "eval");
  const chosen = place.params.getAll("pick").filter((name) => byName(runs, name));
  const toggle = (name) => {
    const rest = chosen.filter((each) => each !== name);
    go(hrefWith(place, { pick: rest.length < chosen.length ? rest : [...chosen, name] }), true);
  };
  return html`
    <h1>Runs <small>${runs.length}</small></h1>
    ${runs.length > 0 && html`<${SourceTable} sources=${runs} chosen=${chosen} toggle=${toggle} />`}
    ${!runs.length && html`<p class="none">No training run here yet.</p>`}
    ${runs.length > 1 && html`<p>
      <a class=${`button ${chosen.length > 1 ? "" : "off"}`} aria-disabled=${chosen.length < 2}
        href=${chosen.length > 1 ? href("run", { s: chosen }) : hrefWith(place, {})}>
        ${chosen.length > 1 ? `Curves of ${chosen.length} runs together` : "Choose two or more runs to see their curves together"}
      </a>
    </p>`}
    <h2>Evaluations <small>${evals.length}</small></h2>
    ${evals.length > 0
      ? html`<${SourceTable} sources=${evals} />
        ${html`<p><a class="button" href=${href("compare", {})}>A against B: compare teams task by task</a></p>`}`
      : html`<p class="none">No evaluation here. <code>pettingllms-eval --adapters RUN --out evals/NAME</code> makes one.</p>`}
  `;
}

function SourceTable({ sources, chosen, toggle }) {
  const settings = differing(sources).slice(0, 8);
  const run = sources[0].kind === "run";
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${run ? "Runs" : "Evaluations"}>
    <table class="rows">
      <thead><tr>
        ${toggle && sources.length > 1 && html`<th scope="col"><span class="unseen">Choose</span></th>`}
        <th scope="col">${run ? "Run" : "Evaluation"}</th><th scope="col">State</th>
        <th scope="col" class="num">Success</th>
        ${run && html`<th scope="col" class="num">Step</th>`}
        <th scope="col">Written</th>
        ${settings.map((name) => html`<th scope="col" class="setting">${visible(name)}</th>`)}
      </tr></thead>
      <tbody>
        ${sources.map((source) => html`<tr key=${source.name}>
          ${toggle && sources.length > 1 && html`<td><input type="checkbox" aria-label="choose ${source.name}"
            checked=${chosen.includes(source.name)} onChange=${() => toggle(source.name)} /></td>`}
          <td><a data-row href=${href(run ? "run" : "eval", { s: source.name })}>${visible(source.name)}</a>
            <div class="sub">${visible(whatOf(source))}</div></td>
          <td><${State} state=${source.state} /></td>
          <td class="num"><${Share} value=${source.success} /></td>
          ${run && html`<td class="num">${number(source.step)}<span class="of"> / ${settingText(source.settings.max_steps)}</span></td>`}
          <td>${ago(source.updated)}</td>
          ${settings.map((name) => html`<td class="setting">${visible(settingText(source.settings[name]).slice(0, 60))}</td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}

function Share({ value }) {
  if (typeof value !== "number") return "–";
  return html`<span class="share"><i><i style=${{ width: `${Math.round(100 * Math.max(0, Math.min(1, value)))}%` }}></i></i>${value.toFixed(2)}</span>`;
}

// --------------------------------------------------------------------------------- a run

function RunView({ place, tick, theme }) {
  const { value, error } = useSources(tick);
  const names = place.params.getAll("s");
  const sources = value ? names.map((name) => byName(value.sources, name)).filter(Boolean) : [];
  const going = sources.some((source) => source.state === "running");
  const metrics = useMetrics(names, going ? tick : 0);
  const runs = useMemo(
    () => names.map((name, place) => ({ name, rows: metrics[place].rows })),
    metrics.map((each) => each.rows),
  );
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<${Waiting} />`;
  if (!sources.length) return html`<${Failure} error=${new Error(`there is no run ${names.join(", ")} here`)} />`;
  const [first] = sources;
  const failed = metrics.find((each) => each.error);
  const toStep = sources.length === 1 ? (step) => step > 0 && go(href("step", { s: first.name, l: step })) : null;
  return html`
    <h1>${sources.length === 1 ? visible(first.name) : `${sources.length} runs`}</h1>
    ${sources.length === 1 && html`<${RunHead} source=${first} />`}
    ${sources.length > 1 && html`<${SourceTable} sources=${sources} />`}
    ${failed && html`<${Failure} error=${failed.error} />`}
    ${sources.length === 1 && html`<${Steps} source=${first} rows=${runs[0].rows} tick=${going ? tick : 0} />`}
    <h2>Curves ${sources.length === 1 && html`<small>choose a point to see its step</small>`}</h2>
    <div class="charts">
      ${CHARTS.map((chart) => html`<${Chart} key=${chart.title} chart=${chart} runs=${runs} theme=${theme} onStep=${toStep} />`)}
    </div>
    ${sources.length === 1 && html`<${RunDetails} source=${first} />`}
  `;
}

function RunHead({ source }) {
  return html`<p class="lead">
    <${State} state=${source.state} /> ${visible(whatOf(source))} · step ${number(source.step)} of
    ${" "}${settingText(source.settings.max_steps)} · written ${ago(source.updated)}
  </p>
  ${typeof source.advice === "string" && html`<pre>${visible(source.advice)}</pre>`}`;
}

// Every step as a bar of its success: what one clicks to look into it.
function Steps({ source, rows, tick }) {
  const { value, error } = useAnswer("labels", { source: source.name }, tick);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<${Waiting} what="Looking for steps" />`;
  const last = value.labels.at(-1);
  return html`
    <h2>Steps <small>${value.labels.length}${last && html`; bars are the share of solved episodes`}</small></h2>
    <${Broken} lines=${value.broken} />
    ${!value.labels.length && html`<p class="none">No step is finished yet.</p>`}
    <nav class="steps" aria-label="Steps">
      ${value.labels.map(({ label, episodes, said, solved, share }) => {
        const title = `step ${label}: ${said ? `${solved} of ${said} solved` : `${episodes} episodes`}`;
        return html`<a key=${label} data-row href=${href("step", { s: source.name, l: label })} title=${title} aria-label=${title}>
          <b><i style=${{ height: `${Math.max(3, 100 * share)}%` }}></i></b><span>${visible(label)}</span>
        </a>`;
      })}
    </nav>`;
}

function Broken({ lines }) {
  if (!lines.length) return null;
  return html`<details class="broken"><summary>
    ${lines.length}${lines.length === 100 ? " or more" : ""} broken ${lines.length === 1 ? "line" : "lines"} in trajectories.jsonl, left out</summary>
    <ul>${lines.map(([line, why]) => html`<li>line ${line}: ${visible(String(why))}</li>`)}</ul>
  </details>`;
}

function RunDetails({ source }) {
  const { value } = useAnswer("results", { source: source.name });
  const settings = Object.entries(source.settings).sort(([a], [b]) => (a < b ? -1 : 1));
  const start = source.start || {};
  return html`<details class="settings"><summary>Settings and machine</summary>
    <dl class="pairs">
      ${settings.map(([name, setting]) => html`<dt>${visible(name)}</dt><dd>${visible(settingText(setting))}</dd>`)}
      ${["started", "platform", "cpus", "isolation"].filter((name) => name in start).map(
        (name) => html`<dt>${name}</dt><dd>${visible(settingText(start[name]))}</dd>`,
      )}
      ${start.versions && html`<dt>versions</dt><dd>${visible(Object.entries(start.versions).map((each) => each.join(" ")).join(", "))}</dd>`}
      ${value && Array.isArray(value.starts) && html`<dt>starts</dt><dd>${value.starts.length}</dd>`}
    </dl>
  </details>`;
}
