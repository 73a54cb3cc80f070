"""Text in, text out: BOS, special tokens, chat templates, stop ids, and streaming whole characters only."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from model import LoadError, Stream, Tokenizer
from tests.conftest import byte_tokenizer, tiny_config, write_folder

TEXTS = st.one_of(
    st.text(max_size=30), st.text(alphabet="🦆こんにちは日本語e\u0301\u0308é👩‍👩‍👧 \n\ufffdabc", max_size=30)
)


def metaspace() -> Backend:
    """Llama 2's kind: SentencePiece pieces with byte fallback, whose decoder strips the first space."""
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    words += ["▁", "H", "e", "l", "o", "w", "r", "d", "i", "s", "▁Hello", "▁world", "▁is"]
    tokenizer = Backend(
        models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


@pytest.fixture(scope="module")
def tokenizers_(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    return [
        Tokenizer(write_folder(folder / str(i), tiny_config(), tokenizer=backend))
        for i, backend in enumerate((byte_tokenizer(), metaspace()))
    ]


def streamed(tokenizer, ids, after):
    stream, pieces = Stream(tokenizer, after), []
    for token in ids:
        pieces.append(stream.push([token]))
    return pieces, stream.flush()


@settings(deadline=None, max_examples=300)
@given(data=st.data(), which=st.integers(0, 1))
def test_streamed_text_is_the_decoded_text_for_any_tokens(tokenizers_, data, which):
    """For byte-level tokenizers also the backend's; a byte-fallback one garbles a whole run for one bad
    byte."""
    tokenizer = tokenizers_[which]
    size = tokenizer.backend.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size + 5), max_size=40))
    after = data.draw(st.lists(st.integers(0, size - 1), max_size=12))
    pieces, rest = streamed(tokenizer, ids, after)
    assert "".join(pieces) + rest == tokenizer.decode(ids, after)
    if which == 0:
        assert tokenizer.decode(ids, after) == tokenizer.decode(ids) == tokenizer.backend.decode(ids)


@settings(deadline=None, max_examples=300)
@given(text=TEXTS, which=st.integers(0, 1))
def test_streamed_text_comes_in_whole_characters(tokenizers_, text, which):
    """Emoji, CJK, combining marks: no piece shows half a character, each appears once it is complete."""
    tokenizer = tokenizers_[which]
    ids = tokenizer.encode(text)
    pieces, rest = streamed(tokenizer, ids, [])
    if which == 0 or "\ufffd" not in text:
        assert "".join(pieces) + rest == tokenizer.backend.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces) and rest == ""


def test_a_real_replacement_mark_does_not_stop_the_stream(tokenizers_):
    tokenizer = tokenizers_[0]
    ids = tokenizer.encode("a \ufffd b")
    pieces, rest = streamed(tokenizer, ids, [])
    assert "".join(pieces) == "a \ufffd b" and rest == ""
    lone = [tokenizer.encode("é")[0], tokenizer.encode("é")[0], *tokenizer.encode("Hello")]
    pieces, rest = streamed(tokenizer, lone, [])
    assert "".join(pieces) == "\ufffd\ufffdHello" and rest == ""


def test_a_cut_character_is_flushed_once_at_the_end(tokenizers_):
    tokenizer = tokenizers_[0]
    ids = tokenizer.encode("こん")[:-1]
    pieces, rest = streamed(tokenizer, ids, [])
    assert "".join(pieces) == "こ" and rest == "\ufffd"


def test_the_prompt_never_leaks_into_the_stream(tokenizers_):
    tokenizer = tokenizers_[0]
    duck = tokenizer.encode("🦆")
    prompt = tokenizer.encode("Hello ") + duck[:-1]
    pieces, rest = streamed(tokenizer, duck[-1:] + tokenizer.encode("x"), prompt)
    assert "".join(pieces) + rest == "\ufffdx"


