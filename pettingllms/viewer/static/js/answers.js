"use strict";
// What the page knows of runs: asked from the server that delivered it, or unpacked from the file
// that holds it. Both answer the same questions.

const POLL = 2000; // milliseconds between looks at a run that is going on

class ServerAnswers {
  live = true;

  async ask(name, values) {
    const response = await fetch(`api/${name}?${new URLSearchParams(values)}`);
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
    return answer;
  }
}

class FileAnswers {
  live = false;
  unpacked = new Map();

  async ask(name, values) {
    const main = await this.unpack("data-main");
    if (name === "sources") return { sources: main.sources };
    if (name === "compare") {
      const { a, al, b, bl } = values;
      const pair = main.compared[[a, al, b, bl].join("\n")];
      if (!pair) throw new Error("these teams are not part of this file");
      return pair;
    }
    const known = main.answers[values.source];
    if (!known) throw new Error(`no run or evaluation ${values.source} in this file`);
    if (name === "metrics") {
      const rows = values.from ? [] : known.metrics.rows;
      return { ...known.metrics, rows };
    }
    if (name === "labels" || name === "results" || name === "tasks") return known[name];
    const label = name === "episode" ? (main.lines[values.source] || {})[values.line] : values.label;
    const block = (main.places[values.source] || {})[label];
    if (!block) throw new Error(`${label ? `the episodes of ${label} are` : `line ${values.line} is`} not part of this file`);
    const { facts, episodes } = await this.unpack(block);
    if (name === "facts") return { rows: facts, next: null, broken: [] };
    if (name === "search") return { rows: search(episodes, values.q), next: null, broken: [] };
    if (!episodes[values.line]) throw new Error(`the episode in line ${values.line} is not part of this file`);
    return episodes[values.line];
  }

  unpack(id) {
    if (!this.unpacked.has(id)) {
      const element = document.getElementById(id);
      const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      this.unpacked.set(id, new Response(stream).json());
    }
    return this.unpacked.get(id);
  }
}

function search(episodes, text) {
  const wanted = text.toLowerCase();
  const has = (part) => part.toLowerCase().includes(wanted);
  const found = Object.entries(episodes).filter(([, { row }]) =>
    row.decisions.some((d) => has(d.prompt) || d.candidates.some((c) => has(c.completion))),
  );
  return found.map(([line]) => Number(line));
}

const answers = document.getElementById("data-main") ? new FileAnswers() : new ServerAnswers();

// Counts up while the page is looked at, so that views of a run that is going on ask again.
function useTick() {
  const [tick, setTick] = useState(0);
  useEffect(() => {
    if (!answers.live) return undefined;
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") setTick((before) => before + 1);
    }, POLL);
    return () => clearInterval(timer);
  }, []);
  return tick;
}

// An answer, asked again whenever `again` changes; what was known stays until the new one is there.
function useAnswer(name, values, again = 0) {
  const key = values && `${name}?${new URLSearchParams(values)}`;
  const [state, setState] = useState({ key: null, value: null, error: null });
  useEffect(() => {
    if (!key) return undefined;
    let current = true;
    answers.ask(name, values).then(
      (value) => current && setState({ key, value, error: null }),
      // A server that is away for a moment does not take away what is shown.
      (error) => current && setState((old) => (old.key === key && old.value ? old : { key, value: null, error })),
    );
    return () => {
      current = false;
    };
  }, [key, again]);
  return state.key === key ? state : { key, value: null, error: null };
}

// Rows of answers that come in parts, all of them; and those that a growing file adds later.
const partsKnown = new Map();

function useParts(name, values, again = 0) {
  const key = values && `${name}?${new URLSearchParams(values)}`;
  const [, redraw] = useState(0);
  useEffect(() => {
    if (!key) return undefined;
    if (!partsKnown.has(key)) {
      if (partsKnown.size > 12) partsKnown.delete(partsKnown.keys().next().value);
      partsKnown.set(key, { rows: [], broken: [], after: 0, whole: false, asking: false, error: null });
    }
    const known = partsKnown.get(key);
    let current = true;
    (async () => {
      if (known.asking) return;
      known.asking = true;
      try {
        for (let next = known.after; next !== null && current; ) {
          const part = await answers.ask(name, { ...values, after: next });
          const last = (row) => (typeof row === "number" ? row : row.line);
          // The file may have been asked for twice; a line is there once.
          const fresh = part.rows.filter((row) => last(row) > known.after);
          known.rows = known.rows.concat(fresh);
          known.broken = known.broken.concat(part.broken.filter(([line]) => line > known.after));
          for (const row of fresh) known.after = Math.max(known.after, last(row));
          for (const [line] of part.broken) known.after = Math.max(known.after, line);
          if (part.next !== null) known.after = Math.max(known.after, part.next);
          next = answers.live ? part.next : null;
          known.whole = next === null;
          known.error = null;
          redraw((count) => count + 1);
        }
      } catch (error) {
        known.error = error;
        redraw((count) => count + 1);
      } finally {
        known.asking = false;
      }
    })();
    return () => {
      current = false;
    };
  }, [key, again]);
  return (key && partsKnown.get(key)) || { rows: [], broken: [], whole: false, error: null };
}

// Rows of metrics.jsonl of several runs; a growing file is read from where it was read to.
const metricsKnown = new Map();

function useMetrics(names, again) {
  const [, redraw] = useState(0);
  const key = JSON.stringify(names);
  useEffect(() => {
    for (const name of names) {
      const known = metricsKnown.get(name) || { rows: [], next: 0, asking: false, error: null };
      metricsKnown.set(name, known);
      if (known.asking) continue;
      known.asking = true;
      answers
        .ask("metrics", { source: name, from: known.next })
        .then((part) => {
          if (part.restarted) known.rows = [];
          if (part.rows.length || part.restarted) known.rows = known.rows.concat(part.rows);
          known.next = part.next;
          known.error = null;
        })
        .catch((error) => {
          known.error = error;
        })
        .finally(() => {
          known.asking = false;
          redraw((count) => count + 1);
        });
    }
  }, [key, again]);
  return names.map((name) => metricsKnown.get(name) || { rows: [], error: null });
}
