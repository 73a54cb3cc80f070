"""See it think: `page` makes one HTML file of a whole run, `show` draws one cycle's tree in the terminal.

Both read the `Cycle` stream. The page needs nothing but itself: styles, script and data are inline. The data
is JSON in a script element that no browser runs, and the script puts token text on the page as text only, so
no text can act as markup or code. The page is ASCII throughout, so that no encoding can damage it.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from model import Stream, Tokenizer
from tree import SPINE

if TYPE_CHECKING:  # goose imports this file, so at run time this file must not import goose
    from goose import Cycle


def label(tokenizer: Tokenizer, token: int) -> str:
    """A token's own text: U+FFFD for a part of a character, the name of a token that decodes to nothing."""
    return tokenizer.piece([token], inside=True) or tokenizer.backend.id_to_token(token) or f"#{token}"


# ---- the terminal ------------------------------------------------------------------------------------------


def show(cycle: "Cycle", tokenizer: Tokenizer, unicode: bool) -> str:
    """A heading, then the drafted tree, one line a node: `*` where accepted, token, source, estimate if any.

    The spine runs straight down, each of its nodes followed by its branches; anything else is indented below
    its parent. Without `unicode` the result is ASCII.
    """
    tree, accepted, estimates = cycle.draft.tree, set(cycle.path), cycle.draft.estimates
    tee, corner, bar, blank = ("├─ ", "└─ ", "│  ", "   ") if unicode else ("|- ", "`- ", "|  ", "   ")
    children: list[list[int]] = [[] for _ in tree.tokens]
    for node in range(1, len(tree)):
        children[tree.parents[node]].append(node)
    lines = [
        f"{cycle.draft.route}: {len(cycle.path) - 1} of {len(tree) - 1} accepted, "
        f"then {label(tokenizer, cycle.tokens[-1])!r} {cycle.origins[-1]}"
    ]

    def add(node: int, drawn: str) -> None:
        estimate = f" {estimates[node]:.2g}" if estimates else ""
        lines.append(
            f"{'*' if node in accepted else ' '} {drawn}{label(tokenizer, tree.tokens[node])!r} "
            f"{tree.sources[node]}{estimate}"
        )

    def add_below(nodes: list[int], drawn: str, more: bool) -> None:
        for node in nodes:
            last = node == nodes[-1] and not more
            add(node, drawn + (corner if last else tee))
            add_below(children[node], drawn + (blank if last else bar), False)

    node: int | None = 0
    while node is not None:
        add(node, "")
        following = next((child for child in children[node] if tree.sources[child] == SPINE), None)
        add_below([child for child in children[node] if child != following], "", following is not None)
        node = following
    text = "\n".join(lines)
    return text if unicode else text.encode("ascii", "backslashreplace").decode()


# ---- the page ----------------------------------------------------------------------------------------------


def page(cycles: "Sequence[Cycle]", prompt: list[int], tokenizer: Tokenizer, report: dict) -> str:
    """The whole run as one HTML page. report: Totals.report() and whatever else is to be told of the run."""
    text = json.dumps(page_data(cycles, prompt, tokenizer, report), separators=(",", ":"))
    return PAGE.replace("@DATA@", text.replace("<", "\\u003c"))  # no "</script" or "<!--" can end the data


def page_data(cycles: "Sequence[Cycle]", prompt: list[int], tokenizer: Tokenizer, report: dict) -> dict:
    """What the page's script reads, kept small: sources by number, estimates to three digits."""
    trees = [cycle.draft.tree for cycle in cycles]
    names = sorted({source for tree in trees for source in tree.sources})
    tokens = [token for cycle in cycles for token in cycle.tokens]
    drafted = {token for tree in trees for token in tree.tokens}
    # in the running text a character made of several tokens stands at the last of them
    stream = Stream(tokenizer)
    text = [stream.push([token]) or label(tokenizer, token) for token in prompt + tokens]
    return {
        "report": {name: value for name, value in report.items() if name not in ("text", "tokens")},
        "prompt": len(prompt),
        "text": text,
        "vocabulary": {token: label(tokenizer, token) for token in sorted(drafted.union(tokens))},
        "names": names,
        "cycles": [
            {
                "route": cycle.draft.route,
                "tokens": tree.tokens,
                "parents": tree.parents,
                "sources": [names.index(source) for source in tree.sources],
                "estimates": [float(f"{estimate:.3g}") for estimate in cycle.draft.estimates],
                "origin": cycle.draft.match.origin,
                "copied": len(cycle.draft.match.tokens),
                "consensus": cycle.draft.match.consensus,
                "path": cycle.path,
                "emitted": cycle.tokens,
                "origins": cycle.origins,
                "seconds": {stage: round(seconds, 6) for stage, seconds in cycle.seconds.items()},
            }
            for cycle, tree in zip(cycles, trees, strict=True)
        ],
    }


