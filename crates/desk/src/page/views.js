// The parts of the page, each made of the state alone.

const number = (n) => (n === null || n === undefined ? "not known" : n.toLocaleString("en"));
const plural = (n, one, many = one + "s") => number(n) + " " + (n === 1 ? one : many);
// What stands between backticks is typed.
const commands = (words) => words.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));
const findings = (n) => (n ? plural(n, "finding") : "nothing found");
const utc = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC";
const clock = (ms) => new Date(ms).toISOString().slice(11, 19);

// How long ago, by the clock of the server.
function ago(ms) {
  if (!ms) return "never";
  const s = Math.max(0, Math.round((now() - ms) / 1000));
  if (s < 90) return s + " s";
  if (s < 90 * 60) return Math.round(s / 60) + " min";
  if (s < 36 * 3600) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " days";
}
const since = (ms) => h("time", { datetime: new Date(ms).toISOString(), title: utc(ms) }, ago(ms) + " ago");

// Ranks, from well to worst; each with its look, sign and place in the order.
const RANKS = {
  ok: { order: 0, sign: "✓" }, plain: { order: 1, sign: "–" }, look: { order: 2, sign: "!" },
  held: { order: 3, sign: "■" }, bad: { order: 4, sign: "✕" },
};
const worse = (a, b) => (RANKS[b].order > RANKS[a].order ? b : a);
const chip = (rank, words) => h("span.chip", { class: rank, "data-sign": RANKS[rank].sign }, words);

const OF_ACCESS = { open: "ok", draining: "look", private: "held", closed: "held" };
const ACCESS = ["open", "draining", "private", "closed"];
const closest = (...standings) => ACCESS[Math.max(...standings.map((it) => ACCESS.indexOf(it.access)))];
const reachable = (...standings) => ACCESS.indexOf(closest(...standings)) < 2;
const pairName = ({ prefill, decode }) => (prefill === decode ? prefill : prefill + " → " + decode);

const actButton = (words, scope, attrs = {}) =>
  h("button.quiet.small", { type: "button", onclick: (event) => press(event.currentTarget, scope), ...attrs }, words);

// ---- on top -------------------------------------------------------------------------------------

const LEVELS = {
  calm: ["✓", "All quiet"], attention: ["!", "Needs a look"],
  contained: ["■", "Contained"], alarm: ["✕", "Act now"],
};
const ACTS = {
  drain: ["Drain", "What runs may end; nothing new goes there."],
  private: ["Make private", "Only operators’ keys reach it. Its processes go on, and keep the evidence."],
  close: ["Close", "Nobody reaches it, operators neither."],
  restore: ["Restore", "Everybody reaches it again. Refused without the proofs that the policy asks for."],
  open_incident: ["Open an incident", "Writes down that something is wrong with it. Closes nothing."],
  note: ["Note", "Writes something down with the incident."],
  close_incident: ["Close the incident", "It is over. What stands private stays so until it is restored."],
};
const scopeWords = (scope) =>
  ({ model: () => "the model", pair: () => (scope.prefill === scope.decode ? "engine " : "pair ") + pairName(scope),
     engine: () => `engine ${scope.name}`, incident: () => `incident ${scope.id}` })[scope.kind]();

function headlineView({ headline }, stale) {
  const [sign, words] = stale ? ["?", "Not live: this was so when the connection was lost"] : LEVELS[headline.level];
  $("headline").className = "headline " + (stale ? "stale" : headline.level);
  const fact = (name, ...value) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, ...value));
  const { press: to } = headline;
  return [
    h("h2", { id: "level", "data-sign": sign }, words),
    h("p.sentence", {}, headline.sentence + "."),
    h("dl.facts", {},
      headline.since_ms && fact("Since", utc(headline.since_ms) + ", ", since(headline.since_ms)),
      headline.affected && fact("Affected", headline.affected),
      headline.next && fact("Next", commands(headline.next))),
    (to || headline.incident) && h("div.row", {},
      to && h("button", { type: "button", key: "press", class: headline.level === "alarm" ? "danger" : "",
        onclick: (event) => press(event.currentTarget, to.scope, to.act) },
      ACTS[to.act][0] + ": " + scopeWords(to.scope)),
      headline.incident && actButton("Note", { kind: "incident", id: headline.incident }, { key: "note", "aria-label": "Note with incident " + headline.incident })),
  ].filter(Boolean);
}

