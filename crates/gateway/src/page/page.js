"use strict";
// Everything that comes from the server is shown as text (textContent), never as markup. The key is
// in this variable and nowhere else: no storage, no address.
const QUESTION = "What is the capital of Japan?";
let key = "";
let model = "";
let turns = [];
let running = null;

const $ = (id) => document.getElementById(id);
const head = () => (key ? { authorization: "Bearer " + key } : {});

async function said(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "status " + response.status;
  }
}

function state(text, kind) {
  $("state").textContent = text;
  $("state").className = "state " + kind;
}

async function look() {
  try {
    const response = await fetch("/readyz");
    if (!response.ok) return state("not ready: " + (await said(response)), "bad");
    const away = (await response.json()).away || [];
    state(away.length ? "ready, without " + away.join(", ") : "ready", "good");
  } catch {
    state("it does not answer", "bad");
  }
}

async function meet() {
  let response;
  try {
    response = await fetch("/v1/models", { headers: head() });
  } catch {
    return;
  }
  const locked = response.status === 401;
  if (locked) $("access").hidden = false;
  for (const id of ["facts", "talk", "terminal"]) $(id).hidden = !response.ok;
  if (!response.ok) {
    if (key || !locked) $("access-note").textContent = await said(response);
    return;
  }
  if (key) $("access-note").textContent = "The key is good. It stays in this page’s memory only.";
  const card = (await response.json()).data[0];
  model = card.id;
  const tokens = (n) => (n ? n.toLocaleString("en") + " tokens" : "not measured yet");
  $("model").textContent = model;
  $("context").textContent = tokens(card.max_model_len) + ", prompt and answer together";
  $("prompt").textContent = tokens(card.max_prompt_tokens) + " at most";
  $("base").textContent = location.origin + "/v1";
  $("curl").textContent = command(key && "•".repeat(8));
  $("copied").textContent = key ? "The copy has your key in it." : "";
}

function command(shown) {
  const body = { model, temperature: 0, messages: [{ role: "user", content: QUESTION }] };
  const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";
  return [
    "curl " + location.origin + "/v1/chat/completions",
    ...(shown ? ["-H " + quoted("authorization: Bearer " + shown)] : []),
    "-H 'content-type: application/json'",
    "-d " + quoted(JSON.stringify(body)),
  ].join(" \\\n  ");
}

function line(role, text) {
  const item = document.createElement("li");
  item.className = role;
  item.textContent = text;
  $("said").append(item);
  return item;
}

// The events of a stream; one that ends without [DONE] is no answer.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The answer was broken off.");
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const data = text.slice(0, end).replace(/^data: /, "");
      text = text.slice(end + 2);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function ask(words) {
  turns.push({ role: "user", content: words });
  line("user", words);
  const item = line("assistant", "…");
  let answer = "";
  running = new AbortController();
  busy(true);
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { ...head(), "content-type": "application/json" },
      body: JSON.stringify({ model, temperature: 0, messages: turns, stream: true }),
      signal: running.signal,
    });
    if (!response.ok) throw new Error(await said(response));
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      const piece = event.choices[0]?.delta.content;
      if (piece) item.textContent = answer += piece;
    }
  } catch (error) {
    if (error.name !== "AbortError") line("fault", error.message);
  }
  if (answer) {
    turns.push({ role: "assistant", content: answer });
  } else {
    item.remove();
    turns.pop();
  }
  running = null;
  busy(false);
  look();
}

function busy(yes) {
  $("send").disabled = $("clear").disabled = yes;
  $("stop").hidden = !yes;
}

$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  meet();
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const words = $("words").value.trim();
  if (!words || running) return;
  $("words").value = "";
  ask(words);
});
$("words").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  turns = [];
  $("said").replaceChildren();
});
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(command(key));
    $("copied").textContent = "Copied.";
  } catch {
    $("copied").textContent = "This browser does not let the page copy; select the text.";
  }
});
setInterval(() => document.hidden || running || look(), 15000);
$("words").value = QUESTION;
look();
meet();
