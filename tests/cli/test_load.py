"""Any model by name: what is built, and what is said when it cannot be."""

from __future__ import annotations

import builtins
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from skipway.errors import MissingPackageError, ModelRunError, SkipwayError, UnknownNameError
from skipway.models.load import (
    load_model,
    load_weights,
    model_names,
    parse_input,
    read_batch,
    suggested_input,
    with_keywords,
)

if TYPE_CHECKING:
    from pathlib import Path

NET = """
    import helper_of_net
    from torch import nn

    WIDTH = 3
    READY = nn.Linear(2, 2).eval()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(WIDTH, helper_of_net.CLASSES)

        def forward(self, x, scale=1.0):
            return self.fc(x) * scale

    def build():
        return Net()

    def wide(width, *, depth):
        return Net()

    def nothing():
        return {"a": 1}

    def broken():
        return nn.Linear(2, -1)
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net_of_test.py"
    path.write_text(textwrap.dedent(NET))
    (tmp_path / "helper_of_net.py").write_text("CLASSES = 5\n")
    yield path
    for name in ("net_of_test", "helper_of_net"):
        sys.modules.pop(name, None)


def said(call, kind=SkipwayError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def run(loaded) -> torch.Tensor:
    with torch.no_grad():
        return loaded.model(**loaded.batch) if isinstance(loaded.batch, dict) else loaded.model(loaded.batch)


# -- libraries


def test_torchvision() -> None:
    loaded = load_model("tv:resnet18")
    assert sum(p.numel() for p in loaded.model.parameters()) == 11_689_512  # torchvision's published count
    assert (loaded.mode, loaded.source, loaded.fresh) == ("train", "tv", True)
    assert loaded.batch.shape == (2, 3, 224, 224)


def test_torchvision_sizes_are_the_published_ones() -> None:
    assert load_model("tv:inception_v3", batch_size=1).batch.shape == (1, 3, 299, 299)


def test_detectors_run_in_eval_mode() -> None:
    loaded = load_model("tv:ssdlite320_mobilenet_v3_large", batch_size=1)
    assert loaded.mode == "eval"
    assert "boxes" in run(load_model_in_mode(loaded))[0]


def load_model_in_mode(loaded):
    loaded.model.train(loaded.mode == "train")
    return loaded


def test_timm() -> None:
    loaded = load_model("timm:resnet10t.c3_in1k")
    assert loaded.batch.shape == (2, 3, 176, 176)
    assert run(loaded).shape == (2, 1000)


def test_transformers_from_a_type_a_folder_and_a_folder_with_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config.save_pretrained(tmp_path / "config")
    loaded = load_model(f"hf:{tmp_path / 'config'}")
    assert (loaded.fresh, loaded.mode) == (True, "train")
    assert run(loaded).last_hidden_state.shape == (2, 16, 8)
    with torch.no_grad():
        loaded.model.embeddings.word_embeddings.weight.fill_(0.25)
    loaded.model.save_pretrained(tmp_path / "trained")
    trained = load_model(f"hf:{tmp_path / 'trained'}")
    assert (trained.fresh, trained.mode) == (False, "eval")
    assert trained.model.embeddings.word_embeddings.weight.eq(0.25).all()


def test_encoder_decoders_get_both_inputs(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.T5Config(d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2).save_pretrained(tmp_path)
    loaded = load_model(f"hf:{tmp_path}")
    assert set(loaded.batch) >= {"input_ids", "decoder_input_ids"}
    assert run(loaded).last_hidden_state.shape == (2, 16, 8)


def test_code_in_a_transformers_folder_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "their_own", "auto_map": {"AutoConfig": "code_of_theirs.Config"}}'
    )
    (tmp_path / "code_of_theirs.py").write_text("raise SystemExit('it was run')\n")
    text = said(lambda: load_model(f"hf:{tmp_path}"), ModelRunError)
    assert text.startswith(f"transformers cannot read the configuration in '{tmp_path}': ")


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    text = said(lambda: load_model("hf:someone/some-model-of-theirs"))
    assert text == (
        "hf:someone/some-model-of-theirs is not on this machine, and nothing is downloaded unless asked\n"
        "expected: a local folder, a config.json, an id in the local cache, or a model type such as hf:bert\n"
        "try: hf download someone/some-model-of-theirs"
    )
    load_model("tv:lraspp_mobilenet_v3_large")  # torchvision would fetch its backbone


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tv:resnt18", "unknown torchvision model 'resnt18'\nexpected: did you mean 'resnet18' or"),
        ("timm:resnt50", "unknown timm model 'resnt50'\nexpected: did you mean 'resnet50' or"),
        ("timm:hf-hub:someone/net", "unknown timm model 'hf-hub:someone/net'\nexpected: "),
        ("tmm:resnet50", "unknown prefix 'tmm:', and no module of that name\nexpected: did you mean 'timm:'?"),
        (
            "nosuchpackage.nets:build",
            (
                "there is no module 'nosuchpackage'\nexpected: pkg.mod:factory, importable from here, or "
                "path/to/file.py:factory, or a prefix: tv:, timm:, hf:"
            ),
        ),
    ],
)
def test_unknown_names(name: str, text: str) -> None:
    assert said(lambda: load_model(name)).startswith(text)


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("timm:resnet18", "timm", "timm"), ("hf:bert", "transformers", "hf")]
)
def test_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    real = builtins.__import__

    def without(wanted: str, *rest: object) -> object:
        if wanted.split(".", maxsplit=1)[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(wanted, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert said(lambda: load_model(name), MissingPackageError) == (
        f"a model named {name.split(':', maxsplit=1)[0]}:… needs the package {package!r}, which is not installed\n"
        f"try: pip install 'skipway[{extra}]'"
    )


# -- somebody's own code


@pytest.mark.parametrize("attribute", ["build", "Net"])
def test_a_factory_in_a_file(net: Path, attribute: str) -> None:
    path_before = list(sys.path)
    loaded = load_model(f"{net}:{attribute}")
    assert loaded.model.fc.out_features == 5
    assert (loaded.source, loaded.mode, loaded.batch) == ("file", "train", None)
    assert sys.path == path_before


def test_a_ready_module_keeps_its_mode(net: Path) -> None:
    assert load_model(f"{net}:READY").mode == "eval"


def test_a_factory_in_a_module(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(net.parent)
    assert load_model("net_of_test:build").source == "module"


def test_an_example_input_of_the_model_is_used(tmp_path: Path) -> None:
    path = tmp_path / "lit_of_test.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\ndef build():\n    net = nn.Linear(4, 4)\n"
        "    net.example_input_array = torch.zeros(3, 4)\n    return net\n"
    )
    assert load_model(f"{path}:build").batch.shape == (3, 4)


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (
            "bulid",
            "unknown name 'bulid'\nexpected: did you mean 'build'?\ntry: a factory or class of {net}, as {net}:NAME",
        ),
        (
            "WIDTH",
            (
                "{net}:WIDTH is not callable: it is of type int\n"
                "expected: a function or class that takes no arguments and gives a torch.nn.Module"
            ),
        ),
        (
            "wide",
            (
                "{net}:wide needs arguments: width, depth\nexpected: a factory without arguments\n"
                "try: def build(): return wide(width=…, depth=…)"
            ),
        ),
        ("nothing", "{net}:nothing() gives dict, no model\nexpected: a factory that gives a torch.nn.Module"),
    ],
)
def test_what_is_no_factory(net: Path, attribute: str, text: str) -> None:
    assert said(lambda: load_model(f"{net}:{attribute}")) == text.format(net=net)


def test_a_file_without_a_factory_named(net: Path) -> None:
    assert said(lambda: load_model(str(net))) == (
        f"'{net}' names no factory\nexpected: {net}:FACTORY; the file defines Net, build, wide, nothing, broken"
    )


def test_a_file_that_is_not_there(net: Path) -> None:
    typo = net.with_name("net_of_tst.py")
    assert said(lambda: load_model(f"{typo}:build")) == f"there is no file '{typo}'\nexpected: did you mean '{net}'?"


def test_a_factory_that_fails_keeps_its_error(net: Path) -> None:
    with pytest.raises(ModelRunError, match=r":broken\(\) fails: RuntimeError: ") as caught:
        load_model(f"{net}:broken")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_file_that_fails_to_import_keeps_its_error(tmp_path: Path) -> None:
    path = tmp_path / "fails_of_test.py"
    path.write_text("import a_package_that_is_not_here\n")
    text = said(lambda: load_model(f"{path}:build"), ModelRunError)
    assert text == f"{path} fails to import: ModuleNotFoundError: No module named 'a_package_that_is_not_here'"
    assert not [name for name in sys.modules if "fails_of_test" in name]


def test_a_module_whose_own_import_is_missing_is_not_called_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mod_of_test.py").write_text("import a_package_that_is_not_here\n")
    monkeypatch.chdir(tmp_path)
    assert said(lambda: load_model("mod_of_test:build"), ModelRunError).startswith("mod_of_test fails to import: ")


# -- weights


def test_weights_are_loaded_from_both_kinds_of_file(tmp_path: Path) -> None:
    source = nn.Linear(3, 2)
    torch.save(source.state_dict(), tmp_path / "w.pt")
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        target = nn.Linear(3, 2)
        assert load_weights(target, tmp_path / name) == 2
        assert torch.equal(target.weight, source.weight)


def test_loaded_weights_are_measured_in_eval_mode(net: Path) -> None:
    path = net.with_suffix(".pt")
    torch.save(load_model(f"{net}:build").model.state_dict(), path)
    loaded = load_model(f"{net}:build", weights=path)
    assert (loaded.mode, loaded.fresh) == ("eval", False)


def test_partly_fitting_weights_load_nothing(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = {
        "0.weight": torch.ones(2, 3),
        "0.bias": torch.ones(4),
        "1.weight": torch.ones(2, 2),
        "head.bias": torch.ones(1),
    }
    torch.save(state, tmp_path / "w.pt")
    assert said(lambda: load_weights(model, tmp_path / "w.pt")) == (
        f"{tmp_path / 'w.pt'} fits the model only partly, so nothing was loaded\n"
        "  fit: 2 of the model's 4 tensors\n"
        "  missing in the file (1): 1.bias\n"
        "  unexpected in the file (1): head.bias\n"
        "  of another shape (1): 0.bias [4] in the file, [2] here\n"
        "expected: every tensor of the model and no other\n"
        "try: build the model with the file's number of classes, or save the file from this very model"
    )
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_one_tensor_too_many_or_too_few_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    state = model.state_dict()
    torch.save({**state, "extra": torch.ones(1)}, tmp_path / "more.pt")
    torch.save({"weight": state["weight"]}, tmp_path / "less.pt")
    assert "unexpected in the file (1): extra" in said(lambda: load_weights(model, tmp_path / "more.pt"))
    assert "missing in the file (1): bias" in said(lambda: load_weights(model, tmp_path / "less.pt"))


def test_a_wrapped_checkpoint_is_recognised(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    torch.save({f"module.{key}": value for key, value in model.state_dict().items()}, tmp_path / "w.pt")
    text = said(lambda: load_weights(model, tmp_path / "w.pt"))
    assert text.endswith("try: every name in the file begins with 'module.': save the inner module's state_dict()")


def test_tied_weights_may_stand_in_the_file_once(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    save_file({"0.weight": torch.eye(3)}, tmp_path / "w.safetensors")
    assert load_weights(tied, tmp_path / "w.safetensors") == 1
    assert torch.equal(tied[1].weight, torch.eye(3))


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "whole.pt")
    torch.save(model, tmp_path / "pickled.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    assert said(lambda: load_weights(model, tmp_path / "whole.pt")).startswith(
        f"{tmp_path / 'whole.pt'} holds no flat dictionary of tensors but dict with the keys state_dict, epoch\n"
    )
    assert "cannot be read as tensors only" in said(lambda: load_weights(model, tmp_path / "pickled.pt"))
    assert "is no readable safetensors file" in said(lambda: load_weights(model, tmp_path / "broken.safetensors"))
    assert said(lambda: load_weights(model, tmp_path / "none.pt")).startswith("there is no file")


# -- inputs

TOKENS = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 4))


class TwoInputs(nn.Module):
    def forward(self, image, mask, scale=1.0):
        return image


def test_shapes_in_words() -> None:
    assert parse_input("2,3,8,8", TOKENS).shape == (2, 3, 8, 8)
    image, label = parse_input("2,3,64,64;2,5", TOKENS)
    assert (image.shape, label.shape) == ((2, 3, 64, 64), (2, 5))


def test_integers_stay_below_the_bound() -> None:
    ids = parse_input("ids:4,100", TOKENS)
    assert ids.dtype == torch.int64
    assert 40 < ids.max() < 50
    assert parse_input("ids7:4,100", TOKENS).max() == 6


def test_other_kinds() -> None:
    assert parse_input("mask:2,3", TOKENS).dtype == torch.bool
    assert parse_input("ones:2", TOKENS).tolist() == [1.0, 1.0]
    unit = parse_input("unit:1000", TOKENS)
    assert 0 <= unit.min() < unit.max() <= 1


def test_names_make_keywords() -> None:
    batch = parse_input("input_ids=ids:2,16;attention_mask=mask:2,16", TOKENS)
    assert {key: value.dtype for key, value in batch.items()} == {
        "input_ids": torch.int64,
        "attention_mask": torch.bool,
    }
    mixed = parse_input("2,3;mask=mask:2", TwoInputs())
    assert set(mixed) == {"image", "mask"}


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
        nn.Conv1d(7, 4, 3), nn.Conv3d(2, 4, 3), nn.Sequential(nn.LayerNorm(9), nn.Linear(9, 3)),
        nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30)),
    ],
    ids=["grey images", "sound", "volumes", "vectors", "tokens"],
)  # fmt: skip
def test_an_input_that_is_suggested_runs(model: nn.Module) -> None:
    batch = parse_input(suggested_input(model), model)
    assert isinstance(batch, torch.Tensor)
    model(batch)


def test_the_same_words_give_the_same_numbers() -> None:
    assert torch.equal(parse_input("2,3", TOKENS), parse_input("2,3", TOKENS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x3", "no input: '2x3'\nexpected: [NAME=][KIND:]D,D,… joined by ';'\ntry: 2,3,224,224 or ids:2,16"),
        ("2,,3", "no input: '2,,3'"),
        ("", "no input: ''"),
        ("id:2,3", "unknown kind of input 'id'\nexpected: did you mean 'ids'?"),
        ("ones5:2,3", "unknown kind of input 'ones5'\nexpected: did you mean 'ones'"),
    ],
)
def test_words_that_are_no_input(text: str, expected: str) -> None:
    assert said(lambda: parse_input(text, TOKENS)).startswith(expected)


def test_integers_without_an_embedding_need_a_bound() -> None:
    assert said(lambda: parse_input("ids:2,3", nn.Linear(3, 3))) == (
        "the model has no embedding that would bound the integers of an 'ids' input\n"
        "expected: the bound behind 'ids'\ntry: ids1000:2,16"
    )


def test_batches_from_files(tmp_path: Path) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    save_file({"x": x}, tmp_path / "one.safetensors")
    save_file({"image": x, "mask": x + 1}, tmp_path / "two.safetensors")
    torch.save((x, x), tmp_path / "tuple.pt")
    torch.save(x, tmp_path / "tensor.pt")
    torch.save([], tmp_path / "empty.pt")
    model = TwoInputs()
    assert torch.equal(read_batch(tmp_path / "one.safetensors", model), x)
    assert set(read_batch(tmp_path / "two.safetensors", model)) == {"image", "mask"}
    assert len(read_batch(tmp_path / "tuple.pt", model)) == 2
    assert torch.equal(read_batch(tmp_path / "tensor.pt", model), x)
    assert said(lambda: read_batch(tmp_path / "empty.pt", model)).endswith(
        "holds list, no batch\nexpected: a tensor, a tuple or a dict of tensors"
    )


def test_keywords_join_positional_inputs_by_name() -> None:
    x = torch.zeros(2)
    assert set(with_keywords((x, x), {"scale": 2.0}, TwoInputs())) == {"image", "mask", "scale"}
    with pytest.raises(SkipwayError, match="4 positional inputs beside keywords, but forward names 3 arguments"):
        with_keywords((x, x, x, x), {"scale": 2.0}, TwoInputs())


def test_completion_reads_the_registries() -> None:
    assert "tv:resnet50" in model_names("tv:res")
    assert all(name.startswith("timm:resnet1") for name in model_names("timm:resnet1"))
    with pytest.raises(UnknownNameError):
        load_model("tv:")
