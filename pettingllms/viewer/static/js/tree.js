"use strict";
// An episode as a tree: a column for each decision, its candidates below each other, the executed
// one joined to the next decision. Where whole episodes are compared, each is a row of its own.

const COLUMN = 142;
const ROW = 34;
const HEAD = 42;
const DOT = 30; // from the middle of a column to the dot of its nodes
const MOST_LANES = 32;

// Nodes by id "line.decision.candidate", in columns, and what joins them.
function layout(episodes, line) {
  const main = episodes.find((each) => each.line === line);
  const wide = main.row.decisions.some((decision) => decision.candidates.length > 1);
  const shown = wide ? [main] : episodes;
  const depth = Math.max(...shown.map((each) => each.row.decisions.length));
  const columns = Array.from({ length: depth }, () => []);
  const links = [];
  shown.forEach((each, lane) => {
    let before = null;
    each.row.decisions.forEach((decision, d) => {
      const nodes = decision.candidates.map((candidate, c) => ({
        id: `${each.line}.${d}.${c}`, line: each.line, d, c, decision, candidate,
        wide: decision.candidates.length > 1, lane: wide ? c : lane,
        title: wide
          ? `candidate ${c + 1} of ${decision.candidates.length}`
          : shown.length > 1 ? `episode ${each.row.episode + 1} of ${shown.length}` : "the only reply",
      }));
      columns[d].push(...nodes);
      if (before) for (const node of nodes) links.push([before, node]);
      before = nodes.find((node) => node.candidate.chosen) || nodes[0];
    });
  });
  const lanes = Math.max(1, ...columns.flat().map((node) => node.lane + 1));
  for (const [d, nodes] of columns.entries()) {
    const own = wide ? nodes.length : lanes;
    for (const node of nodes) {
      node.x = COLUMN * d + COLUMN / 2;
      node.y = HEAD + ROW * (node.lane + (lanes - own) / 2) + ROW / 2;
    }
  }
  return { columns, links, lanes, wide, width: Math.max(1, depth) * COLUMN, height: HEAD + lanes * ROW + 12 };
}

function Tree({ tree, selected, other, onPick }) {
  const nodes = tree.columns.flat();
  const top = Math.max(1e-9, ...nodes.map((node) => Math.abs(node.candidate.advantage_mean ?? 0)));
  const most = Math.max(1, ...nodes.map((node) => node.candidate.tokens));
  const current = useRef(null);
  useEffect(() => {
    const element = current.current;
    if (element && element.scrollIntoView) element.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [selected]);
  return html`<div class="tree" tabindex="0" role="region" aria-label="Tree of decisions">
    <svg width=${tree.width} height=${tree.height} viewBox="0 0 ${tree.width} ${tree.height}" role="group" aria-label="Decisions from left to right">
      ${tree.links.map(([from, to]) => {
        const executed = to.candidate.chosen || !tree.wide;
        const flagged = from.candidate.info.success === true || from.candidate.truncated || from.candidate.info.parse_error != null;
        const [start, end] = [from.x + (flagged ? 44 : 27), to.x - DOT];
        const middle = (start + end) / 2;
        return html`<path class=${executed ? "link executed" : "link"} d="M${start} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${end} ${to.y}" />`;
      })}
      ${tree.columns.map((column, d) => column.length > 0 && html`<g class="column-head">
        <text x=${COLUMN * d + COLUMN / 2} y="14">${visibleText(column[0].decision.role)}</text>
        <text class="sub" x=${COLUMN * d + COLUMN / 2} y="29">turn ${column[0].decision.turn}</text></g>`)}
      ${nodes.map((node) => {
        const { candidate } = node;
        const advantage = candidate.advantage_mean;
        const strength = advantage === null ? 0 : Math.round((100 * Math.abs(advantage)) / top);
        const color = advantage > 0 ? "var(--up)" : "var(--down)";
        const radius = 5 + 7 * Math.sqrt(candidate.tokens / most);
        const remarks = [
          candidate.chosen && node.wide && "executed", candidate.info.parse_error != null && "unreadable",
          candidate.truncated && "truncated", candidate.info.success === true && "solved",
        ].filter(Boolean);
        const name = `${node.decision.role}, turn ${node.decision.turn}, ${node.title}: reward ${reward(candidate.reward)}, advantage ${advantage === null ? "none" : signed(advantage)}${remarks.length ? `, ${remarks.join(", ")}` : ""}`;
        const classes = ["node", candidate.chosen && node.wide && "chosen", node.id === selected && "selected", node.id === other && "other"];
        return html`<g key=${node.id} ref=${node.id === selected ? current : null} class=${classes.filter(Boolean).join(" ")}
          role="button" tabindex=${node.id === selected ? 0 : -1} aria-label=${visibleText(name)} aria-pressed=${node.id === selected} data-node=${node.id}
          onKeyDown=${(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), onPick(node, event.shiftKey))}
          onClick=${(event) => onPick(node, event.shiftKey || event.ctrlKey || event.metaKey)}>
          <rect class="hit" x=${node.x - COLUMN / 2 + 4} y=${node.y - ROW / 2 + 2} width=${COLUMN - 8} height=${ROW - 4} rx="7" />
          <circle cx=${node.x - DOT} cy=${node.y} r=${radius} style=${{ fill: `color-mix(in oklab, ${color} ${strength}%, var(--node))` }} />
          <text x=${node.x + 20} y=${node.y + 4} text-anchor="end">${reward(candidate.reward)}</text>
          <text class="flags" aria-hidden="true" x=${node.x + 27} y=${node.y + 4}>${candidate.info.parse_error != null ? "?" : ""}${candidate.truncated ? "✂" : ""}${candidate.info.success === true ? "✓" : ""}</text>
        </g>`;
      })}
    </svg>
  </div>`;
}

