"use strict";
// The episodes of a step or of a team: a table that sorts and filters, all of it in the URL.

const FILTERS = ["role", "turn", "ok", "low", "high", "unread", "cut", "flat", "status", "q", "by", "down"];
const ROWS_SHOWN = 200;

function filtersOf(place) {
  const found = {};
  for (const name of FILTERS) if (place.params.get(name)) found[name] = place.params.get(name);
  return found;
}

function passes(row, filters, found) {
  if (found && !found.has(row.line)) return false;
  if (filters.ok && filters.ok !== { true: "yes", false: "no", null: "unsaid" }[row.success]) return false;
  // One decision has to fulfil all that is asked of decisions.
  return row.groups.some(
    (group) =>
      (!filters.role || group.role === filters.role) &&
      (!filters.turn || group.turn === Number(filters.turn)) &&
      (!filters.low || group.high >= Number(filters.low)) &&
      (!filters.high || group.low <= Number(filters.high)) &&
      (!filters.unread || group.unread > 0) &&
      (!filters.cut || group.cut > 0) &&
      (!filters.flat || group.flat || row.flat) &&
      (!filters.status || Object.hasOwn(group.statuses, filters.status)),
  ) || (!row.groups.length && !["role", "turn", "low", "high", "unread", "cut", "flat", "status"].some((name) => filters[name]));
}

const SORTS = {
  line: (row) => row.line,
  task: (row) => row.task,
  success: (row) => (row.success === null ? -1 : Number(row.success)),
  decisions: (row) => row.groups.length,
  tokens: (row) => row.tokens,
};

function sorted(rows, filters) {
  const by = filters.by || "line";
  const value = Object.hasOwn(SORTS, by) ? SORTS[by] : ((row) => row.rewards[by.replace(/^r\./, "")]?.mean ?? -Infinity);
  const order = filters.down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [one, two] = [value(a), value(b)];
    return one < two ? -order : one > two ? order : a.line - b.line;
  });
}

// The rows that the filters of a place leave, in its order.
function useEpisodes(place, again) {
  const [source, label] = [place.params.get("s"), place.params.get("l")];
  const filters = filtersOf(place);
  const values = source && label !== null ? { source, label } : null;
  const facts = useParts("facts", values, again);
  const hits = useParts("search", values && filters.q ? { ...values, q: filters.q } : null, again);
  const found = filters.q ? new Set(hits.rows) : null;
  const key = JSON.stringify([filters, facts.rows.length, hits.rows.length, source, label]);
  const rows = useMemo(() => {
    return sorted(facts.rows.filter((row) => passes(row, filters, found)), filters);
  }, [key]);
  return { facts, rows, searching: Boolean(filters.q) && !hits.whole, error: facts.error || hits.error, filters };
}

function StepView({ place, tick }) {
  const { value: sources } = useSources(tick);
  const [name, label] = [place.params.get("s"), place.params.get("l")];
  const source = byName(sources && sources.sources, name);
  const going = source && source.state === "running" ? tick : 0;
  const { value: labels } = useAnswer("labels", { source: name }, going);
  const { facts, rows, searching, error, filters } = useEpisodes(place, going);
  const [most, setMost] = useState(ROWS_SHOWN);
  const known = labels ? labels.labels.map((each) => each.label) : [];
  const at = known.indexOf(label);
  const run = !source || source.kind === "run";
  const toLabel = (other) => hrefWith(place, { l: other });
  useKeys({
    "[": () => at > 0 && go(toLabel(known[at - 1])),
    "]": () => at >= 0 && at < known.length - 1 && go(toLabel(known[at + 1])),
    u: () => go(href(run ? "run" : "eval", { s: name })),
  }, [place, labels]);
  const counts = (labels && labels.labels[at]) || { said: 0 };
  return html`
    <header class="with-steps">
      <h1>${run ? "Step" : "Team"} ${visible(label || "")} <small>${visible(name || "")}</small></h1>
      <span class="paging">
        ${at > 0 && html`<a class="button" rel="prev" href=${toLabel(known[at - 1])} aria-label="previous">←</a>`}
        <select aria-label=${run ? "step" : "team"} value=${label} onChange=${(event) => go(toLabel(event.target.value))}>
          ${(known.length ? known : [label]).map((each) => html`<option key=${each} value=${each}>${visibleText(each)}</option>`)}
        </select>
        ${at >= 0 && at < known.length - 1 && html`<a class="button" rel="next" href=${toLabel(known[at + 1])} aria-label="next">→</a>`}
      </span>
    </header>
    ${labels && html`<${Broken} lines=${labels.broken} />`}
    ${error && html`<${Failure} error=${error} />`}
    <${Filters} place=${place} filters=${filters} rows=${facts.rows} />
    <p class="count" role="status">
      <b>${rows.length}</b> of ${facts.rows.length} episodes${facts.whole ? "" : " so far"}${counts.said ? html`; of all ${counts.solved} of ${counts.said} solved` : ""}${searching ? ", searching …" : ""}
      ${facts.broken.length > 0 && html`, <b>${facts.broken.length} broken, left out</b> (line ${facts.broken.map(([line]) => line).slice(0, 5).join(", ")})`}
    </p>
    <${EpisodeTable} place=${place} rows=${rows.slice(0, most)} all=${facts.rows} filters=${filters} />
    ${rows.length > most && html`<button onClick=${() => setMost(most + 5 * ROWS_SHOWN)}>Show more of ${rows.length}</button>`}
  `;
}

