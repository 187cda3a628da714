"use strict";
// One completion with all that is known of it, and two of them side by side.

const MOST_DIFFERENT = 3000; // lines of a text that is compared
const FIELDS = new Set(["success", "parse_error", "statuses", "verdicts", "difficulty", "failing"]);

// The parts of a reward with their numbers: alpha * team + local.
function Formula({ candidate }) {
  const { reward, alpha, team_reward: team, local_reward: local } = candidate;
  return html`<p class="formula">
    <b>${number(reward)}</b> <span>reward</span> =
    ${alpha !== null ? html` <b>${number(alpha)}</b> <span>α</span> ×` : html` <span>α</span> ×`}
    ${" "}<b>${number(team)}</b> <span>team</span> + <b>${number(local)}</b> <span>local</span>
  </p>`;
}

// The group that a completion was compared with: every value as a dot, their mean as a line.
function Compared({ group, current, onPick }) {
  const { ids, what, values, low, high, mean, deviation, flat } = group;
  const x = (value) => 12 + (276 * (value - low + (high === low ? 0.5 : 0))) / (high - low || 1);
  const seen = new Map();
  const dots = values.map((value, place) => {
    const column = Math.round(x(value) / 9);
    const level = seen.get(column) || 0;
    seen.set(column, level + 1);
    return { id: ids[place], place, x: x(value), y: 34 - 8 * Math.min(level, 3) };
  });
  return html`<figure class="compared">
    <svg viewBox="0 0 300 52" role="img" aria-label="${what}: ${values.length} values from ${number(low)} to ${number(high)}, mean ${number(mean)}">
      <line class="axis" x1="6" x2="294" y1="40" y2="40" />
      <line class="mean" x1=${x(mean)} x2=${x(mean)} y1="4" y2="44" />
      ${dots.map((dot) => html`<circle key=${dot.place} cx=${dot.x} cy=${dot.y} r=${dot.id === current ? 5 : 3.5}
        class=${dot.id === current ? "current" : ""} onClick=${() => onPick(dot.id)} />`)}
      <text x="8" y="50">${number(low)}</text><text x="292" y="50" text-anchor="end">${number(high)}</text>
    </svg>
    <figcaption>${what}: mean ${number(mean)}, deviation ${number(deviation)}${flat ? html` – <b>no signal</b>` : ""}</figcaption>
  </figure>`;
}

function Verdicts({ info }) {
  const statuses = Array.isArray(info.statuses) ? info.statuses.map(String) : null;
  const passed = Array.isArray(info.verdicts) ? info.verdicts : [];
  const failing = info.failing && typeof info.failing === "object" ? info.failing : null;
  const run = (status, place) => {
    if (status !== "ok" || passed[place] === undefined) return status;
    return passed[place] ? "passed" : "wrong answer";
  };
  return html`
    ${statuses && html`<p class="verdicts"><span class="label">Program runs</span>
      ${statuses.map((status, place) => html`<span class=${status === "ok" && passed[place] !== false ? "run ok" : "run"} title="run ${place + 1}">${visible(run(status, place))}</span>`)}</p>`}
    ${failing && html`<section class="failing"><h3>What failed</h3>
      <dl class="pairs">
        ${Object.entries(failing).map(([name, value]) => html`<dt>${visible(name)}</dt>
          <dd><${Text} text=${settingText(value)} label=${name} programs=${false} /></dd>`)}
      </dl></section>`}`;
}

function Facts({ decision, candidate }) {
  const facts = [
    ["Tokens", `${number(candidate.tokens)}${candidate.truncated ? ", cut at the limit" : ""}`],
    ["Log-probability", candidate.logprob === null ? "not recorded" : `${number(candidate.logprob)} nats, ${number(candidate.logprob_per_token)} a token`],
    ["Policy", `${decision.policy}, version ${decision.version}`],
    candidate.later ? ["What followed", `reward ${signed(candidate.later.reward)}, found out with ${number(candidate.later.tokens)} tokens`] : null,
    decision.late_reward ? ["Late reward", signed(decision.late_reward)] : null,
    candidate.info.success !== undefined ? ["Team solved it", candidate.info.success ? "yes" : "not yet"] : null,
    ...Object.entries(candidate.info)
      .filter(([name]) => !FIELDS.has(name))
      .map(([name, value]) => [name.replaceAll("_", " "), typeof value === "number" ? number(value) : settingText(value)]),
  ].filter(Boolean);
  return html`<dl class="pairs">${facts.map(([name, value]) => html`<dt>${visible(name)}</dt><dd>${visible(value)}</dd>`)}</dl>`;
}

function Candidate({ node, group, onPick, onCompare, comparing }) {
  const { decision, candidate } = node;
  const advantage = candidate.advantage_mean;
  const title = `${decision.role}, turn ${decision.turn}, ${node.title}`;
  return html`<article class="candidate" aria-label=${visibleText(title)}>
    <header>
      <h2>${visible(decision.role)} <small>turn ${decision.turn} · ${node.title}${candidate.chosen && node.wide ? " · executed" : ""}</small></h2>
      <button class=${comparing ? "on" : ""} aria-pressed=${comparing} onClick=${onCompare} title="key x">
        ${comparing ? "Choose another one to compare" : "Compare with …"}</button>
    </header>
    <div class="worth">
      <${Formula} candidate=${candidate} />
      <p class="advantage"><span>advantage</span> <b class=${advantage > 0 ? "up" : advantage < 0 ? "down" : ""}>${advantage === null ? "none" : signed(advantage)}</b>
        ${Array.isArray(candidate.advantage) && html` <small>mean of ${candidate.advantage.length} tokens</small>`}</p>
    </div>
    ${candidate.info.parse_error !== null && candidate.info.parse_error !== undefined && html`<p class="unreadable"><b>Unreadable:</b> ${visible(String(candidate.info.parse_error))}</p>`}
    ${group && html`<${Compared} group=${group} current=${node.id} onPick=${onPick} />`}
    <${Verdicts} info=${candidate.info} />
    <h3>Reply</h3>
    <${Text} key=${`r${node.id}`} text=${candidate.completion} label="Reply" />
    <details open><summary>Details</summary>
      <${Facts} decision=${decision} candidate=${candidate} /></details>
  </article>`;
}