// The episodes that are drawn: the one asked for, and beside it those that it was compared with.
function useDrawn(source, line, again) {
  const { value, error } = useAnswer("episode", { source, line }, again);
  const [beside, setBeside] = useState({ key: null, episodes: [] });
  const single = value && value.row.decisions.every((decision) => decision.candidates.length < 2);
  const lines = value && single ? value.beside.map(([each]) => each).slice(0, MOST_LANES) : [];
  const key = JSON.stringify([source, lines]);
  useEffect(() => {
    if (lines.length < 2) return undefined;
    let current = true;
    Promise.all(lines.map((each) => answers.ask("episode", { source, line: each }).catch(() => null))).then(
      (found) => current && setBeside({ key, episodes: found.filter(Boolean) }),
    );
    return () => {
      current = false;
    };
  }, [key]);
  if (!value) return { error, episodes: null };
  const known = beside.key === key ? beside.episodes : [];
  return { error, episodes: known.some((each) => each.line === line) ? known : [value], main: value };
}

// Estimators whose comparison is the one that is drawn; others compare in a way of their own.
const WITHIN_PROMPT = new Set(["at_grpo", "look_ahead", "gdpo"]);
const WITHIN_TASK = new Set(["grpo", "decision", "agent", "turn", "agent_turn", "gigpo"]);

function comparedWith(tree, node, main, source) {
  const estimator = source ? settingText(source.settings.estimator) : "";
  const how = (known) => (known.has(estimator) ? "Compared with" : "Beside");
  const decision = node.decision;
  if (decision.compared) {
    const ahead = decision.candidates.some((each) => each.later);
    const ids = tree.columns[node.d].map((each) => each.id);
    const what = `${how(WITHIN_PROMPT)} the ${ids.length} replies to this prompt (rewards${ahead ? ", with what followed" : ""})`;
    return { ...decision.compared, ids, what };
  }
  if (tree.wide || !source || source.kind === "eval" || main.beside.length < 2) return null;
  const ids = main.beside.map(([line]) => `${line}.${node.d}.0`);
  const what = `${how(WITHIN_TASK)} the ${ids.length} episodes of this task (returns, ${estimator})`;
  return { ...main.compared, ids, what };
}

