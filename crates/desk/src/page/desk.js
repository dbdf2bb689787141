// Signing in, the stream of states, and what is pressed. The key is in this variable and nowhere else:
// no storage, no cookie, no address.
let key = "";
let stream = null; // AbortController of what runs
let view = null; // the newest {headline, state}
let came = 0; // when it came, by this browser's clock
let heard = 0; // when anything came
let lost = false; // the connection was, and nothing has come since
let spoken = "";
const folds = new Map(); // name: open, where somebody has said so
const SILENCE_MAX = 15000;
const EVENT_MAX = 32 << 20;

// The server's clock, as far as is known here.
const now = () => (view ? view.state.at_ms + (performance.now() - came) : Date.now());
const isStale = () => lost || performance.now() - heard > SILENCE_MAX;

// A fold that is as somebody left it; what is in a closed one is not made.
function fold(name, byDefault, summary, inside, look = "") {
  const open = folds.get(name) ?? byDefault;
  const ontoggle = (event) => {
    const is = event.currentTarget.open;
    if (is === (folds.get(name) ?? byDefault)) return;
    folds.set(name, is);
    refresh();
  };
  return h("details", { key: name, open, ontoggle, class: look }, h("summary", {}, summary), h("div.body", {}, open ? inside() : []));
}

function refresh() {
  if (!view) return;
  const stale = isStale();
  keepingFocus(() => {
    draw("headline", headlineView(view, stale));
    draw("incidents", incidentsView(view));
    $("find").hidden = view.state.engines.length <= 12;
    draw("fleet", fleetView(view, $("filter").value.trim().toLowerCase()));
    draw("model", modelView(view));
    draw("canaries", canariesView(view));
    draw("ttft", ttftView(view, $("ttft").clientWidth));
    draw("pools", poolsView(view));
    draw("running", runningView(view));
    draw("journal", journalView(view));
  });
  document.title = (stale ? "? " : { alarm: "✕ Act now", contained: "■ Contained", attention: "! Look", calm: "✓ Quiet" }[view.headline.level] + " · ") + "On call · Cofferdam";
  live();
  speak(stale);
}

function live() {
  const on = !isStale();
  $("live").className = "live " + (on ? "on" : "off");
  $("live").textContent = on ? "live" : "not live: nothing has come for " + Math.round((performance.now() - heard) / 1000) + " s";
}

// What is new on top is said once to who listens instead of looking; at once if it cannot wait.
function speak(stale) {
  const words = stale ? "The page is not live." : LEVELS[view.headline.level][1] + ". " + view.headline.sentence;
  if (words === spoken) return;
  spoken = words;
  $(stale || view.headline.level === "alarm" ? "said-now" : "said").textContent = words;
}

// ---- asking -------------------------------------------------------------------------------------

async function fault(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "status " + response.status;
  }
}

function lock(words) {
  key = "";
  view = null;
  stream?.abort();
  if ($("act").open) $("act").close();
  for (const id of ["headline", "incidents", "fleet", "model", "canaries", "ttft", "pools", "running", "journal"]) $(id).replaceChildren();
  $("desk").hidden = $("lock").hidden = $("who").hidden = true;
  $("access").hidden = false;
  $("live").className = "live";
  $("live").textContent = "not signed in";
  $("access-note").textContent = words ?? "It stays in this page’s memory and is gone when the page is.";
  $("access-note").className = words ? "fault" : "note";
  document.title = "On call · Cofferdam";
  $("key").focus();
}

function met(response) {
  if (!$("access").hidden) {
    $("access").hidden = true;
    $("desk").hidden = $("lock").hidden = $("who").hidden = false;
    $("main").focus();
  }
  $("name").textContent = (response.headers.get("x-operator") ?? "?");
}

// The events of a stream, as text; comments only say that somebody is there.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [], size = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard = performance.now();
    lost = false;
    let rest = value, end;
    // A border of two line ends may be split between two pieces.
    if (parts.length && rest.startsWith("\n") && parts.at(-1).endsWith("\n")) {
      parts.push("\n");
      rest = rest.slice(1);
      yield parts.join("").trim();
      parts = [];
      size = 0;
    }
    while ((end = rest.indexOf("\n\n")) >= 0) {
      parts.push(rest.slice(0, end));
      yield parts.join("").trim();
      parts = [];
      size = 0;
      rest = rest.slice(end + 2);
    }
    parts.push(rest);
    size += rest.length;
    if (size > EVENT_MAX) throw new Error("an event without an end");
  }
}

