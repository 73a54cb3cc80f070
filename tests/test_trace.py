"""The trace page and the terminal's tree: they show the run that was, and no text can break them."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goose import Cycle, Draft, Settings, Totals, drafter_for, generate
from model import Tokenizer, load
from sources import Match
from trace import PAGE, label, page, page_data, show
from tree import BRANCH, SPINE, Tree

AWKWARD = [
    "</script>",
    "</SCRIPT >",
    "<!--",
    "-->",
    "<script>",
    "]]>",
    "@DATA@",
    "<b>x</b>",
    "&amp;",
    "&lt;",
    "\\u003c",
    "'",
    '"',
    "\\",
    " ",
    " " * 60,
    "\n",
    "\r",
    "\n\n    ",
    "\t",
    "\0",
    "\x1b[31m",
    "\x7f",
    "\x85",
    "\xa0",
    "\u2028",
    "\u2029",
    "\u200b",
    "\u202e",
    "\ufeff",
    "\ufffd",
    "\u0301",
    "é",
    "日本語",
    "العربية",
    "🦆",
    "👩\u200d👩\u200d👧",
    "a_rather_long_identifier_that_fits_no_box",
    "x",
]
TEXTS = st.one_of(st.sampled_from(AWKWARD), st.text(min_size=1, max_size=12))


class Texts:
    """A tokenizer whose tokens have the given texts."""

    def __init__(self, texts):
        self.texts, self.backend = texts, self

    def decode(self, ids):
        return "".join(self.texts[i] for i in ids)

    def piece(self, ids, inside):
        return self.decode(ids)


@st.composite
def drawn_cycles(draw, vocabulary: int):
    """A pass over any tree: its accepted path and, unless the output was cut there, a bonus token."""
    size = draw(st.integers(1, 40))
    tree = Tree.rooted(draw(st.integers(0, vocabulary - 1)))
    for node in range(1, size):
        tree.add(
            draw(st.integers(max(0, node - draw(st.sampled_from([1, 4, 40]))), node - 1)),
            draw(st.integers(0, vocabulary - 1)),
            draw(st.sampled_from([SPINE, BRANCH])),
        )
    path = [0]
    while (below := [node for node in range(size) if tree.parents[node] == path[-1]]) and draw(st.booleans()):
        path.append(draw(st.sampled_from(below)))
    tokens = [tree.tokens[node] for node in path[1:]] + [draw(st.integers(0, vocabulary - 1))]
    origins = [tree.sources[node] for node in path[1:]] + ["bonus"]
    cut = draw(st.integers(1, len(tokens)))
    estimates = draw(st.one_of(st.just([]), st.lists(st.floats(0, 1), min_size=size, max_size=size)))
    match = draw(st.sampled_from([Match(), Match((0,), True, 0), Match((0, 0, 0), False, 1)]))
    return Cycle(
        Draft(tree, SPINE, match, estimates),
        path,
        tokens[:cut],
        origins[:cut],
        {"draft": 0.001, "model": draw(st.floats(0, 9)), "commit": 0.0},
    )


@st.composite
def runs(draw):
    texts = draw(st.lists(TEXTS, min_size=1, max_size=20))
    cycles = draw(st.lists(drawn_cycles(len(texts)), max_size=4))
    return Texts(texts), draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=9)), cycles


class Elements(HTMLParser):
    """What a parser makes of a page: the scripts' texts and the attributes of <html>."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.inside, self.html = [], False, {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")
        if tag == "html":
            self.html = dict(attributes)

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