// ---- incidents ----------------------------------------------------------------------------------

function incidentsView({ state }) {
  const open = state.incidents.filter((it) => !it.closed_ms);
  const closed = state.incidents.filter((it) => it.closed_ms);
  return [
    open.length === 0 && h("p", { key: "none" }, chip("ok", "none open")),
    open.map((it) => incidentView(it)),
    closed.length > 0 && fold("closed-incidents", false, [h("span", {}, plural(closed.length, "closed incident"))],
      () => closed.map((it) => incidentView(it))),
  ];
}

function incidentView(it) {
  const scope = { kind: "incident", id: it.id };
  return h("article.incident", { key: it.id, class: it.closed_ms ? "plain" : "bad", "aria-label": "Incident " + it.id },
    h("h3", {}, it.title || "no title"),
    h("p.note", {}, it.scope + " · signal: " + it.signal + " · opened ", since(it.opened_ms), it.closed_ms && [" · closed ", since(it.closed_ms)]),
    h("p", {}, it.affected ? h("span.toned", {}, plural(it.affected, "request") + it.whose + " may have got text that was not theirs")
      : it.affected === null ? "Nobody has looked for those who are affected: ask cofferdam watch about the access log" : "No request is known to be affected"),
    h("p.note", {}, h("code", {}, it.id), it.lives.length > 0 && [" · lives ", h("code", {}, it.lives.map((life) => life.slice(0, 12)).join(" "))]),
    it.next.length > 0 && [h("h4", { key: "next" }, "What to do next"), h("ol.next", {}, it.next.map((words) => h("li", {}, commands(words))))],
    !it.closed_ms && h("div.row", {}, actButton("Note or close…", scope, { "aria-label": "Note or close incident " + it.id })),
    it.actions.length > 0 && [h("h4", { key: "done" }, "What was done"),
      h("ul.timeline", {}, it.actions.map((entry) => h("li", {},
        h("time", { datetime: new Date(entry.at_ms).toISOString(), title: utc(entry.at_ms) }, clock(entry.at_ms)),
        h("span", {}, entry.what + " · " + entry.by, h("span.under", {}, entry.why)))))]);
}

// ---- the fleet ----------------------------------------------------------------------------------

// An engine's rank, and the words of its chip.
function engineRank(engine, model) {
  const found = engine.verdicts[0]?.result === "found";
  const access = closest(engine.standing, model.standing);
  if (found && reachable(engine.standing, model.standing)) return ["bad", access === "open" ? "suspect" : access];
  if (access !== "open") return [OF_ACCESS[access], access];
  if (engine.readiness) return ["look", "away"];
  return [holdsLess(engine) ? "look" : "ok", "open"];
}

const holdsLess = (engine) => engine.pool_tokens !== null && engine.context_tokens !== null && engine.pool_tokens < engine.context_tokens;

function pairRank(pair, doors) {
  if (pair.canaries.seen && reachable(pair.standing, ...doors)) return ["bad", "suspect"];
  const access = closest(pair.standing, ...doors);
  return [OF_ACCESS[access], access];
}

// Engines and pairs by group, worst group first; what a filter leaves of them.
function groupsOf(state, filter) {
  const groups = new Map();
  const byName = new Map();
  for (const engine of state.engines) {
    if (!groups.has(engine.group)) groups.set(engine.group, { id: engine.group, rank: "ok", engines: [], pairs: [], max: 1 });
    const group = groups.get(engine.group);
    const [rank, words] = engineRank(engine, state.model);
    group.engines.push({ engine, rank, words });
    group.rank = worse(group.rank, rank);
    group.max = Math.max(group.max, engine.pool_tokens ?? 0, engine.context_tokens ?? 0);
    byName.set(engine.name, { engine, group });
  }
  for (const pair of state.pairs) {
    const ends = [byName.get(pair.prefill), byName.get(pair.decode)];
    const group = ends[0]?.group ?? ends[1]?.group;
    if (!group) continue;
    const [rank, words] = pairRank(pair, [state.model.standing, ...ends.filter(Boolean).map((it) => it.engine.standing)]);
    group.pairs.push({ pair, rank, words });
    group.rank = worse(group.rank, rank);
  }
  for (const group of groups.values()) {
    const worst = (a, b) => RANKS[b.rank].order - RANKS[a.rank].order;
    group.all = group.engines.slice();
    if (filter) {
      const has = ({ engine: e }) => [e.name, e.url, e.life, e.software, e.version, "group " + e.group].join(" ").toLowerCase().includes(filter);
      group.engines = group.engines.filter(has);
      const names = new Set(group.engines.map((it) => it.engine.name));
      group.pairs = group.pairs.filter(({ pair }) => names.has(pair.prefill) || names.has(pair.decode));
    }
    group.engines.sort(worst);
    group.pairs.sort(worst);
  }
  const left = [...groups.values()].filter((it) => it.engines.length);
  return left.sort((a, b) => RANKS[b.rank].order - RANKS[a.rank].order || a.id - b.id);
}

