"use strict";
// What every view uses: elements, the place in the URL, numbers as text.

const { h, render } = preact;
const { useState, useEffect, useLayoutEffect, useMemo, useRef } = preactHooks;
const html = htm.bind(h);

// ------------------------------------------------------------------------------- the place
// Every state is a URL: #/VIEW?name=value. Views read it and change it, and keep nothing else.

function placeOf(hash) {
  const [view, query] = hash.replace(/^#\/?/, "").split("?", 2);
  return { view: view || "list", params: new URLSearchParams(query || "") };
}

function href(view, values) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") params.append(name, String(each));
    }
  }
  const query = params.toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

// The present place with some values changed; null removes one.
function hrefWith(place, changes, view = place.view) {
  const values = {};
  for (const name of new Set(place.params.keys())) values[name] = place.params.getAll(name);
  return href(view, { ...values, ...changes });
}

function go(target, replace = false) {
  if (replace) {
    history.replaceState(null, "", target);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = target;
  }
}

function usePlace() {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  useEffect(() => {
    const changed = () => setPlace(placeOf(location.hash));
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return place;
}

// ---------------------------------------------------------------------------- small things

function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  const text =
    Number.isInteger(value) && size < 1e6 ? size.toLocaleString("en-US")
    : size >= 1e5 || size < 1e-3 ? size.toExponential(2)
    : String(Number(size.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))));
  return (value < 0 ? "−" : "") + text.replace("e-", "e−");
}

// A reward, in columns that line up.
function reward(value) {
  if (typeof value !== "number" || Math.abs(value) >= 1e4) return number(value, 2);
  return (value < 0 ? "−" : "") + Math.abs(value).toFixed(2);
}

function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}

function ago(seconds) {
  if (!seconds) return "–";
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 90) return `${Math.round(past)} s ago`;
  if (past < 5400) return `${Math.round(past / 60)} min ago`;
  if (past < 129600) return `${Math.round(past / 3600)} h ago`;
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}

function verdict(success) {
  if (success === true) return html`<span class="verdict good">✓ solved</span>`;
  if (success === false) return html`<span class="verdict bad">✗ failed</span>`;
  return html`<span class="verdict none">– not said</span>`;
}

function Failure({ error }) {
  return html`<p class="failure" role="alert">${visible(String(error.message || error))}</p>`;
}

function Waiting({ what = "Loading" }) {
  return html`<p class="waiting" role="status">${what} …</p>`;
}

// A key that no text field is using.
function useKeys(handlers, dependencies) {
  useEffect(() => {
    const pressed = (event) => {
      const target = event.target;
      const typing = target instanceof HTMLElement && target.closest("input, select, textarea");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const handler = handlers[event.key];
      if (handler && handler(event) !== false) event.preventDefault();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, dependencies);
}