// Where only text can stand, marks are written out.
function visibleText(text) {
  return String(text).replace(UNSEEN, (found) => `⟨${markOf(found)}⟩`);
}

function Filters({ place, filters, rows }) {
  const groups = rows.flatMap((row) => row.groups);
  const unique = (values) => [...new Set(values)].sort((a, b) => (a < b ? -1 : 1));
  const set = (changes) => go(hrefWith(place, changes), true);
  const choice = (name, title, values, all = "all") => html`<label>${title}
    <select value=${filters[name] || ""} onChange=${(event) => set({ [name]: event.target.value })}>
      <option value="">${all}</option>
      ${values.map(([value, text]) => html`<option key=${value} value=${value}>${visibleText(text)}</option>`)}
    </select></label>`;
  const same = (values) => unique(values).map((value) => [String(value), String(value)]);
  const check = (name, title) => html`<label class="check">
    <input type="checkbox" checked=${Boolean(filters[name])} onChange=${(event) => set({ [name]: event.target.checked ? 1 : null })} />${title}</label>`;
  const bound = (name, title) => html`<input type="number" step="any" aria-label=${title} placeholder=${name === "low" ? "from" : "to"}
    value=${filters[name] || ""} onChange=${(event) => set({ [name]: event.target.value })} />`;
  const any = FILTERS.some((name) => filters[name] && !["by", "down"].includes(name));
  return html`<form class="filters" role="search" aria-label="Filters" onSubmit=${(event) => event.preventDefault()}>
    <label class="search">Search
      <input id="search" type="search" placeholder="in prompts and replies" value=${filters.q || ""}
        onChange=${(event) => set({ q: event.target.value.trim() })} /></label>
    ${choice("ok", "Outcome", [["yes", "solved"], ["no", "failed"], ["unsaid", "not said"]])}
    ${choice("role", "Role", same(groups.map((group) => group.role)))}
    ${choice("turn", "Turn", same(groups.map((group) => group.turn)))}
    ${choice("status", "Program status", same(groups.flatMap((group) => Object.keys(group.statuses))))}
    <span class="range">Reward ${bound("low", "least reward")}${bound("high", "greatest reward")}</span>
    ${check("unread", "unreadable")}${check("cut", "truncated")}${check("flat", "without signal")}
    ${any && html`<button type="button" onClick=${() => set(Object.fromEntries(FILTERS.map((name) => [name, null])))}>Clear</button>`}
  </form>`;
}

function EpisodeTable({ place, rows, all, filters }) {
  const roles = [...new Set(all.flatMap((row) => row.groups.map((group) => group.role)))];
  const head = (by, title, numeric = true) => {
    const active = (filters.by || "line") === by;
    const down = active && !filters.down;
    return html`<th scope="col" class=${numeric ? "num" : ""} aria-sort=${active ? (filters.down ? "descending" : "ascending") : "none"}>
      <button class="sort" onClick=${() => go(hrefWith(place, { by, down: down ? 1 : null }), true)}>${title}<i aria-hidden="true">${active ? (filters.down ? " ▼" : " ▲") : ""}</i></button></th>`;
  };
  if (!all.length) return null;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Episodes"><table class="rows episodes">
    <thead><tr>
      ${head("line", "Line")}${head("task", "Task", false)}${head("success", "Outcome", false)}
      ${head("decisions", "Decisions")}${head("tokens", "Tokens")}
      ${roles.map((role) => head(`r.${role}`, html`Reward<br />${visible(role)}`))}
      <th scope="col">Program runs</th><th scope="col">Remarks</th>
    </tr></thead>
    <tbody>${rows.map((row) => html`<${EpisodeRow} key=${row.line} row=${row} roles=${roles} place=${place} />`)}</tbody>
  </table></div>`;
}

function EpisodeRow({ row, roles, place }) {
  const remarks = [
    row.unread && `${row.unread} unreadable`,
    row.cut && `${row.cut} truncated`,
    row.silent && `${row.silent} of ${row.groups.length} groups without signal`,
    row.flat && "no signal: all episodes of this task earned the same",
    row.overlong && "ended: prompt too long",
  ].filter(Boolean);
  const several = row.episode > 0 ? ` · ${row.episode}` : "";
  return html`<tr>
    <td class="num">${row.line}</td>
    <td><a data-row href=${hrefWith(place, { e: row.line, at: null, vs: null }, "tree")}>${visible(row.task)}${several}</a>
      ${row.difficulty !== null && html` <span class="sub">${visible(row.difficulty)}</span>`}</td>
    <td>${verdict(row.success)}</td>
    <td class="num">${row.groups.length}</td>
    <td class="num">${number(row.tokens)}</td>
    ${roles.map((role) => html`<td class="num"><${RoleReward} rewards=${row.rewards[role]} /></td>`)}
    <td class="sub">${Object.entries(row.statuses).map(([status, count], place) => html`${place ? " · " : ""}<span class=${status === "ok" ? "" : "warn"}>${count} ${visible(status)}</span>`)}</td>
    <td class="sub">${remarks.join(" · ")}</td>
  </tr>`;
}

// The executed reward, and where the group has several, the range that it was chosen from.
function RoleReward({ rewards }) {
  if (!rewards) return "–";
  const { mean, low, high, wide } = rewards;
  return html`${reward(mean)}${wide && html`<div class="sub">${reward(low)} … ${reward(high)}</div>`}`;
}
