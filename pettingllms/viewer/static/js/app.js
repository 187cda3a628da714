"use strict";
// The frame around the views: where one is, the keyboard, light and dark, and what to do on errors.

const VIEWS = { list: ListView, run: RunView, step: StepView, tree: TreeView, eval: EvalView, read: ReadView, compare: CompareView };
const KEYS = [
  ["j k", "next and previous row, episode or task"], ["Enter", "open the row"], ["u", "up: from an episode to its step, to its run, to the list"],
  ["← →", "in a tree: along the decisions"], ["↑ ↓", "in a tree: between the replies to a prompt"],
  ["x", "in a tree: choose a second reply to compare; Shift-click does it, too"], ["Escape", "close what is open"],
  ["[ ]", "previous and next step"], ["/", "search"], ["t", "light or dark"], ["?", "this help"],
];

function storedTheme() {
  try {
    return localStorage.getItem("pettingllms-theme");
  } catch {
    return null; // a file from disk may have no storage
  }
}

function useTheme() {
  const dark = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const [chosen, setChosen] = useState(storedTheme);
  const [system, setSystem] = useState(dark.matches);
  useEffect(() => {
    const changed = () => setSystem(dark.matches);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  const theme = chosen || (system ? "dark" : "light");
  // Before the views draw: curves take their colors from the page.
  document.documentElement.dataset.theme = theme;
  const toggle = () => {
    const next = theme === "dark" ? "light" : "dark";
    setChosen(next);
    try {
      localStorage.setItem("pettingllms-theme", next);
    } catch {
      // then the choice lasts as long as the page
    }
  };
  return [theme, toggle];
}

// Where one is, from the list down; each part is a link.
function trail(place) {
  const [source, label] = [place.params.get("s"), place.params.get("l")];
  const parts = [["Runs", href("list", {})]];
  if (place.view === "compare") parts.push(["A against B", null]);
  if (place.view === "run" || place.view === "eval") parts.push([place.params.getAll("s").map(shortName).join(", "), null]);
  if (place.view === "read") parts.push([shortName(source || ""), href("eval", { s: source })], [label, null]);
  if (place.view === "step" || place.view === "tree") {
    parts.push([shortName(source || ""), href(/^\d+$/.test(label || "0") ? "run" : "eval", { s: source })]);
    parts.push([/^\d+$/.test(label || "") ? `step ${label}` : label, place.view === "tree" ? hrefWith(place, { e: null, at: null, vs: null }, "step") : null]);
  }
  if (place.view === "tree") parts.push([`line ${place.params.get("e")}`, null]);
  return parts;
}

class Guard extends preact.Component {
  componentDidCatch(error) {
    this.setState({ error, at: location.hash });
  }

  render({ children }, { error, at }) {
    // A view that fails leaves the way to the others open.
    if (error && at === location.hash) return html`<${Failure} error=${error} />`;
    return children;
  }
}

function App() {
  const place = usePlace();
  const tick = useTick();
  const [theme, toggleTheme] = useTheme();
  const [help, setHelp] = useState(false);
  const View = Object.hasOwn(VIEWS, place.view) ? VIEWS[place.view] : ListView;
  const rows = () => [...document.querySelectorAll("main [data-row]")];
  const move = (by) => {
    const all = rows();
    const next = all[Math.max(0, all.indexOf(document.activeElement) + by)];
    if (!next) return false;
    next.focus();
    return true;
  };
  const moves = place.view !== "tree" && !place.params.get("task");
  useKeys({
    "?": () => setHelp(!help),
    t: toggleTheme,
    "/": () => {
      const field = document.getElementById("search");
      if (field) field.focus();
      else if (place.view === "tree") go(hrefWith(place, { e: null, at: null, vs: null }, "step"));
      return Boolean(field);
    },
    j: () => moves && move(1),
    k: () => moves && move(-1),
    u: () => (place.view === "run" ? go(href("list", {})) : false),
    Escape: () => (help ? setHelp(false) : false),
  }, [place, help, theme]);
  useEffect(() => {
    document.title = `${trail(place).map(([name]) => visibleText(name)).slice(1).join(" · ") || "Runs"} – PettingLLMs`;
    window.scrollTo(0, 0);
  }, [place.view, place.params.get("s"), place.params.get("l"), place.params.get("e")]);
  return html`
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>To the content</a>
    <header class="top">
      <nav aria-label="Where you are"><ol>
        ${trail(place).map(([name, target], at) => html`<li key=${at}>${target ? html`<a href=${target}>${visible(name)}</a>` : html`<span aria-current="page">${visible(name)}</span>`}</li>`)}
      </ol></nav>
      <span class="tools">
        ${!answers.live && html`<span class="sub" title="This file needs no server and no network">exported file</span>`}
        <button onClick=${toggleTheme} aria-label=${theme === "dark" ? "light colors" : "dark colors"} title="key t">${theme === "dark" ? "☀" : "☾"}</button>
        <button onClick=${() => setHelp(!help)} aria-label="keyboard help" aria-expanded=${help}>?</button>
      </span>
    </header>
    <main id="content" tabindex="-1"><${Guard} key=${place.view}><${View} place=${place} tick=${tick} theme=${theme} /></${Guard}></main>
    ${help && html`<div class="help" role="dialog" aria-label="Keyboard" aria-modal="false">
      <h2>Keyboard</h2><dl class="pairs">${KEYS.map(([key, what]) => html`<dt>${key.split(" ").map((each) => html`<kbd>${each}</kbd> `)}</dt><dd>${what}</dd>`)}</dl>
      <button onClick=${() => setHelp(false)}>Close</button></div>`}
  `;
}

render(html`<${App} />`, document.getElementById("app"));