function fleetView({ state }, filter) {
  const groups = groupsOf(state, filter);
  const standings = new Map(state.engines.map((it) => [it.name, it.standing]));
  const doors = (pair) => [state.model.standing, pair.standing, standings.get(pair.prefill), standings.get(pair.decode)].filter(Boolean);
  const few = state.engines.length <= 12 && !narrow.matches;
  const count = (test) => state.engines.filter(test).length;
  const shut = state.pairs.filter((it) => closest(...doors(it)) !== "open").length;
  const away = count((it) => it.readiness);
  const less = count(holdsLess);
  return [
    h("p.summary", { key: "summary" },
      h("span", {}, plural(state.engines.length, "engine") + " in " + plural(new Set(state.engines.map((it) => it.group)).size, "group")),
      h("span", {}, plural(state.pairs.length - shut, "pair") + " open"),
      shut > 0 && chip("held", plural(shut, "pair") + " shut"),
      away > 0 && chip("look", plural(away, "engine") + " away"),
      less > 0 && chip("look", less + (less === 1 ? " holds" : " hold") + " less than promised")),
    groups.length === 0 && h("p", { key: "none" }, state.engines.length ? "Nothing has that in its name, address, group, version or life." : "No engine is known yet."),
    groups.map((group) => fold("group-" + group.id, few || filter !== "" || group.rank === "bad" || (group.rank === "held" && groups.length <= 30),
      [h("h3", {}, "Group " + group.id), chip(group.rank, GROUP_WORDS[group.rank]), dotsOf(group.all),
        h("span.note", {}, plural(group.all.length, "engine") + ", " + plural(group.pairs.length, "pair"))],
      () => [folded("engines", group, group.engines, enginesTable), folded("pairs", group, group.pairs, pairsTable)], "group")),
  ];
}

// Those that are well are folded away where they are many.
function folded(what, group, rows, table) {
  const well = rows.filter((it) => it.rank === "ok");
  if (rows.length <= 12 && well.length <= 6) return rows.length > 0 && table(group, rows, "");
  const rest = rows.filter((it) => it.rank !== "ok");
  return [rest.length > 0 && table(group, rest, ""),
    fold(`well-${what}-${group.id}`, false, [h("span.note", {}, plural(well.length, what.slice(0, -1)) + (well.length === 1 ? " is" : " are") + " well")], () => table(group, well, " that are well"))];
}

const narrow = matchMedia("(max-width: 41.99rem)");
const GROUP_WORDS = { ok: "well", plain: "not known", look: "look at it", held: "shut", bad: "suspect" };

const dotsOf = (engines) => h("span.dots", { "aria-hidden": "true" }, engines.map(({ engine, rank }) => h("i", { key: engine.name, class: rank, title: engine.name })));

const cells = (names) => h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, names.map((it) =>
  h("th", { scope: "col", role: "columnheader", class: it.num ? "num" : "" }, it.num ?? it))));
const td = (head, ...kids) => h("td", { role: "cell", "data-head": head || false }, ...kids);
const th = (...kids) => h("th", { scope: "row", role: "rowheader" }, ...kids);

