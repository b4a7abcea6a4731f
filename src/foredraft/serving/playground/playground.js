// The playground: sends a prompt and shows the answer while it streams, each token in the colour of its drafter.
// What a model wrote becomes text nodes and titles only, never markup.

const COLOURS = 7; // classes drafter-0 to drafter-6 of the style sheet; later drafters share them, with dashed lines
const KEY = "foredraft.api_key";
const PATHS = { chat: "v1/chat/completions", text: "v1/completions" };

const find = (id) => document.getElementById(id);
const now = () => performance.now() / 1000; // seconds

/** A new element with classes and text. */
function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

// What is wrong, in one line a reader understands.

class Failure extends Error {}
async function refusal(response) {
  const keyed = find("api-key").value ? "does not accept the API key" : "asks for an API key: fill in its field";
  if (response.status === 401) return new Failure(`This server ${keyed}.`);
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `The server answered ${response.status} ${response.statusText}.`;
  const later = response.headers.get("Retry-After");
  return new Failure(later ? `${message} Try again in ${later} s.` : message);
}

function lineOf(error) {
  const message = error instanceof Failure ? error.message : `The page failed: ${error.message}`;
  return message.replaceAll(/\s+/g, " ");
}

// The server.

/** A fetch or a read that failed: browsers tell a lost connection by a TypeError. */
function lost(error) {
  throw error instanceof TypeError ? new Failure("The server cannot be reached, or it closed the connection.") : error;
}

async function ask(path, options = {}) {
  const key = find("api-key").value;
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers }).catch(lost);
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Objects of an event stream with the second each came at. Throws `Failure` for an error and a stream cut short. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch(lost);
    if (done) throw new Failure("The server closed the stream before the text was finished.");
    const at = now();
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const data of blocks.map(dataOf).filter(Boolean)) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Failure(event.error.message ?? "The server failed while it wrote.");
      yield [event, at];
    }
  }
}

/** The data of one event, a line of JSON; undefined for a comment such as ": waiting". */
const dataOf = (block) => block.match(/^data: ?(.*)/m)?.[1];

let model = null;

async function readModel() {
  model = (await (await ask("v1/models")).json()).data[0].id;
  find("model").textContent = model;
}

// The controls.

/** Request body for a way to decode; `task` is {mode, prompt, messages}. */
function bodyOf(task, speculate, seed) {
  const body = {
    model,
    stream: true,
    stream_options: { include_usage: true },
    return_drafts: true,
    return_statistics: true,
    temperature: Number(find("temperature").value),
    max_tokens: Number(find("max-tokens").value),
  };
  if (seed !== null) body.seed = seed;
  if (!speculate) body.speculation = { enabled: false };
  return task.mode === "chat" ? { ...body, messages: task.messages } : { ...body, prompt: task.prompt };
}

/** The seed of a request; one for both texts where they are to be compared, null for a fresh one of the server's. */
function seedOf(compare) {
  const given = find("seed").value;
  if (given) return Number(given);
  return compare ? crypto.getRandomValues(new Uint32Array(1))[0] : null;
}

// Tokens and their colours.

const colours = new Map(); // drafter -> place in the order they were first seen on this page

function colourOf(drafter) {
  if (drafter === null) return "";
  if (!colours.has(drafter)) colours.set(drafter, colours.size);
  const place = colours.get(drafter);
  return `drafter-${place % COLOURS}${place < COLOURS ? "" : " dashed"}`;
}

/**
 * Cut new text into the pieces that its tokens wrote: [[text, drafter], ...]. Tokens whose text is still held back stay
 * in `waiting`. Where tokens do not join to the text, as when two of them make one letter, the rest is the first one's.
 */
function piecesOf(text, waiting) {
  const pieces = [];
  let rest = text;
  while (rest && waiting.length) {
    const token = waiting[0];
    const whole = [token.text, ` ${token.text}`].find((written) => rest.startsWith(written));
    const part = whole ?? rest;
    if (part) pieces.push([part, token.drafter]);
    rest = rest.slice(part.length);
    if (whole !== undefined) waiting.shift();
    else if (token.text.startsWith(part)) token.text = token.text.slice(part.length);
    else waiting.length = 0;
  }
  if (rest) pieces.push([rest, null]);
  return pieces;
}

/** A rejected token as it is shown: white space by its signs, so that it does not move the text. */
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "→").replaceAll(/^ +$/g, "␣");

// One text while it is written.

