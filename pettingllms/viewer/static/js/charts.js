"use strict";
// Curves. A chart's lines share the horizontal axis and the cursor with all others on the page.

const CHARTS = [
  { title: "Success", lines: [[/^success$/, "training rollouts"], [/^eval\/success$/, "held out"]] },
  { title: "Reward by role", lines: [[/^reward\/(.+)$/, "$1"]] },
  { title: "Team part of the reward", lines: [[/^team_reward\/(.+)$/, "$1"]] },
  { title: "Local part of the reward", lines: [[/^local_reward\/(.+)$/, "$1"]] },
  { title: "Return of an episode", lines: [[/^return(?:\/(.+))?$/, "$1"]] },
  { title: "Success after a reply", lines: [[/^success\/(.+)$/, "$1"]] },
  { title: "Entropy (nats a token)", lines: [[/^(.+)\/entropy$/, "$1"]] },
  { title: "KL to the base model", lines: [[/^(.+)(?<!sampling)\/kl$/, "$1"]] },
  { title: "Share of tokens that were clipped", lines: [[/^(.+)\/clip_ratio\/region_mean$/, "$1"]] },
  { title: "Share of groups without signal", lines: [[/^(.+)\/frac_reward_zero_std$/, "$1"]] },
  { title: "Truncated replies", lines: [[/^completions\/clipped_ratio$/, "share of all"]] },
  { title: "Unreadable replies", lines: [[/^parse_error\/(.+)$/, "$1"]] },
  { title: "Sampler against trainer (nats)", lines: [[/^(.+)\/sampling\/sampling_logp_difference\/mean$/, "$1, mean"], [/^(.+)\/sampling\/sampling_logp_difference\/max$/, "$1, max"]] },
  { title: "Tokens a second", lines: [[/^tokens_per_second$/, "generated"]] },
  { title: "Share of a step's time", lines: [[/^time_share\/(?!step)(.+)$/, "$1"]] },
  { title: "Tokens of a reply", lines: [[/^completions\/mean_length$/, "mean"]] },
  { title: "Gradient norm", lines: [[/^(.+)\/grad_norm$/, "$1"]] },
  { title: "Learning rate", lines: [[/^(.+)\/learning_rate$/, "$1"]] },
];
const HELD = ["validation", "test"]; // after the others, and as dots
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];

// The lines of a chart: label, x -> y. Of several runs, a run has a color and a line a dash.
function linesOf(chart, runs) {
  const found = [];
  runs.forEach(({ name, rows }, place) => {
    const lines = new Map();
    for (const row of rows) {
      if (row.kind !== "train" && !(row.kind === "eval" && !row.greedy)) continue;
      for (const [key, given] of Object.entries(row)) {
        if (typeof given !== "number") continue;
        const form = chart.lines.find(([pattern]) => pattern.test(key));
        if (!form) continue;
        const held = row.when === "validation" ? "validation" : "test";
        const label = row.kind === "eval" ? held : key.replace(form[0], form[1]) || "team";
        if (!lines.has(label)) lines.set(label, new Map());
        lines.get(label).set(row.step, given);
      }
    }
    const inOrder = [...lines].sort(([a], [b]) => HELD.indexOf(a) - HELD.indexOf(b));
    inOrder.forEach(([label, points], order) => {
      const several = runs.length > 1;
      found.push({
        label: several ? (lines.size > 1 ? `${shorterName(name)}: ${label}` : shorterName(name)) : label,
        color: (several ? place : order) % 8,
        dash: several ? DASHES[order % DASHES.length] : [],
        dots: HELD.includes(label),
        points,
      });
    });
  });
  return found;
}

function shortName(name) {
  return name.split("/").at(-1);
}

function shorterName(name) {
  const short = shortName(name);
  return short.length > 20 ? `${short.slice(0, 8)}…${short.slice(-8)}` : short;
}

function styleOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function Chart({ chart, runs, theme, onStep }) {
  const [lines, xs] = useMemo(() => {
    const found = linesOf(chart, runs);
    const steps = new Set(found.flatMap((line) => [...line.points.keys()]));
    return [found, [...steps].sort((a, b) => a - b)];
  }, [chart, runs]);
  if (!lines.length) return null;
  const data = [xs, ...lines.map((line) => xs.map((x) => line.points.get(x) ?? null))];
  return html`<${Plot} title=${chart.title} lines=${lines} data=${data} theme=${theme} onPick=${onStep} sync="steps" />`;
}

// One plot, also for other axes than steps.
function Plot({ title, lines, data, theme, onPick, sync, xName = "step", xTime = false }) {
  const place = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  const shape = JSON.stringify([lines.map((line) => [line.label, line.color, line.dash]), theme, xTime]);
  useLayoutEffect(() => {
    const ink = styleOf("--muted");
    const grid = { stroke: styleOf("--line"), width: 1 };
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: ink, grid, ticks: grid, font };
    const made = new uPlot(
      {
        width: place.current.clientWidth || 320,
        height: 150,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, sync: sync ? { key: sync } : undefined },
        scales: { x: { time: false }, y: { range: (_, low, high) => rangeOf(low, high) } },
        axes: [
          { ...axis, size: 26, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
          { ...axis, size: 52, space: 28, values: (_, ticks, __, ___, apart) => ticks.map((tick) => tickText(tick, apart)) },
        ],
        series: [
          {},
          ...lines.map((line) => ({
            label: line.label,
            stroke: styleOf(`--line-${line.color}`),
            width: 1.75,
            dash: line.dash,
            spanGaps: true,
            points: { show: line.dots || data[0].length < 25, size: line.dots ? 7 : 4 },
          })),
        ],
        hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
      },
      data,
      place.current,
    );
    plot.current = made;
    const resized = new ResizeObserver(() => {
      const width = place.current && place.current.clientWidth;
      if (width && width !== made.width) made.setSize({ width, height: 150 });
    });
    resized.observe(place.current);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [shape]);
  useEffect(() => {
    if (plot.current) plot.current.setData(data);
  }, [JSON.stringify(data)]);
  const shown = (place) => {
    const values = data[place + 1];
    const last = values.findLastIndex((value) => value !== null);
    return number(at !== null && values[at] !== null ? values[at] : values[last]);
  };
  const summary = lines.map((line, place) => `${line.label} ${shown(place)}`).join(", ");
  const picked = () => onPick && at !== null && onPick(data[0][at]);
  return html`<figure class="chart">
    <figcaption>
      <strong>${title}</strong>
      <span class="at">${at === null ? "" : `${xName} ${number(data[0][at])}`}</span>
      <ul class="legend">
        ${lines.map((line, place) => html`<li key=${line.label}>
          <i class="swatch line-${line.color} ${line.dash.length ? `dash-${line.dash.length}${line.dash[0]}` : ""}"></i>${visible(line.label)} <b>${shown(place)}</b>
        </li>`)}
      </ul>
    </figcaption>
    <div class=${onPick ? "plot pick" : "plot"} ref=${place} onClick=${picked} role="img" aria-label="${title}: ${summary}"></div>
  </figure>`;
}

// As many decimals as the distance has: ticks are 0.25 apart, too.
function tickText(tick, apart) {
  if (tick === 0) return "0";
  if (Math.abs(tick) >= 1e5 || apart < 1e-4) return tick.toExponential(2).replace(/-/g, "−");
  return tick.toFixed((String(apart).split(".")[1] ?? "").length).replace("-", "−");
}

function rangeOf(low, high) {
  if (low === null || high === null || (low === 0 && high === 0)) return [0, 1];
  if (low >= 0 && high <= 1 && high > 0.3) return [0, 1.02];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 && low < high / 2 ? 0 : low - room, high + room];
}
