"use strict";
// Text that a model wrote. It reaches the page as text nodes; what would change how the rest of
// the page reads (directions, control characters, half characters) is shown as a mark instead.

const NAMED = {
  0x061c: "ALM", 0x200b: "ZWSP", 0x200c: "ZWNJ", 0x200d: "ZWJ", 0x200e: "LRM", 0x200f: "RLM",
  0x2028: "LS", 0x2029: "PS", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO",
  0x202e: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI",
  0xfeff: "BOM", 0x00ad: "SHY", 0x1b: "ESC", 0x00: "NUL", 0x08: "BS", 0x0d: "CR", 0x7f: "DEL",
};
// Controls but tab and new line, formats, lone surrogates, tags, private and unassigned specials.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;
const FIRST_SHOWN = 20000;
const MORE_SHOWN = 200000;
const MOST_HIGHLIGHTED = 20000;
const LONGEST_LINE = 2000;

function markOf(found) {
  const code = found.codePointAt(0);
  return NAMED[code] || `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

// Text as children of an element: strings, and marks for what cannot be seen.
function visible(text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found.index > end) parts.push(text.slice(end, found.index));
    const mark = markOf(found[0]);
    parts.push(html`<span class="mark" title="the character ${mark}">${mark}</span>`);
    end = found.index + found[0].length;
  }
  if (!parts.length) return text;
  if (end < text.length) parts.push(text.slice(end));
  return parts;
}

function highlighted(code) {
  // Matching costs time that grows with the text; a program of a model may be anything.
  const lines = code.split("\n");
  if (code.length > MOST_HIGHLIGHTED || lines.some((line) => line.length > LONGEST_LINE)) {
    return visible(code);
  }
  const shown = (token) => {
    if (typeof token === "string") return visible(token);
    const inside = Array.isArray(token.content) ? token.content.map(shown) : shown(token.content);
    return html`<span class="token ${token.type}">${inside}</span>`;
  };
  return Prism.tokenize(code, Prism.languages.python).map(shown);
}

const FENCE = /^(```+)[ \t]*([^\n`]*)\n[\s\S]*?(?:^\1[ \t]*$|(?![\s\S]))/gm;
const PYTHON = /^(?:python\d?|py|)\s*$/i;
const PROGRAM = /^(?:import \w|from \w+ import |def \w+\(|class \w+|print\(|for \w+ in |while |if .+:|[a-z_]\w* = )/;

// Prose and programs of a reply, in order; a text that begins like a program is one as a whole.
function pieces(text) {
  if (!text.includes("```")) return [{ code: PROGRAM.test(text.trimStart()), text }];
  const found = [];
  let end = 0;
  for (const fence of text.matchAll(FENCE)) {
    if (fence.index > end) found.push({ code: false, text: text.slice(end, fence.index) });
    found.push({ code: PYTHON.test(fence[2]), text: fence[0] });
    end = fence.index + fence[0].length;
  }
  if (end < text.length) found.push({ code: false, text: text.slice(end) });
  return found;
}

function Text({ text, label, programs = true }) {
  const [length, setLength] = useState(FIRST_SHOWN);
  useEffect(() => setLength(FIRST_SHOWN), [text]);
  let part = text.slice(0, length);
  if (/[\ud800-\udbff]$/.test(part) && part.length < text.length) part = part.slice(0, -1);
  const drawn = useMemo(() => {
    const found = programs ? pieces(part) : [{ code: false, text: part }];
    return found.map((each) => (each.code ? highlighted(each.text) : visible(each.text)));
  }, [part, programs]);
  const rest = text.length - part.length;
  return html`
    <pre class="text" tabindex="0" role="region" aria-label=${label}>${text ? drawn : html`<span class="mark">empty</span>`}</pre>
    ${rest > 0 &&
    html`<p class="rest">
      ${part.length.toLocaleString("en-US")} of ${text.length.toLocaleString("en-US")} characters.
      <button onClick=${() => setLength(length + MORE_SHOWN)}>Show more</button>
    </p>`}
  `;
}