# ---- the data ----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(run=runs(), note=TEXTS)
def test_the_page_holds_the_run_whatever_the_texts(run, note):
    tokenizer, prompt, cycles = run
    text = page(cycles, prompt, tokenizer, {"tau": 1.5, "method": note, "text": "left out"})
    assert text.isascii()
    found, script = Elements(text).scripts
    assert script == Elements(PAGE).scripts[1]
    data = json.loads(found)
    assert data["report"] == {"tau": 1.5, "method": note}
    assert data["prompt"] == len(prompt)
    ids = prompt + [token for cycle in cycles for token in cycle.tokens]
    assert len(data["text"]) == len(ids)
    if not any("\ufffd" in text for text in tokenizer.texts):
        assert data["text"] == [tokenizer.texts[token] for token in ids]
    for stored, cycle in zip(data["cycles"], cycles, strict=True):
        tree, match = cycle.draft.tree, cycle.draft.match
        for token in tree.tokens + cycle.tokens:
            assert data["vocabulary"][str(token)] == tokenizer.texts[token]
        assert (stored["tokens"], stored["parents"]) == (tree.tokens, tree.parents)
        assert [data["names"][i] for i in stored["sources"]] == tree.sources
        assert (stored["path"], stored["emitted"]) == (cycle.path, cycle.tokens)
        assert (stored["route"], stored["origins"]) == (cycle.draft.route, cycle.origins)
        assert stored["estimates"] == pytest.approx(cycle.draft.estimates, rel=0.005)
        assert (stored["origin"], stored["copied"], stored["consensus"]) == (
            match.origin,
            len(match.tokens),
            match.consensus,
        )
        assert stored["seconds"] == pytest.approx(cycle.seconds, abs=1e-6)


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return Tokenizer(tiny_folder)


@settings(deadline=None, max_examples=200)
@given(text=st.one_of(st.text(max_size=20), st.text(alphabet="🦆日本é\u0301 \nab", max_size=20)))
def test_a_character_of_several_tokens_stands_at_the_last_of_them(tokenizer, text):
    shown = page_data([], tokenizer.encode(text), tokenizer, {})["text"]
    assert all(shown)
    if "\ufffd" not in text:
        assert "".join(part for part in shown if "\ufffd" not in part) == text


def test_a_token_without_text_shows_its_name_or_its_number(tokenizer):
    end, duck, unknown = 1, tokenizer.encode("🦆")[0], 12345
    assert [label(tokenizer, token) for token in (end, duck, unknown)] == ["</s>", "\ufffd", "#12345"]


def test_the_page_of_a_real_run_is_small(tiny_folder, tokenizer):
    model, totals, cycles = load(tiny_folder, "float32", "cpu"), Totals(), []
    prompt = tokenizer.encode("def f(x):\n    return x\n" * 3)
    for cycle in generate(model, prompt, drafter_for(Settings()), 64):
        totals.add(cycle)
        cycles.append(cycle)
    text = page(cycles, prompt, tokenizer, totals.report())
    assert len(text) - len(PAGE) < 64 * 1000
    data = json.loads(Elements(text).scripts[0])
    assert len(data["text"]) == len(prompt) + 64
    assert data["report"] == totals.report()
    assert all(show(cycle, tokenizer, True) for cycle in cycles)


# ---- the terminal ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(cycle=drawn_cycles(1), text=st.text(st.characters(exclude_characters="├│└─"), max_size=8))
def test_the_terminals_tree_can_be_read_back(cycle, text):
    """A line a node, which give the tree, its sources and exactly the accepted path; ASCII where asked."""
    tree = cycle.draft.tree
    tree.tokens[:] = range(len(tree))
    cycle.tokens[:] = [0]
    cycle.origins[:] = ["bonus"]
    tokenizer = Texts([f"{node}:{text}" for node in tree.tokens])
    plain = show(cycle, tokenizer, False)
    assert plain.isascii()
    drawn = show(cycle, tokenizer, True).translate(str.maketrans("├│└─", "||`-"))
    assert drawn.encode("ascii", "backslashreplace").decode() == plain

    parents, strokes, marked, latest = {}, {}, [], {}  # latest: the last node seen at each indent
    for line in plain.splitlines()[1:]:
        mark, indent, quoted, rest = re.fullmatch(
            r"([* ]) ((?:\|  |   )*(?:\|- |`- )?)('.*'|\".*\") ((?:root|spine|branch).*)", line
        ).groups()
        node, depth = int(quoted[1:].split(":")[0]), len(indent) // 3
        parents[node] = latest.get(0 if depth == 0 else depth - 1, -1)
        latest[depth], strokes[node] = node, indent[-3:]
        if mark == "*":
            marked.append(node)
        source, *estimate = rest.split()
        assert source == tree.sources[node]
        assert [float(number) for number in estimate] == pytest.approx(
            cycle.draft.estimates[node : node + 1], rel=0.05
        )
    assert [parents[node] for node in range(len(tree))] == tree.parents
    for node, stroke in strokes.items():  # the last of siblings, and no other, ends their parent's line
        last = [other for other in parents if parents[other] == parents[node]][-1]
        assert stroke in ("", "`- " if node == last else "|- ")
    assert len(plain.splitlines()) == 1 + len(tree)
    assert sorted(marked) == sorted(cycle.path)