def test_spaces_that_a_decoder_strips_are_kept_after_the_prompt(tokenizers_):
    tokenizer = tokenizers_[1]
    hello, world, is_ = (tokenizer.backend.token_to_id(w) for w in ("▁Hello", "▁world", "▁is"))
    pieces, rest = streamed(tokenizer, [world, is_], [hello])
    assert "".join(pieces) + rest == " world is" == tokenizer.decode([world, is_], [hello])


def test_ids_beyond_the_vocabulary_are_silent(tokenizers_):
    tokenizer = tokenizers_[0]
    a, b = tokenizer.encode("a"), tokenizer.encode("b")
    assert tokenizer.decode([*a, 4000, *b]) == "ab"


# ---- BOS, special tokens, chat -----------------------------------------------------------------------------


def with_bos(folder, settings=None):
    backend = byte_tokenizer()
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return Tokenizer(write_folder(folder, tiny_config(), tokenizer=backend, settings=settings))


def test_there_is_exactly_one_bos(tmp_path):
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = with_bos(tmp_path / "m", {"bos_token": {"content": "<s>"}, "chat_template": template})
    for ids in (
        tokenizer.encode("hi"),
        tokenizer.encode("<s>hi"),
        tokenizer.encode_chat([{"role": "user", "content": "hi"}]),
    ):
        assert ids.count(0) == 1 and ids[0] == 0 and tokenizer.decode(ids) == "hi"
    assert tokenizer.encode("") == [0]


def test_special_tokens_in_a_prompt_are_special(tokenizers_):
    ids = tokenizers_[0].encode("a</s>b")
    assert ids == [*tokenizers_[0].encode("a"), 1, *tokenizers_[0].encode("b")]
    assert tokenizers_[0].encode("") == []


def test_chat_templates_come_from_either_file_and_run_in_a_sandbox(tmp_path):
    folder = tmp_path / "m"
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    body = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    body += "{% if add_generation_prompt %}[a]{% endif %}"
    for settings_, file in (
        ({"chat_template": body}, None),
        ({}, body),
        ({"chat_template": [{"name": "default", "template": body}]}, None),
    ):
        tokenizer = Tokenizer(write_folder(folder, tiny_config(), settings={"eos_token": "</s>"} | settings_))
        if file:
            (folder / "chat_template.jinja").write_text(file)
            tokenizer = Tokenizer(folder)
        assert tokenizer.decode(tokenizer.encode_chat(messages)) == "[system]be brief[user]hi[a]"
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    for bad in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception('roles must alternate') }}",
        "{% for %}",
    ):
        tokenizer = Tokenizer(write_folder(folder, tiny_config(), settings={"chat_template": bad}))
        with pytest.raises(LoadError, match="chat template failed"):
            tokenizer.encode_chat(messages)
    with pytest.raises(LoadError, match="no chat template"):
        Tokenizer(write_folder(folder, tiny_config())).encode_chat(messages)


def test_the_template_may_be_dated_and_dump_json(tmp_path):
    body = "{{ strftime_now('%Y') | length }}{{ messages | tojson }}"
    tokenizer = Tokenizer(write_folder(tmp_path / "m", tiny_config(), settings={"chat_template": body}))
    text = tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "hi <é>"}]))
    assert text == '4[{"role": "user", "content": "hi <é>"}]'


@pytest.mark.parametrize(
    "generation, config, settings_, wanted",
    [
        ({"eos_token_id": 5}, 6, "</s>", {5}),
        ({"eos_token_id": [5, 7]}, 6, "</s>", {5, 7}),
        (None, 6, "</s>", {6}),
        ({"eos_token_id": None}, [6, 8], "</s>", {6, 8}),
        (None, None, "</s>", {1}),
        (None, None, {"content": "</s>"}, {1}),
        (None, None, None, set()),
    ],
)
def test_stop_ids_come_from_the_first_place_that_names_them(tmp_path, generation, config, settings_, wanted):
    folder = write_folder(tmp_path / "m", tiny_config(eos_token_id=config), settings={"eos_token": settings_})
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert Tokenizer(folder).stop_ids == wanted