class Writing {
  text = "";
  tokens = 0;
  steps = 0; // forwards of the target that wrote something
  firstTokens = 0; // tokens that came at once with the first of them
  firstAt = null;
  lastAt = null;
  finish = null;
  usage = null;
  statistics = null;
  byDrafter = new Map(); // name, null for the target -> {accepted, rejected}
  waiting = [];
  startedAt = now();

  constructor(view) {
    this.view = view;
  }

  take(event, at) {
    const choice = event.choices?.[0];
    this.usage = event.usage ?? this.usage;
    this.statistics = event.metrics?.speculative_decoding ?? this.statistics;
    if (!choice) return;
    this.finish = choice.finish_reason ?? this.finish;
    this.step(choice.delta?.content ?? choice.text ?? "", choice.foredraft ?? {}, at);
  }

  step(text, { tokens = [], rejected = [] }, at) {
    if (tokens.length) this.count(tokens.length, at);
    for (const token of tokens) this.countsOf(token.drafter).accepted += 1;
    for (const token of rejected) this.countsOf(token.drafter).rejected += 1;
    this.waiting.push(...tokens);
    this.text += text;
    this.view.add(piecesOf(text, this.waiting), rejected);
  }

  count(tokens, at) {
    this.firstAt ??= at;
    this.lastAt = at;
    this.tokens += tokens;
    this.steps += 1;
    if (at === this.firstAt) this.firstTokens = this.tokens;
  }

  countsOf(drafter) {
    if (!this.byDrafter.has(drafter)) this.byDrafter.set(drafter, { accepted: 0, rejected: 0 });
    return this.byDrafter.get(drafter);
  }

  /** Tokens for each forward of the target. */
  get tau() {
    return this.steps ? this.tokens / this.steps : null;
  }

  /** Tokens a second after the first piece; null for a text of one piece. */
  get rate() {
    return this.lastAt > this.firstAt ? (this.tokens - this.firstTokens) / (this.lastAt - this.firstAt) : null;
  }
}

/** Where a text appears: a column of an article. What is added shows with the next `flush`. */
class Column {
  fresh = document.createDocumentFragment();
  body = element("div", "written");
  foot = element("p", "foot");

  constructor(parent, title) {
    const root = element("div", "column");
    if (title) root.append(element("h3", "", title));
    root.append(this.body, this.foot);
    follow(() => parent.append(root));
  }

  add(pieces, rejected) {
    for (const [text, drafter] of pieces) this.fresh.append(this.token("span", "token", text, drafter));
    for (const token of rejected) {
      const dropped = this.token("del", "rejected", visible(token.text), token.drafter);
      dropped.title = `${token.drafter} guessed this ${token.depth} ahead; the target did not say it`;
      this.fresh.append(dropped);
    }
  }

  flush() {
    follow(() => this.body.append(this.fresh));
  }

  token(tag, className, text, drafter) {
    const shown = element(tag, `${className} ${colourOf(drafter)}`.trim(), text);
    shown.title = drafter === null ? "the target's own" : `drafted by ${drafter}`;
    return shown;
  }

  close(writing, stopped) {
    const ending = stopped ? "stopped" : writing.finish ?? "cut short";
    const figures = [`${writing.tokens} tokens`, `tau ${decimals(writing.tau, 2)}`];
    follow(() => (this.foot.textContent = [...figures, `${decimals(writing.rate, 1)} tokens/s`, ending].join(" · ")));
  }
}