PAGE = r"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Goose trace</title>
<link rel="icon" href="data:,">
<style>
/* Ink and muted text have a contrast of at least 4.5 to 1 on the paper and on every source's colour. */
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1b1b1b; --muted: #555555; --accent: #0b57d0; --line: #8a8a8a;
  --spine: #cfe3ff; --branch: #ffdcb3; --bonus: #e9d8fa; --plain: #e6e6e6; --prefill: #d8edd2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181d; --ink: #eef1f5; --muted: #b4bcc8; --accent: #8ab4f8; --line: #7d8592;
    --spine: #1d3f6e; --branch: #5f3d0c; --bonus: #4a3166; --plain: #3a3d44; --prefill: #27472f;
  }
}
* { box-sizing: border-box; }
body { margin: 0; padding: .75rem; background: var(--paper); color: var(--ink);
       font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.1rem; margin: 0; }
h2 { font-size: 1rem; margin: 0 0 .25rem; }
p { margin: .25rem 0; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }

dl { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: .25rem 0; }
dl div { display: flex; gap: .4rem; }
dt { color: var(--muted); }
dd { margin: 0; font-weight: 600; }

#controls { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; padding: .4rem 0;
            background: var(--paper); position: sticky; top: 0; z-index: 1; }
button { font: inherit; min-height: 2.4rem; padding: 0 .7rem; }
#slider { flex: 1 1 8rem; min-height: 2.4rem; }
.hint, #status, #legend { color: var(--muted); font-size: .9rem; }
#legend { display: flex; flex-wrap: wrap; gap: .2rem .8rem; margin: .3rem 0; padding: 0; list-style: none; }

#text, #tree, #list { border: 1px solid var(--line); border-radius: 4px; overflow: auto; }
#text { padding: .6rem; font: 14px/1.9 ui-monospace, "DejaVu Sans Mono", monospace; white-space: break-spaces;
        overflow-wrap: anywhere; max-height: 28vh; margin-bottom: .5rem; }
#tree { max-height: 60vh; }
#status { min-height: 3em; }
#list { padding: .5rem; margin: .25rem 0; max-height: 50vh; font-size: 13px; }

/* Sources differ in their underline too (set low, or underscores would drown in it), and in the tree in the
   corners of their boxes. */
span.spine { background: var(--spine); text-decoration: underline solid; }
span.branch { background: var(--branch); text-decoration: underline dashed; }
span.bonus { background: var(--bonus); text-decoration: underline dotted; }
span.plain { background: var(--plain); }
span.prefill { background: var(--prefill); text-decoration: underline double; }
span:is(.spine, .branch, .bonus, .plain, .prefill) { color: var(--ink); text-underline-offset: 5px;
                                                     padding: 2px 0; }
.prompt { color: var(--muted); }
.cycle { cursor: pointer; border-left: 2px solid var(--ink); margin-left: 1px; }
.now { outline: 3px solid var(--accent); outline-offset: 1px; }
.copied { border-block: 3px dotted var(--accent); }
/* A real space, so that lines break and copies are right, with a dot behind it. */
.space { background: radial-gradient(circle, var(--muted) 1px, transparent 1.5px) left / 1ch 100%; }