# ---- in a browser ------------------------------------------------------------------------------------------

WATCH = """<script>
window.failures = [];
addEventListener("error", event => failures.push(event.message));
console.error = (...words) => failures.push(words.join(" "));
</script>"""

CHECK = """<script>
const seen = {}, node = id => document.getElementById(id);
const press = (key, more = {}) =>
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true, ...more}));
const at = () => {
  const chosen = [...document.querySelectorAll(".cycle.now")].map(group => Number(group.dataset.cycle));
  return chosen.length === 1 && location.hash === "#cycle=" + chosen[0] && node("slider").value == chosen[0]
    ? chosen[0] : "inconsistent";
};
const after = action => { action(); return at(); };

const keys = ["ArrowRight", "ArrowLeft", "ArrowLeft", "End", "ArrowRight", "Home", "ArrowLeft"];
seen.stepping = [at(), ...keys.map(key => after(() => press(key)))];
seen.buttons = ["last", "back", "first", "next"].map(id => after(() => node(id).click()));
seen.click = after(() => document.querySelector('[data-cycle="3"] span').click());
seen.slider = after(() => { node("slider").value = 1; node("slider").dispatchEvent(new Event("input")); });
seen.browserKeys = after(() => press("ArrowRight", {altKey: true}));

// colours as the browser computes them, against the nearest painted background
const parts = colour => colour.match(/[\\d.]+/g).map(Number);
const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const luminance = colour => [0.2126, 0.7152, 0.0722].reduce(
  (sum, weight, i) => sum + weight * linear(parts(colour)[i] / 255), 0);
function behind(element) {
  const colour = getComputedStyle(element).backgroundColor;
  return parts(colour)[3] === 0 ? behind(element.parentElement) : colour;
}
function contrast(ink, paper) {
  const [low, high] = [luminance(ink), luminance(paper)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
const words = document.querySelectorAll("h1, h2, dt, dd, p, li, summary, button, li span, #text span");
seen.contrast = Math.min(...[...words].map(word => contrast(getComputedStyle(word).color, behind(word))));

seen.trees = cycles.map((cycle, i) => {
  choose(i);
  const groups = [...document.querySelectorAll("#tree g")];
  const boxes = groups.map(group => group.querySelector("rect").getBBox());
  const apart = (a, b) => a.x + a.width <= b.x || b.x + b.width <= a.x
    || a.y + a.height <= b.y || b.y + b.height <= a.y;
  seen.contrast = Math.min(seen.contrast, ...groups.map(group => contrast(
    ...["text", "rect"].map(name => getComputedStyle(group.querySelector(name)).fill))));
  const spine = boxes.filter((_, k) => groups[k].matches(".spine"));
  const panel = node("tree").getBoundingClientRect();
  const last = [...document.querySelectorAll("#tree g.accepted")].at(-1).getBoundingClientRect();
  return {
    nodes: groups.length, edges: document.querySelectorAll("#tree path").length,
    accepted: document.querySelectorAll("#tree g.accepted").length,
    rows: new Set(spine.map(box => box.y)).size,
    overlaps: boxes.filter((a, k) => boxes.slice(k + 1).some(b => !apart(a, b))).length,
    fits: groups.every((group, k) => [...group.querySelectorAll("text")].every(text => {
      const box = text.getBBox();
      return box.x >= boxes[k].x && box.x + box.width <= boxes[k].x + boxes[k].width;
    })),
    inView: last.left >= panel.left && last.right <= panel.right
      && last.top >= panel.top && last.bottom <= panel.bottom,
    copied: document.querySelectorAll("#text .copied").length,
    listed: node("list").textContent.split("\\n").length,
  };
});
seen.invisible = (node("text").textContent.replaceAll("\\n", "") + node("tree").textContent)
  .match(/[\\p{Cc}\\u2028\\u2029\\u200b\\u202e\\ufeff\\u00a0]/gu);
seen.markup = document.querySelectorAll("#text b, #tree b").length;
seen.sideways = document.documentElement.scrollWidth - document.documentElement.clientWidth;
seen.dark = matchMedia("(prefers-color-scheme: dark)").matches;
seen.unnamed = document.querySelectorAll(":is([tabindex], input, svg):not([aria-label])").length;

// last, what takes time: a changed fragment, and playing from there to the end
location.hash = "#cycle=2";
setTimeout(() => {
  seen.fragment = at();
  node("play").click();
  seen.playing = node("play").textContent;
  const poll = setInterval(() => {
    if (node("play").textContent !== "Play") return;
    clearInterval(poll);
    seen.played = at();
    document.documentElement.dataset.seen = JSON.stringify({...seen, failures});
  }, 50);
}, 50);
</script>"""