// What all candidates of a decision answer: the prompt, and its board if it has one.
function Asked({ node }) {
  const { decision, candidate } = node;
  return html`<section class="asked" aria-label="Prompt">
    <h3>Prompt <small>${number(decision.prompt_tokens)} tokens, to ${visible(decision.agent)}</small></h3>
    <${Text} key=${decision.state_hash} text=${decision.prompt} label="Prompt" programs=${decision.prompt.includes("\`\`\`")} />
    <${Board} prompt=${decision.prompt} reply=${candidate.completion} />
  </section>`;
}

// --------------------------------------------------------------------------- side by side

// Pairs of lines: both the same, one changed into the other, or one side alone.
function linePairs(left, right) {
  const [one, two] = [left.split("\n"), right.split("\n")];
  if (one.length > MOST_DIFFERENT || two.length > MOST_DIFFERENT) return null;
  const parts = Diff.diffArrays(one, two, { timeout: 2000 });
  if (!parts) return null;
  const pairs = [];
  for (let at = 0; at < parts.length; at++) {
    const part = parts[at];
    if (!part.added && !part.removed) {
      for (const line of part.value) pairs.push(["same", line, line]);
      continue;
    }
    const next = parts[at + 1];
    const changed = next && part.removed !== next.removed && (next.added || next.removed);
    const [gone, come] = part.removed ? [part.value, changed ? next.value : []] : [changed ? next.value : [], part.value];
    for (let line = 0; line < Math.max(gone.length, come.length); line++) {
      pairs.push(["changed", gone[line] ?? null, come[line] ?? null]);
    }
    if (changed) at++;
  }
  return pairs;
}

function shortened(line) {
  const left = line === null ? 0 : line.length - FIRST_SHOWN;
  return left > 0 ? `${line.slice(0, FIRST_SHOWN)} … and ${left.toLocaleString("en-US")} characters more` : line;
}

function words(left, right) {
  if (left === null || right === null || left.length > LONGEST_LINE || right.length > LONGEST_LINE) {
    return [left === null ? null : visible(left), right === null ? null : visible(right)];
  }
  const parts = Diff.diffWordsWithSpace(left, right);
  const side = (gone) => parts.filter((part) => !part[gone]).map((part) =>
    part.added || part.removed ? html`<mark>${visible(part.value)}</mark>` : visible(part.value));
  return [side("added"), side("removed")];
}

function Difference({ left, right, titles }) {
  const pairs = useMemo(() => linePairs(left, right), [left, right]);
  if (!pairs) {
    return html`<p class="none">Too long to compare line by line; here are both.</p>
      <div class="both"><${Text} text=${left} label=${titles[0]} /><${Text} text=${right} label=${titles[1]} /></div>`;
  }
  const cell = (content, kind, side) => html`<td class=${content === null ? "absent" : kind === "changed" ? side : ""}>${content}</td>`;
  const same = pairs.every(([kind]) => kind === "same");
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Difference">
    ${same && html`<p class="none">The texts are the same.</p>`}
    <table class="difference"><thead><tr><th scope="col">${titles[0]}</th><th scope="col">${titles[1]}</th></tr></thead>
    <tbody>${pairs.slice(0, MOST_DIFFERENT).map(([kind, one, two]) => {
      const [a, b] = kind === "same" ? [visible(shortened(one)), visible(shortened(two))] : words(shortened(one), shortened(two));
      return html`<tr>${cell(a, kind, "gone")}${cell(b, kind, "come")}</tr>`;
    })}</tbody></table></div>`;
}

function Two({ nodes, onClose, onSwap }) {
  const [one, two] = nodes;
  const titles = nodes.map((node) => visibleText(`${node.decision.role}, turn ${node.decision.turn}, ${node.title}`));
  const rows = [
    ["reward", (node) => node.candidate.reward], ["team", (node) => node.candidate.team_reward],
    ["local", (node) => node.candidate.local_reward], ["advantage", (node) => node.candidate.advantage_mean],
    ["tokens", (node) => node.candidate.tokens], ["log-probability", (node) => node.candidate.logprob],
  ];
  return html`<article class="candidate two" aria-label="Two replies compared">
    <header><h2>Difference</h2>
      <span><button onClick=${onSwap}>Swap</button> <button onClick=${onClose} title="key Escape">Close</button></span></header>
    <div class="scroll" tabindex="0" role="region" aria-label="Numbers"><table class="rows numbers"><thead><tr><th scope="col"><span class="unseen">What</span></th>${titles.map((title) => html`<th scope="col" class="num">${title}</th>`)}</tr></thead>
      <tbody>${rows.map(([name, value]) => html`<tr><th scope="row">${name}</th>${nodes.map((node) => html`<td class="num">${number(value(node))}</td>`)}</tr>`)}</tbody></table></div>
    <h3>Replies</h3>
    <${Difference} left=${one.candidate.completion} right=${two.candidate.completion} titles=${titles} />
    ${one.decision.prompt !== two.decision.prompt && html`<h3>Prompts</h3>
      <${Difference} left=${one.decision.prompt} right=${two.decision.prompt} titles=${titles} />`}
  </article>`;
}