async function listen() {
  const own = (stream = new AbortController());
  let pause = 1000;
  while (!own.signal.aborted) {
    try {
      const response = await fetch("/events", { headers: { authorization: "Bearer " + key }, signal: own.signal, cache: "no-store" });
      if (response.status === 401) return lock(await fault(response));
      if (!response.ok) throw new Error(await fault(response));
      met(response);
      for await (const event of events(response.body)) {
        if (own.signal.aborted) return;
        pause = 1000;
        if (event.startsWith("data: ")) show(event.slice(6));
      }
    } catch (error) {
      if (own.signal.aborted) return;
      console.warn(String(error));
      if (!$("access").hidden) return lock("The server does not answer: " + error.message);
    }
    if (own.signal.aborted) return;
    lost = true;
    refresh();
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 8000);
  }
}

function show(text) {
  performance.clearMarks();
  performance.mark("refresh-begins");
  view = JSON.parse(text);
  came = heard = performance.now();
  refresh();
  void document.body.offsetHeight; // laid out, too
  performance.measure("refresh", "refresh-begins");
  if (performance.getEntriesByName("refresh").length > 200) performance.clearMeasures();
}

// ---- acting -------------------------------------------------------------------------------------

let opener = null;
let acting = null; // the scope that the dialog is about

function press(button, scope, act) {
  opener = button;
  acting = scope;
  const choices = scope.kind === "incident" ? ["note", "close_incident"] : ["drain", "private", "close", "restore", "open_incident"];
  const chosen = act ?? choices[scope.kind === "incident" ? 0 : 1];
  $("act-title").textContent = "Act on " + scopeWords(scope);
  $("act-now").textContent = standingWords(scope);
  $("act-fault").textContent = "";
  $("reason").value = "";
  $("choices").replaceChildren(...choices.map((it) => {
    const label = document.createElement("label");
    label.className = "choice";
    const radio = document.createElement("input");
    Object.assign(radio, { type: "radio", name: "act", value: it, checked: it === chosen, onchange: name });
    const note = document.createElement("span");
    note.className = "note";
    note.textContent = ACTS[it][1];
    label.append(radio, ACTS[it][0], note);
    return label;
  }));
  name();
  $("act").showModal();
  (act ? $("reason") : $("choices").querySelector("input:checked")).focus();
}

function standingWords(scope) {
  const { state } = view;
  const pair = () => state.pairs.find((it) => it.prefill === scope.prefill && it.decode === scope.decode);
  const engine = () => state.engines.find((it) => it.name === scope.name);
  const standing = { model: () => state.model, pair, engine, incident: () => undefined }[scope.kind]()?.standing;
  return standing ? "It is " + standing.access + (standing.why ? ": " + standing.why : "") : "";
}

const chosenAct = () => $("choices").querySelector("input:checked").value;

function name() {
  $("act-go").textContent = ACTS[chosenAct()][0];
}

async function act(event) {
  event.preventDefault();
  const reason = $("reason").value.trim();
  if (!reason) return complain("Say why: whoever reads this later was not here.");
  $("act-go").disabled = true;
  $("act-fault").textContent = "";
  try {
    const response = await fetch("/actions", {
      method: "POST",
      headers: { authorization: "Bearer " + key, "content-type": "application/json" },
      body: JSON.stringify({ act: chosenAct(), scope: acting, reason }),
      signal: AbortSignal.timeout(40000),
    });
    if (response.status === 401) return lock(await fault(response));
    if (!response.ok) return complain("Not done: " + (await fault(response)));
    const { done } = await response.json();
    $("act").close();
    $("toast").textContent = "Done and written down: " + done.said;
    $("toast").hidden = false;
    $("said").textContent = $("toast").textContent;
  } catch (error) {
    complain("It is not known whether it was done (" + error.message + "): look at the state before you try again.");
  } finally {
    $("act-go").disabled = false;
  }
}

function complain(words) {
  $("act-fault").textContent = words;
  $("reason").focus();
}

$("act").addEventListener("close", () => {
  (opener?.isConnected ? opener : $("main")).focus();
  opener = acting = null;
});
$("act-cancel").addEventListener("click", () => $("act").close());
$("act-form").addEventListener("submit", act);
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  $("key").value = "";
  if (!key) return;
  // A header cannot carry it.
  if (!/^[!-~]+$/.test(key)) return lock("A key is visible ASCII without spaces.");
  stream?.abort();
  spoken = "";
  listen();
});
$("lock").addEventListener("click", () => lock());
$("filter").addEventListener("input", refresh);
addEventListener("resize", refresh);
setInterval(() => document.hidden || refresh(), 5000);
$("key").focus();