function enginesTable(group, rows, more) {
  return h("table.stack", { key: "engines" + more, role: "table", "aria-label": `Engines of group ${group.id}${more}` },
    cells(["Engine", "Pool against context", "Last verdict", { num: "Runs" }, "Act"]),
    h("tbody", { role: "rowgroup" }, rows.map(({ engine, rank, words }) => h("tr", { key: engine.name, role: "row" },
      th(engine.name, " ", chip(rank, words),
        h("span.under", {}, `${engine.role} · ${engine.software || "unknown"} ${engine.version}`),
        h("span.under", { title: engine.life }, "life ", h("code", {}, engine.life.slice(0, 12) || "not known"), engine.since_ms && ", " + ago(engine.since_ms)),
        why(engine.standing, engine.readiness)),
      h("td.capacity", { role: "cell" }, capacity(engine, group.max)),
      td("", verdict(engine)),
      h("td.num", { role: "cell", "data-head": "Runs" }, number(engine.running)),
      td("", actButton("Act…", { kind: "engine", name: engine.name }, { "aria-label": "Act on engine " + engine.name }))))));
}

const why = (standing, readiness) => [
  readiness && h("span.under.toned.look", { key: "ready" }, readiness),
  standing.access !== "open" && h("span.under", { key: "why" }, (standing.why ?? "nobody said why") + (standing.since_ms ? ", " + ago(standing.since_ms) + " ago" : "")),
];

function verdict(engine) {
  const last = engine.verdicts[0];
  if (!last) return h("span.note", {}, "none yet");
  const rank = { clean: "ok", unknown: "plain", found: "bad" }[last.result];
  return [h("span.toned", { key: "what", class: rank }, { clean: "clean: ", unknown: "could not tell: ", found: "found: " }[last.result]), last.what,
    h("span.under", { key: "source" }, last.source + ", ", since(last.at_ms), engine.verdicts.length > 1 && `; before it ${engine.verdicts[1].source}: ${engine.verdicts[1].result}`)];
}