svg { display: block; font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
svg text { fill: var(--ink); }
svg .note { font-size: 11px; }
svg rect { stroke: var(--line); fill: var(--plain); }
svg .spine rect { fill: var(--spine); }
svg .branch rect { fill: var(--branch); }
svg .bonus rect { fill: var(--bonus); }
svg .prefill rect { fill: var(--prefill); }
svg .edge { fill: none; stroke: var(--line); stroke-width: 1.5; }
svg .accepted rect { stroke: var(--accent); stroke-width: 3; }
svg .accepted text { font-weight: 700; }
svg .edge.accepted { stroke: var(--accent); stroke-width: 4; }

@media (min-width: 800px) {
  body { display: flex; flex-direction: column; height: 100vh; min-height: 40rem; }
  main { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: .75rem; flex: 1;
         min-height: 0; }
  section { display: flex; flex-direction: column; min-height: 0; }
  #text, #tree { flex: 1; max-height: none; margin: 0; }
}
</style>
</head>
<body>
<h1>Goose trace</h1>
<dl id="totals"></dl>
<details><summary>Everything reported</summary><dl id="report"></dl></details>
<div id="controls" role="group" aria-label="Choose a cycle">
  <button id="first" type="button">First</button>
  <button id="back" type="button">Back</button>
  <button id="play" type="button">Play</button>
  <button id="next" type="button">Next</button>
  <button id="last" type="button">Last</button>
  <input id="slider" type="range" min="0" value="0" aria-label="Cycle">
</div>
<main>
  <section>
    <h2>Text</h2>
    <div id="text" tabindex="0" role="region" aria-label="Prompt and generated text"></div>
  </section>
  <section>
    <h2>Drafted tree</h2>
    <p id="status" role="status"></p>
    <div id="tree" tabindex="0" role="region" aria-label="Drafted tree"></div>
    <details>
      <summary>The tree as a list</summary>
      <pre id="list" tabindex="0" role="region" aria-label="Nodes"></pre>
    </details>
  </section>
</main>
<footer>
  <ul id="legend" aria-label="Legend">
    <li><span class="spine">spine</span> copied from the text</li>
    <li><span class="branch">branch</span> from the table of successors</li>
    <li><span class="bonus">bonus</span> the model's own, after the accepted path</li>
    <li><span class="plain">plain</span> nothing was drafted</li>
    <li><span class="prefill">prefill</span> the first token</li>
    <li><span class="now">chosen cycle</span></li>
    <li><span class="copied">where its chain was copied from</span></li>
    <li>&#9615;a new pass</li>
    <li>&#10003; accepted</li>
    <li>0.29 estimated chance that the path down to here is accepted</li>
  </ul>
  <p class="hint">Left and Right step through the cycles, Home and End go to the first and last, Shift with
    Left or Right moves the tree sideways; or click a token.</p>
</footer>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const cycles = data.cycles;
const $ = id => document.getElementById(id);

// Elements are built with these two alone. Children are elements or strings, and a string becomes a text
// node, so token text is never parsed.
const builder = space => (name, attributes = {}, ...children) => {
  const element = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const html = builder("http://www.w3.org/1999/xhtml");
const svg = builder("http://www.w3.org/2000/svg");

// What cannot be seen gets a sign that common fonts have (few have the control pictures of U+2400 on), or its
// code point. A joiner inside an emoji has to stay.
const SIGNS = {" ": "\u2423", "\n": "\u21b5", "\t": "\u21e5"};
function visible(text) {
  return text.replace(/[\p{C}\p{Z}]/gu, c => SIGNS[c] ?? (c === "\u200d" && text !== c ? c
    : "<U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + ">"));
}

// ---- the text ----

function tokenSpan(position, name) {
  const span = html("span", {class: name});
  for (const part of data.text[position].split(/( +|\n)/)) {
    span.append(part.startsWith(" ") ? html("span", {class: "space"}, part)
      : part === "\n" ? SIGNS[part] + part : visible(part));
  }
  return span;
}

const spans = [];                                  // one for each token of prompt and output
for (let i = 0; i < data.prompt; i++) spans.push(tokenSpan(i, "prompt"));
for (const span of spans) $("text").append(span);      // a long prompt is too many arguments for one call
const groups = cycles.map((cycle, number) => {
  const tokens = cycle.origins.map((origin, i) => tokenSpan(spans.length + i, origin));
  spans.push(...tokens);
  return html("span", {class: "cycle", "data-cycle": number}, ...tokens);
});
$("text").append(...groups);

// ---- the tree ----

// pixels: the boxes, their pitch, the border
const WIDTH = 112, HEIGHT = 38, ACROSS = 136, DOWN = 46, MARGIN = 10;

// The drafted nodes, and after the accepted path the token that the model itself put there.
function nodesOf(cycle) {
  const nodes = cycle.tokens.map((token, i) => ({
    text: data.vocabulary[token], parent: cycle.parents[i], source: data.names[cycle.sources[i]],
    estimate: cycle.estimates[i], accepted: cycle.path.includes(i),
  }));
  if (cycle.emitted.length === cycle.path.length) {          // else the output was cut before it
    nodes.push({text: data.vocabulary[cycle.emitted.at(-1)], parent: cycle.path.at(-1),
                source: cycle.origins.at(-1), accepted: true});
  }
  return nodes;
}

// Depth is the column. A first child continues its parent's row: the spine before the accepted path, so the
// spine is straight, and that before all others, so the path stays near the top. Every other child goes below
// all that stands in the columns of its own subtree. A node's column is kept free down to its last child, so
// that edges do not cross. Returns the nodes' numbers, each parent before its children.
function layout(nodes) {
  const children = nodes.map(() => []), order = [];
  const rank = node => node.source === "spine" ? 0 : node.accepted ? 1 : 2;
  nodes.forEach((node, i) => { if (i) children[node.parent].push(i); });

  // returns the first free row, counted from i's own, in i's column and each further one
  function place(i, column) {
    order.push(i);
    nodes[i].column = column;
    children[i].sort((a, b) => rank(nodes[a]) - rank(nodes[b]));
    const free = [1];
    children[i].forEach((child, n) => {
      const below = place(child, column + 1);
      const row = n ? Math.max(...below.map((_, k) => free[k + 1] ?? 0)) : 0;
      nodes[child].row = row;
      below.forEach((bottom, k) => { free[k + 1] = row + bottom; });
      free[0] = row + 1;
    });
    return free;
  }

  nodes[0].row = 0;
  place(0, 0);
  for (const i of order.slice(1)) nodes[i].row += nodes[nodes[i].parent].row;
  return order;
}

function drawNode(node) {
  const x = MARGIN + node.column * ACROSS, y = MARGIN + node.row * DOWN;
  const round = {spine: 0, root: 0, branch: HEIGHT / 2}[node.source] ?? 6;
  const note = (node.accepted ? "\u2713 " : "") + node.source
    + (node.estimate === undefined ? "" : " " + node.estimate.toFixed(3));
  return svg("g", {class: `node ${node.source} ${node.accepted ? "accepted" : ""}`},
    svg("title", {}, `${visible(node.text)} ${note}`),
    svg("rect", {x, y, width: WIDTH, height: HEIGHT, rx: round}),
    svg("text", {x: x + WIDTH / 2, y: y + 16, "text-anchor": "middle"}, visible(node.text)),
    svg("text", {x: x + WIDTH / 2, y: y + 31, "text-anchor": "middle", class: "note"}, note));
}

function drawEdge(node, parent) {
  const left = MARGIN + parent.column * ACROSS + WIDTH, right = MARGIN + node.column * ACROSS;
  const middle = y => MARGIN + y * DOWN + HEIGHT / 2;
  return svg("path", {class: node.accepted ? "edge accepted" : "edge",
    d: `M${left} ${middle(parent.row)}H${(left + right) / 2}V${middle(node.row)}H${right}`});
}

// A long text is cut to fit its box; the list below the tree has it in full.
function shorten(text) {
  const characters = Array.from(text.textContent).slice(0, 40);
  while (text.getComputedTextLength() > WIDTH - 12 && characters.length) {
    characters.pop();
    text.textContent = characters.join("") + "\u2026";
  }
}

function drawTree(cycle) {
  const nodes = nodesOf(cycle), order = layout(nodes);
  const right = n => MARGIN * 2 + n.column * ACROSS + WIDTH, bottom = n => MARGIN * 2 + n.row * DOWN + HEIGHT;
  const edges = nodes.slice(1).map(node => drawEdge(node, nodes[node.parent]));
  edges.sort((a, b) => a.matches(".accepted") - b.matches(".accepted"));       // the accepted path on top
  const accepted = nodes.filter(node => node.accepted);
  const panel = $("tree");
  panel.replaceChildren(svg("svg", {
    width: Math.max(...nodes.map(right)), height: Math.max(...nodes.map(bottom)), role: "img",
    "aria-label": "Accepted path: " + accepted.map(node => visible(node.text)).join(", "),
  }, ...edges, ...nodes.map(drawNode)));
  panel.querySelectorAll("text").forEach(shorten);
  // the path begins in the corner; of a long one the end is in view
  panel.scrollLeft = Math.max(...accepted.map(right)) + 12 - panel.clientWidth;
  panel.scrollTop = Math.max(...accepted.map(bottom)) - panel.clientHeight;
  const line = node => "  ".repeat(node.column) + (node.accepted ? "* " : "- ")
    + `${JSON.stringify(node.text)} ${node.source} ${node.estimate ?? ""}`;
  $("list").textContent = order.map(i => line(nodes[i])).join("\n");
}

// ---- the chosen cycle ----

let now = -1, timer = 0;

function summary(cycle) {
  const seconds = Object.values(cycle.seconds).reduce((a, b) => a + b, 0);
  return `Cycle ${now} of ${cycles.length - 1} (${cycle.route}): `
    + `${cycle.path.length - 1} of ${cycle.tokens.length - 1} drafted accepted, `
    + `${cycle.emitted.length} emitted, ${(seconds * 1000).toFixed(1)} ms.`
    + (cycle.origin < 0 ? "" : ` Chain: ${cycle.copied} tokens from position ${cycle.origin}`
       + (cycle.consensus ? " (consensus)." : "."));
}

function choose(number) {
  now = Math.min(Math.max(number, 0), cycles.length - 1);
  const cycle = cycles[now], text = $("text");
  const end = cycle.origin < 0 ? 0 : cycle.origin + cycle.copied;
  spans.forEach((span, i) => span.classList.toggle("copied", cycle.origin <= i && i < end));
  groups.forEach((group, i) => {
    group.classList.toggle("now", i === now);
    group.setAttribute("aria-current", i === now);
  });
  $("slider").value = now;
  $("status").textContent = summary(cycle);
  drawTree(cycle);
  // only the panel is scrolled: on a phone the page would jump away from the tree
  const box = groups[now].getBoundingClientRect(), panel = text.getBoundingClientRect();
  if (box.top < panel.top || box.bottom > panel.bottom) {
    text.scrollTop += box.top - panel.top - panel.height / 3;
  }
  history.replaceState(null, "", "#cycle=" + now);
}

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => now + 1 < cycles.length ? choose(now + 1) : play(false), 700) : 0;
  $("play").textContent = on ? "Pause" : "Play";
}

function pick(number) {                  // by hand, which ends playing
  play(false);
  choose(number);
}

function start() {
  $("slider").max = cycles.length - 1;
  $("slider").oninput = () => pick(Number($("slider").value));
  $("first").onclick = () => pick(0);
  $("back").onclick = () => pick(now - 1);
  $("next").onclick = () => pick(now + 1);
  $("last").onclick = () => pick(cycles.length - 1);
  $("play").onclick = () => {
    if (!timer && now === cycles.length - 1) choose(0);
    play(!timer);
  };
  $("text").onclick = event => {
    const group = event.target.closest(".cycle");
    if (group) pick(Number(group.dataset.cycle));
  };
  addEventListener("keydown", event => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target === $("slider")) return;
    const side = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (side && event.shiftKey) $("tree").scrollLeft += side * ACROSS;
    else if (side) pick(now + side);
    else if (event.key === "Home") pick(0);
    else if (event.key === "End") pick(cycles.length - 1);
    else return;
    event.preventDefault();
  });
  const chosen = () => Number(location.hash.match(/^#cycle=(\d+)$/)?.[1] ?? NaN);
  addEventListener("hashchange", () => { if (chosen() >= 0 && chosen() !== now) pick(chosen()); });
  const longest = Math.max(...cycles.map(cycle => cycle.emitted.length));  // a good one to begin with
  choose(chosen() >= 0 ? chosen() : cycles.findIndex(cycle => cycle.emitted.length === longest));
}

// ---- the totals ----

const plain = name => name.replaceAll("_", " ");
const told = value => value !== null && typeof value === "object"
  ? Object.entries(value).map(([name, part]) => `${plain(name)} ${told(part)}`).join(", ")
  : String(typeof value === "number" ? Number(value.toFixed(3)) : value);
const row = name => html("div", {}, html("dt", {}, plain(name)), html("dd", {}, told(data.report[name])));
const FIRST = ["method", "tau", "forward_passes", "tokens_per_second", "accepted", "bonus", "plain",
               "seconds"];
$("totals").append(...FIRST.filter(name => name in data.report).map(row));
$("report").append(...Object.keys(data.report).map(row));

if (cycles.length) start();
</script>
</body>
</html>
"""
