"""Checkpoint folders: every form that is read, and one clear line for everything that is wrong with one."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import model as module
from model import LoadError, Tokenizer, find, load
from tests.conftest import ROOT, random_tensors, tiny_config, write_folder
from tests.test_goose import greedy


def refused(action, *says: str) -> None:
    """`action` raises LoadError with one line that holds every part of `says`."""
    with pytest.raises(LoadError) as error:
        action()
    message = str(error.value)
    assert "\n" not in message
    for part in says:
        assert part in message


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "m", tiny_config())


def shard(folder, tensors, suffix="safetensors"):
    """Rewrite the folder's weights as two shards with an index."""
    names = sorted(tensors)
    halves = {1: names[: len(names) // 2], 2: names[len(names) // 2 :]}
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    weight_map = {}
    for number, part in halves.items():
        file = f"{stem}-0000{number}-of-00002.{suffix}"
        save = save_file if suffix == "safetensors" else torch.save
        save({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()
    return weight_map


def test_every_container_gives_the_same_model(folder):
    truth = greedy(load(folder), [5, 6, 7])
    tensors = load_file(folder / "model.safetensors")
    shard(folder, tensors)
    assert greedy(load(folder), [5, 6, 7]) == truth
    for file in folder.glob("model*safetensors*"):
        file.unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert greedy(load(folder), [5, 6, 7]) == truth
    (folder / "pytorch_model.bin").unlink()
    (folder / "model.safetensors").touch()
    shard(folder, tensors, "bin")
    assert greedy(load(folder), [5, 6, 7]) == truth


def test_mixed_float_tensors_and_old_buffers_load(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors = {n: t.to(torch.bfloat16) for n, t in tensors.items()}
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, folder / "model.safetensors")
    assert load(folder, "bfloat16").dtype == torch.bfloat16


def test_dtype_auto_is_the_checkpoints_own(tmp_path):
    for key, name in (("dtype", "bfloat16"), ("torch_dtype", "float16"), ("torch_dtype", "torch.float32")):
        config = {k: v for k, v in tiny_config().items() if k != "torch_dtype"} | {key: name}
        assert str(load(write_folder(tmp_path / name, config)).dtype) == "torch." + name.removeprefix(
            "torch."
        )
    config = {k: v for k, v in tiny_config().items() if k != "torch_dtype"}
    folder = write_folder(tmp_path / "silent", config, random_tensors(config, dtype=torch.bfloat16))
    assert load(folder).dtype == torch.bfloat16


def test_a_tied_head_may_be_stored_or_not(tmp_path):
    config = tiny_config(tie_word_embeddings=True)
    folder = write_folder(tmp_path / "m", config)
    truth = greedy(load(folder), [5, 6, 7])
    tensors = load_file(folder / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
        folder / "model.safetensors",
    )
    assert greedy(load(folder), [5, 6, 7]) == truth


def test_missing_surplus_and_misshapen_tensors_are_named(folder):
    tensors = load_file(folder / "model.safetensors")

    def saved(change):
        save_file(change, folder / "model.safetensors")
        return lambda: load(folder)

    name = "model.layers.1.mlp.up_proj.weight"
    refused(saved({n: t for n, t in tensors.items() if n != name}), "lack", name, "fetch it again")
    refused(saved({n: t for n, t in tensors.items() if n != "lm_head.weight"}), "lack", "lm_head.weight")
    refused(saved(tensors | {"model.layers.2.extra": torch.zeros(2)}), "model.layers.2.extra", "does not use")
    refused(saved(tensors | {name: torch.zeros(3, 48)}), name, "[3, 48]", "[64, 48]")
    refused(saved(tensors | {name: tensors[name].to(torch.float8_e4m3fn)}), name, "float8_e4m3fn")
    refused(
        saved(tensors | {name: tensors[name].to(torch.float8_e4m3fn), name + "_scale_inv": torch.ones(1)}),
        name + "_scale_inv",
    )
    refused(saved(tensors | {name: tensors[name].to(torch.int8)}), name, "int8")
    refused(saved(tensors | {"model.norm.weight": tensors["model.norm.weight"].double()}), "float64")


def test_missing_shards_and_entries_are_named(folder):
    tensors = load_file(folder / "model.safetensors")
    weight_map = shard(folder, tensors)
    second = folder / "model-00002-of-00002.safetensors"
    part = load_file(second)
    lost = sorted(part)[0]
    save_file({n: t for n, t in part.items() if n != lost}, second)
    refused(lambda: load(folder), second.name, lost)
    second.unlink()
    refused(lambda: load(folder), second.name, "missing", "fetch it again")
    assert weight_map
    for file in folder.glob("model*"):
        file.unlink()
    refused(lambda: load(folder), "holds no model.safetensors", "fetch it again")


@pytest.mark.parametrize("size", [-100, 20, 4, 0, None])
def test_truncated_and_fake_files_are_named(folder, size):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 123456\n"
    file.write_bytes(pointer if size is None else whole[:size])
    refused(lambda: load(folder), str(file), "fetch it again")


def test_a_truncated_bin_is_named(folder):
    file = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), file)
    (folder / "model.safetensors").unlink()
    file.write_bytes(file.read_bytes()[:-500])
    refused(lambda: load(folder), str(file), "fetch it again")


def test_folders_that_are_none(tmp_path, folder):
    refused(lambda: find(str(tmp_path / "nowhere")), "no such folder")
    refused(lambda: find("./nowhere"), "no such folder")
    refused(lambda: find(str(folder / "config.json")), "is a file")
    refused(lambda: load(tmp_path), "holds no config.json")
    refused(lambda: Tokenizer(tmp_path), "holds no tokenizer.json", "save_pretrained")
    (folder / "tokenizer.json").write_text("{")
    refused(lambda: Tokenizer(folder), "tokenizer.json", "fetch it again")
    (folder / "config.json").write_text("{ not json")
    refused(lambda: load(folder), "config.json", "not readable as JSON")
    (folder / "config.json").write_text("[1]")
    refused(lambda: load(folder), "expected a JSON object")


def test_devices_and_dtypes_that_are_none(folder):
    if not torch.cuda.is_available():
        refused(lambda: load(folder, device="cuda"), "sees no such device")
    (folder / "config.json").write_text(json.dumps(tiny_config(torch_dtype="float8_e4m3fn")))
    refused(lambda: load(folder), "float8_e4m3fn", "--dtype")


# ---- the Hub -----------------------------------------------------------------------------------------------


def test_hub_errors_say_what_to_do(monkeypatch):
    import huggingface_hub
    from huggingface_hub import errors

    def failing(error):
        def snapshot_download(*args, **kwargs):
            raise error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return lambda: find("acme/model", "v1")

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    response = type("Response", (), {"headers": {}, "status_code": 403, "request": None, "text": ""})()

    def build(kind):
        try:
            return kind("hf_secret", response=response)
        except TypeError:
            return kind("hf_secret", response)

    cases = {
        errors.GatedRepoError: "accept its licence",
        errors.RepositoryNotFoundError: "neither a local folder",
        errors.RevisionNotFoundError: "no revision 'v1'",
    }
    for kind, says in cases.items():
        refused(failing(build(kind)), "acme/model", says)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    refused(failing(errors.LocalEntryNotFoundError("hf_secret")), "cannot be reached")
    refused(failing(ConnectionError("hf_secret")), "check the network")
    for kind in cases:
        with pytest.raises(LoadError) as error:
            failing(build(kind))()
        assert "hf_secret" not in str(error.value)


def offline(tmp_path, *arguments):
    """The command line with an empty or hand-made Hub cache, offline."""
    import os

    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    environment.pop("HF_HUB_CACHE", None)
    return subprocess.run(
        [sys.executable, "goose.py", "--prompt", "def f", "--max-new-tokens", "3", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_offline_uses_a_complete_snapshot_and_refuses_less(tmp_path):
    absent = offline(tmp_path, "--weights", "acme/absent-model")
    assert (
        absent.returncode == 2 and "HF_HUB_OFFLINE is set" in absent.stderr and absent.stderr.count("\n") == 1
    )
    repo = tmp_path / "home/hub/models--acme--tiny"
    snapshot = repo / "snapshots/0123456789012345678901234567890123456789"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text(snapshot.name)
    write_folder(snapshot, tiny_config(vocab_size=300))
    tensors = load_file(snapshot / "model.safetensors")
    (snapshot / "model.safetensors").unlink()
    partial = offline(tmp_path, "--weights", "acme/tiny")
    assert partial.returncode == 2 and "holds no model.safetensors" in partial.stderr
    save_file(tensors, snapshot / "model.safetensors")
    for revision in ([], ["--revision", "main"]):
        complete = offline(tmp_path, "--weights", "acme/tiny", *revision)
        assert complete.returncode == 0, complete.stderr


def test_only_needed_files_are_asked_for(monkeypatch, folder):
    import huggingface_hub

    asked = []

    def snapshot_download(name, revision, allow_patterns):
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert find("acme/model") == folder and asked == [module.HUB_FILES + module.SAFETENSORS]
    (folder / "model.safetensors").unlink()
    find("acme/model")
    assert asked[-1] == module.HUB_FILES + module.PICKLED