/** Change the transcript and stay at its end, if the reader was there. */
function follow(change) {
  const box = find("transcript");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60; // pixels
  change();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

// Figures beside the text.

const decimals = (value, places) => value?.toFixed(places) ?? "–";
const percent = (share) => `${Math.round(share * 100)} %`;

function duration(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(2)} s`;
}

function showFigures(writing) {
  find("tau").textContent = decimals(writing.tau, 2);
  find("rate").textContent = decimals(writing.rate, 1);
  find("wait").textContent = duration(writing.firstAt && writing.firstAt - writing.startedAt);
  find("count").textContent = writing.steps ? `${writing.tokens} / ${writing.steps}` : "–";
  const drafters = [...writing.byDrafter].sort(([first], [second]) => (first === null) - (second === null));
  find("legend").tBodies[0].replaceChildren(...drafters.map(([drafter, counts]) => legendRow(drafter, counts)));
}

function legendRow(drafter, { accepted, rejected }) {
  const name = element("span", `token ${colourOf(drafter)}`, drafter ?? "the target's own");
  const share = drafter === null ? "" : percent(accepted / (accepted + rejected));
  return row(name, String(accepted), share);
}

function row(head, ...cells) {
  const [made, name] = [element("tr"), element("th")];
  name.scope = "row";
  name.append(head);
  made.append(name, ...cells.map((cell) => element("td", "", cell)));
  return made;
}

let frame = 0; // the browser's next one, where something waits to be drawn in it

/** Draw with the browser's next frame, however many steps come before it: layout costs more than a step. */
function drawSoon(writing) {
  frame ||= requestAnimationFrame(() => draw(writing));
}

function draw(writing) {
  cancelAnimationFrame(frame);
  frame = 0;
  writing.view?.flush();
  showFigures(writing);
  showReport(writing);
}

const cachedOf = (details) => (details?.cached_tokens ? `, ${details.cached_tokens} cached` : "");
const shareOf = (part, whole) => (whole ? `${part} of ${whole} (${percent(part / whole)})` : "none drafted");

/** Ways to draft by how often the policy chose them, a line each. */
function chosen(choices) {
  const often = Object.entries(choices).sort(([, first], [, second]) => second - first);
  const all = often.reduce((sum, [, count]) => sum + count, 0);
  return often.map(([way, count]) => `${percent(count / all)} ${way}`).join("\n");
}

/** Rows of the table at the end: what each is called, and how the server's numbers are said; empty leaves it out. */
const ROWS = [
  ["prompt tokens", (_, usage) => usage && usage.prompt_tokens + cachedOf(usage.prompt_tokens_details)],
  ["tau", (s) => decimals(s.tau, 2)],
  ["drafts accepted", (s) => shareOf(s.num_accepted_draft_tokens, s.num_draft_tokens)],
  ["drafting", (s) => duration(s.draft_seconds)],
  ["verifying", (s) => duration(s.verify_seconds)],
  ["all else", (s) => duration(s.other_seconds)],
  ["speed-up, est.", (s) => (s.estimated_speed_up ? `${s.estimated_speed_up.toFixed(2)} ×` : "")],
  ["policy chose", (s) => chosen(s.choices ?? {})],
];

function showReport({ statistics, usage }) {
  find("report").hidden = !statistics;
  if (!statistics) return;
  const rows = ROWS.map(([name, say]) => [name, say(statistics, usage)]).filter(([, said]) => said);
  find("statistics").tBodies[0].replaceChildren(...rows.map(([name, said]) => row(name, said)));
  showPositions(statistics.acceptance_per_position ?? []);
}

function showPositions(shares) {
  find("positions-part").hidden = !shares.length;
  find("positions").ariaLabel = shares.map((share, place) => `position ${place + 1}: ${percent(share)}`).join(", ");
  find("positions").replaceChildren(...shares.map((share, place) => {
    const [column, track, bar] = ["position", "track", "bar"].map((className) => element("div", className));
    bar.style.height = `${share * 100}%`;
    track.append(bar);
    column.append(track, element("span", "", String(place + 1)));
    column.title = `position ${place + 1}: ${percent(share)} accepted`;
    return column;
  }));
}

// Sending.

let messages = []; // the conversation so far, chat mode only
let abort = null; // of what is being written now

function busy(working) {
  const [shown, gone] = working ? [find("stop"), find("send")] : [find("send"), find("stop")];
  const focused = document.activeElement === gone;
  [shown.hidden, gone.hidden] = [false, true];
  find("clear").disabled = find("modes").disabled = working;
  if (focused) shown.focus();
}

function complain(line) {
  find("error").textContent = line;
  find("error").hidden = !line;
}

/** Write one text into a column, until it ends or the reader stops it. Throws what went wrong. */
async function write(task, speculate, seed, column) {
  const writing = new Writing(column);
  const options = { method: "POST", body: JSON.stringify(bodyOf(task, speculate, seed)), signal: abort.signal };
  draw(writing);
  find("state").textContent = speculate ? "writing" : "writing without speculation";
  try {
    for await (const [event, at] of eventsOf(await ask(PATHS[task.mode], options))) {
      writing.take(event, at);
      drawSoon(writing);
    }
  } catch (error) {
    if (!abort.signal.aborted) throw error;
  } finally {
    draw(writing);
    column.close(writing, abort.signal.aborted);
  }
  return writing;
}

/** The prompt without speculation and then with it, side by side. Returns the second, or the one stopped. */
async function writeBoth(task, article) {
  const seed = seedOf(true);
  const columns = article.appendChild(element("div", "columns"));
  const [left, right] = ["without speculation", "with speculation"].map((title) => new Column(columns, title));
  const plain = await write(task, false, seed, left);
  if (abort.signal.aborted) return plain;
  const drafted = await write(task, true, seed, right);
  if (abort.signal.aborted) return drafted;
  follow(() => article.append(element("p", "verdict", verdictOf(plain, drafted))));
  return drafted;
}

/** One line: whether both texts are the same, and the ratio of their speeds. */
function verdictOf(plain, drafted) {
  const [ours, theirs] = [[...drafted.text], [...plain.text]];
  const differs = ours.findIndex((letter, index) => letter !== theirs[index]);
  const place = differs < 0 ? ours.length : differs;
  const differing = `Not identical from character ${place + 1} on.`;
  const line = plain.text === drafted.text ? `Identical: all ${place} characters are the same.` : differing;
  if (!plain.rate || !drafted.rate) return line;
  const speeds = `${decimals(plain.rate, 1)} and ${decimals(drafted.rate, 1)} tokens/s`;
  return `${line} ${speeds}, ratio ${decimals(drafted.rate / plain.rate, 2)}.`;
}

function newArticle(task) {
  const article = element("article");
  article.append(element("p", `asked ${task.mode}`, task.prompt));
  article.setAttribute("aria-busy", "true");
  find("welcome").hidden = true;
  find("transcript").append(article);
  find("transcript").scrollTop = find("transcript").scrollHeight;
  return article;
}

/** Send what is typed. A prompt that got no answer goes back to where it was typed. */
async function send() {
  if (abort || !find("composer").reportValidity()) return;
  const prompt = find("prompt").value;
  const mode = document.querySelector("input[name=mode]:checked").value;
  const task = { mode, prompt, messages: [...messages, { role: "user", content: prompt }] };
  abort = new AbortController();
  complain("");
  find("state").textContent = "sending";
  busy(true);
  find("prompt").value = "";
  const article = newArticle(task);
  try {
    answered(task, article, await written(task, article));
  } catch (error) {
    find("state").textContent = "failed";
    complain(lineOf(error));
    takeBack(task, article);
    model = null; // whatever runs there now is asked anew
  } finally {
    article.setAttribute("aria-busy", "false");
    abort = null;
    busy(false);
  }
}

async function written(task, article) {
  if (model === null) await readModel();
  if (find("compare").checked) return await writeBoth(task, article);
  return await write(task, find("speculation").checked, seedOf(false), new Column(article, ""));
}

function answered(task, article, writing) {
  find("state").textContent = abort.signal.aborted ? "stopped" : "done";
  if (!writing.text && abort.signal.aborted) takeBack(task, article);
  else if (task.mode === "chat") messages = [...task.messages, { role: "assistant", content: writing.text }];
}

/** The prompt goes back to where it was typed; what was written stays to be read, outside the conversation. */
function takeBack(task, article) {
  if (!find("prompt").value) find("prompt").value = task.prompt;
  if (article.querySelector(".token")) article.classList.add("left-out");
  else article.remove();
}

function clear() {
  messages = [];
  find("transcript").replaceChildren(find("welcome"));
  find("welcome").hidden = false;
  find("state").textContent = "ready";
  complain("");
  draw(new Writing(null));
}

function takeExample({ target: { dataset } }) {
  document.querySelector(`input[name=mode][value=${dataset.mode}]`).checked = true;
  find("prompt").value = dataset.prompt;
  find("prompt").focus();
}

function listen() {
  find("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
    if (event.key === "Escape") abort?.abort();
  });
  find("stop").addEventListener("click", () => abort?.abort());
  find("clear").addEventListener("click", clear);
  find("compare").addEventListener("change", () => (find("speculation").disabled = find("compare").checked));
  find("rejections").addEventListener("change", () =>
    document.body.classList.toggle("show-rejected", find("rejections").checked));
  find("api-key").addEventListener("change", () => {
    sessionStorage.setItem(KEY, find("api-key").value);
    complain("");
    greet();
  });
  for (const example of document.querySelectorAll(".example")) example.addEventListener("click", takeExample);
}

const greet = () => readModel().catch((error) => complain(lineOf(error)));
find("api-key").value = sessionStorage.getItem(KEY) ?? "";
listen();
greet();