def awkward_run():
    """Trees at the limit (128 nodes, 100 deep), with a spine or without, bushy or bare, awkward texts."""
    count, prompt = len(AWKWARD), list(range(len(AWKWARD)))

    def cycle(tree, length, match=Match(), estimates=()):
        path = [0]
        while len(path) <= length:
            path.append(tree.parents.index(path[-1]))
        tokens = [tree.tokens[node] for node in path[1:]] + [7]
        origins = [tree.sources[node] for node in path[1:]] + ["bonus" if len(tree) > 1 else "plain"]
        return Cycle(Draft(tree, SPINE, match, list(estimates)), path, tokens, origins, {"model": 0.02})

    def spine_with(branches, length):
        tree = Tree.rooted(3)
        for node in range(length):
            tree.add(node, node % count, SPINE)
        for i in range(branches):
            tree.add(i * 7 % (length + 1) if i % 3 else len(tree) - 1, i % count, BRANCH)
        return tree

    bushy = Tree.rooted(3)
    for i in range(127):
        bushy.add(i // 3, i % count, BRANCH)
    return prompt, [
        Cycle(Draft(Tree.rooted(3), "prefill"), [0], [4], ["prefill"], {"model": 0.5}),
        cycle(spine_with(27, 100), 60, Match((1,) * 20, True, 4), (0.97**i for i in range(128))),
        cycle(spine_with(119, 8), 3, Match((1,) * 8, False, 30)),
        cycle(bushy, 4, estimates=(1 / (i + 1) for i in range(128))),
        cycle(Tree.rooted(3), 0),
    ]


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
@pytest.mark.parametrize(("size", "dark"), [("1280,800", True), ("390,844", False)])
def test_the_page_works_in_a_browser(tmp_path, size, dark):
    """By keys, buttons, clicks and fragment; readable in both schemes; no error, no overlap, no markup."""
    prompt, cycles = awkward_run()
    totals = Totals()
    for cycle in cycles:
        totals.add(cycle)
    text = page(cycles, prompt, Texts(AWKWARD), totals.report())
    file = tmp_path / "page.html"
    file.write_text(text.replace("<head>", "<head>" + WATCH).replace("</body>", CHECK + "</body>"), "ascii")
    dumped = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={size}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            f"{file.as_uri()}#cycle=2",
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    ).stdout
    result = Elements(dumped).html
    assert "data-seen" in result, dumped[-2000:]
    seen = json.loads(result["data-seen"])

    assert seen["failures"] == []
    assert seen["stepping"] == [2, 3, 2, 1, 4, 4, 0, 0]
    assert seen["buttons"] == [4, 3, 0, 1]
    assert (seen["click"], seen["slider"], seen["browserKeys"]) == (3, 1, 1)
    assert (seen["fragment"], seen["playing"], seen["played"]) == (2, "Pause", 4)
    for tree, cycle in zip(seen["trees"], cycles, strict=True):
        nodes = len(cycle.draft.tree) + 1  # and the model's own token
        assert (tree["nodes"], tree["edges"], tree["listed"]) == (nodes, nodes - 1, nodes)
        assert tree["accepted"] == len(cycle.path) + 1
        assert tree["rows"] == (SPINE in cycle.draft.tree.sources)
        assert tree["overlaps"] == 0 and tree["fits"] and tree["inView"]
        assert tree["copied"] == len(cycle.draft.match.tokens)
    assert seen["contrast"] >= 4.5
    assert seen["dark"] == dark
    assert seen["invisible"] is None and seen["markup"] == 0
    assert seen["sideways"] <= 0 and seen["unnamed"] == 0