function TreeView({ place, tick }) {
  const { value: sources } = useSources(tick);
  const [name, label, line] = [place.params.get("s"), place.params.get("l"), Number(place.params.get("e"))];
  const source = byName(sources && sources.sources, name);
  const { error, episodes, main } = useDrawn(name, line, 0);
  const { rows } = useEpisodes(place, source && source.state === "running" ? tick : 0);
  const [marking, setMarking] = useState(false);
  const tree = useMemo(() => episodes && layout(episodes, line), [episodes, line]);
  const nodes = tree ? tree.columns.flat() : [];
  const at = place.params.get("at");
  const first = nodes.find((node) => node.line === line && node.candidate.chosen) || nodes[0];
  const selected = nodes.find((node) => node.id === `${line}.${at}`) || first;
  const other = nodes.find((node) => node.id === place.params.get("vs"));
  const pick = (node, compare) => {
    if (!node) return false;
    if (compare || marking) {
      setMarking(false);
      return go(hrefWith(place, { vs: node.id === selected.id ? null : node.id }), true);
    }
    return go(hrefWith(place, { e: node.line, at: `${node.d}.${node.c}` }), true);
  };
  const lines = rows.map((row) => row.line);
  const step = (by) => {
    const here = lines.indexOf(line);
    const next = here < 0 ? lines[0] : lines[here + by];
    return next !== undefined && go(hrefWith(place, { e: next, at: null, vs: null }));
  };
  const along = (by) => {
    const column = tree && tree.columns[selected.d + by];
    return column && pick(column.find((node) => node.candidate.chosen && (tree.wide || node.line === selected.line)) || null);
  };
  const across = (by) => {
    const column = tree ? tree.columns[selected.d] : [];
    return pick(column[column.indexOf(selected) + by]);
  };
  useKeys({
    j: () => step(1), k: () => step(-1),
    ArrowLeft: () => along(-1), ArrowRight: () => along(1), ArrowUp: () => across(-1), ArrowDown: () => across(1),
    x: () => setMarking(!marking),
    Escape: () => (other || marking ? (setMarking(false), go(hrefWith(place, { vs: null }), true)) : false),
    u: () => go(hrefWith(place, { e: null, at: null, vs: null }, "step")),
  }, [place, tree, rows, marking, selected]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!tree) return html`<${Waiting} />`;
  const row = main.row;
  const group = selected ? comparedWith(tree, selected, main, source) : null;
  const here = lines.indexOf(line);
  const byId = (id) => nodes.find((node) => node.id === id);
  return html`
    <header class="with-steps">
      <h1>${visible(row.task)} <small>${visible(name)}, ${source && source.kind === "eval" ? "team" : "step"} ${visible(label || main.label)}</small></h1>
      <span class="paging">
        ${here > 0 && html`<a class="button" href=${hrefWith(place, { e: lines[here - 1], at: null, vs: null })} aria-label="previous episode">←</a>`}
        <span>${here >= 0 ? `${here + 1} of ${lines.length}` : `line ${line}`}</span>
        ${here >= 0 && here < lines.length - 1 && html`<a class="button" href=${hrefWith(place, { e: lines[here + 1], at: null, vs: null })} aria-label="next episode">→</a>`}
      </span>
    </header>
    <p class="lead">${verdict(row.success)} · ${row.decisions.length} decisions · returns
      ${" "}${Object.entries(row.returns).map(([agent, value]) => `${visibleText(agent)} ${number(value)}`).join(", ")}
      ${row.overlong && html` · <b>ended: a prompt of ${number(row.overlong.prompt_tokens)} tokens for ${visible(row.overlong.agent)}, at most ${number(row.overlong.longest)} fit</b>`}
      ${" "}<span class="key"><i class="down"></i>advantage<i class="up"></i> · size: tokens · ring: executed</span></p>
    ${nodes.length === 0 && html`<p class="none">No decision was taken in this episode.</p>`}
    ${nodes.length > 0 && html`<div class="tree-and-reply">
      <div class="panel">
        <${Tree} tree=${tree} selected=${selected.id} other=${other && other.id} onPick=${pick} />
        ${(!other || other.decision.prompt === selected.decision.prompt) && html`<${Asked} node=${selected} />`}
      </div>
      <div class="panel">
        ${other
          ? html`<${Two} nodes=${[selected, other]} onClose=${() => go(hrefWith(place, { vs: null }), true)}
              onSwap=${() => go(hrefWith(place, { e: other.line, at: `${other.d}.${other.c}`, vs: selected.id }), true)} />`
          : html`<${Candidate} node=${selected} group=${group}
              onPick=${(id) => pick(byId(id), false)} onCompare=${() => setMarking(!marking)} comparing=${marking} />`}
      </div>
    </div>`}
  `;
}