function capacity(engine, max) {
  const { pool_tokens: pool, context_tokens: context, max_prompt_tokens: limit } = engine;
  const of = (n) => ((n ?? 0) / max) * 100;
  const less = holdsLess(engine);
  return [
    `${number(pool)} / ${number(context)}`,
    h("svg.meter", { key: "meter", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      h("rect.pool", { x: 0, y: 0, width: of(pool), height: 8 }),
      less && h("rect.gap", { key: "gap", x: of(pool), y: 0, width: of(context) - of(pool), height: 8 }),
      context && h("line.context", { x1: of(context), x2: of(context), y1: 0, y2: 8 })),
    h("span.under", { key: "limit" }, "prompts up to " + number(limit)),
    less && h("span.under.toned.look", { key: "less" }, "promises more than it holds"),
  ];
}

function pairsTable(group, rows, more) {
  return h("table.stack", { key: "pairs" + more, role: "table", "aria-label": `Pairs of group ${group.id}${more}` },
    cells(["Pair", "Canaries", { num: "Requests" }, "Act"]),
    h("tbody", { role: "rowgroup" }, rows.map(({ pair, rank, words }) => h("tr", { key: pair.prefill + " " + pair.decode, role: "row" },
      th(pairName(pair), " ", chip(rank, words), why(pair.standing)),
      td("Canaries", number(pair.canaries.sent) + " sent, ", h("span", { class: pair.canaries.seen ? "toned bad" : "" }, findings(pair.canaries.seen)),
        h("span.under", {}, pair.canaries.last_ms ? ["last ", since(pair.canaries.last_ms)] : "none yet")),
      h("td.num", { role: "cell", "data-head": "Requests" }, number(pair.requests)),
      td("", actButton("Act…", { kind: "pair", prefill: pair.prefill, decode: pair.decode }, { "aria-label": `Act on pair ${pairName(pair)}` }))))));
}

// ---- beside it ----------------------------------------------------------------------------------

const listed = (rows) => h("dl.pairs-of", {}, rows.filter(Boolean).map(([name, ...value]) => [h("dt", { key: "t " + name }, name), h("dd", { key: "d " + name }, ...value)]));

function modelView({ state: { model, version } }) {
  const { access } = model.standing;
  return [
    listed([
      ["Name", model.name || "not known"],
      ["Door", chip(OF_ACCESS[access], access), access !== "open" && h("span.under", {}, (model.standing.why ?? "nobody said why") + (model.standing.since_ms ? ", " + ago(model.standing.since_ms) + " ago" : ""))],
      ["Prompts", model.max_prompt_tokens === null ? "limit not known" : "up to " + number(model.max_prompt_tokens) + " tokens"],
      ["Context", model.max_model_len === null ? "not known" : number(model.max_model_len) + " tokens"],
      ["State", model.readiness === "ready" ? "ready" : chip("look", model.readiness || "not known")],
      ["Server", "cofferdam " + version],
    ]),
    h("h3.sub", { key: "h" }, "Evidence for the lives that run"),
    model.evidence.length === 0 ? h("p.note", { key: "none" }, "None has been given, and none was asked for.")
      : h("ul.proof", {}, model.evidence.map((it) => h("li", {}, chip(it.missing ? "look" : "ok", it.kind), " ", it.missing ?? "counts",
        h("span.under", {}, "life ", h("code", {}, it.life.slice(0, 12)), ", ", since(it.at_ms))))),
    h("div.row.spaced", {}, actButton("Act on the model…", { kind: "model" })),
  ];
}

function canariesView({ state: { canaries } }) {
  if (!canaries) return [h("p", {}, chip("look", "off"), " Nobody looks whether answers are mixed up.")];
  const figure = (name, n, rank) => h("div", { class: rank }, h("dt", {}, name), h("dd", {}, number(n)));
  return [
    canaries.paused && h("p", { key: "paused" }, chip("look", "stand still"), " " + canaries.paused),
    canaries.untested && h("p", { key: "untested" }, chip("look", "not tested"), " " + canaries.untested),
    h("dl.big", {}, figure("sent", canaries.sent), figure("answered", canaries.answered),
      figure(canaries.seen === 1 ? "finding" : "findings", canaries.seen, canaries.seen ? "bad" : "ok")),
    canaries.windows.map((it) => h("p.spaced", { key: it.name }, `Last ${it.name}: ` + (it.found ? plural(it.found, "finding") : it.one_in
      ? `a leak in more than one of ${number(it.one_in)} answers would have been seen` : "too few answers to say anything"),
    h("span.under", {}, `${plural(it.answers, "answer")} looked through, 95 %`))),
    h("p.note", { key: "budget" }, `at most ${number(canaries.tokens_minute)} tokens a minute`),
  ];
}

function ttftView({ state: { ttft } }, wide) {
  const { points, floor } = ttft;
  if (points.length === 0) return [h("p.note", {}, "No request has been timed yet.")];
  const width = Math.max(260, Math.min(wide, 700)), height = 200, left = 44, bottom = 34, top = 8;
  const lengths = [...points, ...floor].map((it) => it[0]);
  const maxX = nice(Math.max(...lengths, 1)), maxY = nice(Math.max(...points.map((it) => it[1]), ...floor.map((it) => it[1]), 1));
  const x = (n) => +(left + (n / maxX) * (width - left - 10)).toFixed(1);
  const y = (n) => +(height - bottom - (n / maxY) * (height - bottom - top)).toFixed(1);
  const below = points.filter((it) => it[1] < floorAt(floor, it[0]));
  const marks = [0, 0.5, 1];
  const tooFast = below.length ? plural(below.length, "answer") + " came sooner than the prompt can have been computed" : "none came sooner than the floor";
  return [
    h("svg.chart", { key: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Time to first token against tokens to compute, ${points.length} requests; ${tooFast}` },
      marks.map((it) => h("line.grid", { key: "g" + it, x1: left, x2: width - 10, y1: y(it * maxY), y2: y(it * maxY) })),
      marks.map((it) => h("text", { key: "y" + it, x: left - 6, y: y(it * maxY) + 4, "text-anchor": "end" }, milliseconds(it * maxY))),
      marks.map((it) => h("text", { key: "x" + it, x: x(it * maxX), y: height - bottom + 15, "text-anchor": it ? (it === 1 ? "end" : "middle") : "start" }, number(it * maxX))),
      h("text", { key: "unit", x: width - 10, y: height - 3, "text-anchor": "end" }, "tokens to compute"),
      h("path.points", { d: points.map((it) => `M${x(it[0])} ${y(it[1])}h0`).join("") }),
      floor.length > 0 && h("path.floor", { key: "floor", d: "M" + floor.map((it) => `${x(it[0])} ${y(it[1])}`).join("L") }),
      h("path.below", { key: "below", d: below.map((it) => `M${x(it[0]) - 4} ${y(it[1]) - 4}l8 8m0 -8l-8 8`).join("") })),
    h("p", { key: "said", class: below.length ? "toned bad" : "note" }, `${plural(points.length, "request")}; ${tooFast}.`),
    h("p.note", { key: "floor-said" }, floor.length ? "Dashed: the least time that a prompt of that length takes, as learned." : "The floor is not learned yet."),
  ];
}

const milliseconds = (n) => (n >= 1000 ? n / 1000 + " s" : n + " ms");
function nice(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 4, 5, 6, 8, 10].map((it) => it * power).find((it) => it >= n) ?? n;
}
function floorAt(floor, tokens) {
  const above = floor.findIndex((it) => it[0] >= tokens);
  if (above < 0 || floor.length < 2) return -Infinity; // beyond what was learned
  if (above === 0) return floor[0][0] === tokens ? floor[0][1] : -Infinity;
  const [[x0, y0], [x1, y1]] = [floor[above - 1], floor[above]];
  return y0 + ((tokens - x0) / (x1 - x0 || 1)) * (y1 - y0);
}

const PAGES = ["free", "reserved", "granted", "sealed", "cached", "quarantined"];

function poolsView({ state: { pools } }) {
  if (pools.length === 0) return [h("p.note", {}, "None of the engines is ours; how others keep their pages cannot be seen.")];
  const held = pools.slice().sort((a, b) => b.pages.quarantined - a.pages.quarantined);
  const show = (pool) => {
    const all = PAGES.reduce((sum, it) => sum + pool.pages[it], 0) || 1;
    let x = 0;
    const parts = PAGES.map((it) => {
      const width = (pool.pages[it] / all) * 100;
      const part = h("rect", { key: it, class: it, x, y: 0, width, height: 10 });
      x += width;
      return part;
    });
    return h("div.pool", { key: pool.engine },
      h("h3", {}, pool.engine, " ", h("span.note", {}, `${number(all)} pages of ${pool.page_size} tokens`)),
      h("svg.stackbar", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, parts),
      h("ul.legend", {}, PAGES.map((it) => h("li", { key: it }, h("i", { class: it, "aria-hidden": "true" }), `${it} ${number(pool.pages[it])}`))),
      pool.quarantine.map((it) => h("p", { key: it.reason }, chip("look", plural(it.pages, "page") + " in quarantine"), " ", it.reason, h("span.under", {}, "the oldest since " + ago(it.since_ms)))));
  };
  const first = held.slice(0, 4), rest = held.slice(4);
  return [first.map(show), rest.length > 0 && fold("pools-rest", false, [h("span", {}, plural(rest.length, "pool") + " more")], () => rest.map(show))];
}

function runningView({ state: { running } }) {
  const { handoffs } = running;
  return [
    h("p", { key: "sum" }, `${plural(running.requests, "request")}, ${number(running.queued)} waiting; ${plural(handoffs.length + running.more, "handoff")}.`),
    handoffs.length > 0 && fold("handoffs", handoffs.length <= 8, [h("span", {}, "Handoffs, oldest first")], () => h("table", { role: "table", "aria-label": "Handoffs in flight, oldest first" },
      cells(["Request", "Stage", { num: "For" }]),
      h("tbody", { role: "rowgroup" }, handoffs.map((it) => h("tr", { key: it.request, role: "row" },
        th(h("code", { title: it.request }, it.request.slice(-10)), h("span.under", {}, pairName(it))),
        td("", it.stage), h("td.num", { role: "cell" }, it.since_ms > 0 ? ago(it.since_ms) : "–")))))),
    running.more > 0 && h("p.note", { key: "more" }, `and ${number(running.more)} more`),
  ];
}

function journalView({ state: { journal } }) {
  return [
    journal.trouble && h("p", { key: "trouble" }, chip("bad", "cannot be written"), " " + journal.trouble),
    !journal.path && h("p", { key: "none" }, chip("look", "none"), " What happens here is not written down."),
    listed([
      journal.path && ["File", h("code", {}, journal.path)],
      ["Not on disk yet", number(journal.pending)],
      journal.head && ["Newest hash", h("code", {}, journal.head)],
    ]),
  ];
}
