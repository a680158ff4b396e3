"""What cannot be trained or resumed, and what is said about it."""

from __future__ import annotations

import json
import math
import shutil
import socket
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from torch import nn

from skipway.errors import MissingPackageError, ModelRunError, SkipwayError
from skipway.report.files import write_json
from skipway.spec import DataSpec, RunSpec
from skipway.train.fit import resume, run_spec
from skipway.train.folder import RunFolder
from skipway.train.plan import fit, plan_recipe
from skipway.train.run import Run, load_run
from skipway.train.strategy import launch
from train.runs import TEXT, FromData, open_once, tiny
from train.zoo_of_training import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = tiny(checkpoint_every=2)
ANOTHER = "another folder: --out, or out= in Python"
ZOO = str(Path(__file__).with_name("zoo_of_training.py"))


@contextmanager
def says(text: str, kind: type[Exception] = SkipwayError) -> Iterator[None]:
    with pytest.raises(kind) as raised:
        yield
    assert str(raised.value) == text


def stopped(path: Path, spec: RunSpec = SPEC, **how: Any) -> Run:
    run = run_spec(spec, path, data=FromData(open_once(spec.data), 3), **how)
    assert run.status == "stopped"
    return run


def test_a_port_that_is_taken() -> None:
    """Fabric looks for a free port first; it may be another's by the time that it is needed."""

    class Late:
        def launch(self) -> None:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                torch.distributed.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True)

    with pytest.raises(SkipwayError, match=r"cannot meet: .* listen .*\nexpected: a port .*\ntry: the same command"):
        launch(cast("Any", Late()))


# -- folders


def test_a_folder_that_holds_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    stopped(path)
    with says(
        f"{path} holds this very run, not finished\nexpected: an empty or new folder\n"
        f"try: skipway train --resume {path}"
    ):
        run_spec(SPEC, path)
    with says(f"{path} holds another run, not finished\nexpected: an empty or new folder\ntry: {ANOTHER}"):
        run_spec(replace(SPEC, seed=7), path)
    resume(path)
    with says(f"{path} holds this very run, finished\nexpected: an empty or new folder\ntry: {ANOTHER}"):
        run_spec(SPEC, path)
    with says(f"the run in {path} is over (finished)\nexpected: a run that was stopped\ntry: skipway report {path}"):
        resume(path)


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("…")
    with says(f"{tmp_path} is not empty and holds no run\nexpected: an empty or new folder\ntry: another --out"):
        run_spec(SPEC, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "…"


def test_no_run_there(tmp_path: Path) -> None:
    text = f"no run in {tmp_path}\nexpected: a folder with spec.json, as skipway train writes it"
    for function in (resume, load_run):
        with says(text):
            function(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "2.0"}, "a run spec of version '2.0'\nexpected: version '1.0'"),
        ({"sede": 3}, "unknown key of a run spec 'sede'\nexpected: did you mean 'seed'?"),
        ({"recipe": 5}, "a recipe that is 5\nexpected: keys and values"),
        ({"memory": "none"}, "unknown memory 'none'\nexpected: one of: auto, checkpoint, keep, recompute, reversible"),
        ({"threads": 0}, "threads=0\nexpected: an integer from 1 to 1024"),
        ({"threads": 99_999}, "threads=99999\nexpected: an integer from 1 to 1024"),
        ({"seed": 2**32}, "seed=4294967296\nexpected: an integer from 0 to 4294967295"),
        ({"seed": "x"}, "seed='x' in the run spec\nexpected: a value of type int"),
        ({"model": 3}, "model=3 in the run spec\nexpected: a value of type str"),
        ({"inspect": 1}, "inspect=1 in the run spec\nexpected: a value of type bool"),
        ({"channels_last": 1}, "channels_last=1 in the run spec\nexpected: a value of type bool | None"),
        ({"recipe": {"optimizer": {"lr": "nan"}}}, "lr='nan' in the optimizer\nexpected: a value of type float"),
        ({"recipe": {"optimizer": {"lr": math.nan}}},
         "lr=nan, weight_decay=0.0001, eps=1e-08\nexpected: finite, and none of them negative"),
        ({"recipe": {"optimizer": {"betas": [0.9, 2]}}},
         "momentum=0.9, betas=(0.9, 2)\nexpected: momentum from 0, betas in [0, 1)"),
        ({"recipe": {"optimizer": {"betas": [0.9]}}},
         "betas=[0.9] in the optimizer\nexpected: a value of type tuple[float, float]"),
        ({"recipe": {"schedule": {"milestones": 3}}},
         "milestones=3 in the schedule\nexpected: a value of type tuple[float, ...]"),
        ({"model": None}, "a run spec without model\nexpected: all that has no default"),
    ],
)  # fmt: skip
def test_a_spec_that_this_version_cannot_read(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    values = {k: v for k, v in (SPEC.to_dict() | change).items() if v is not None}
    (tmp_path / "spec.json").write_text(json.dumps(values))
    for function in (resume, load_run):
        with says(f"{tmp_path / 'spec.json'}: {said}"):
            function(tmp_path)


def test_a_spec_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("model: resnet8")
    with pytest.raises(SkipwayError, match=r"spec\.json holds no JSON: Expecting value"):
        load_run(tmp_path)
    (tmp_path / "spec.json").write_text("[]")
    with says(f"{tmp_path / 'spec.json'} holds a list\nexpected: a JSON object"):
        load_run(tmp_path)


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"
    text = f"another process trains in {path}\nexpected: one process for each run\ntry: wait, or another --out"
    seen: list[str] = []

    def second() -> None:
        with says(text):
            resume(path)
        seen.append("refused")

    run = run_spec(SPEC, path, data=FromData(open_once(SPEC.data), 2, second))
    assert (run.status, seen) == ("finished", ["refused"])
    with RunFolder(path).locked():
        pass  # let go of


def test_the_folder_is_free_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(SkipwayError):
        run_spec(tiny("resnet9"), path)
    with RunFolder(path).locked():
        pass


# -- checkpoints


def test_a_checkpoint_that_was_cut_off(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run")
    state = run.folder.checkpoint_path
    whole = state.read_bytes()
    for size in (0, 5, 1000, len(whole) - 1):
        state.write_bytes(whole[:size])
        with pytest.raises(SkipwayError) as raised:
            resume(run.path)
        assert str(raised.value).startswith(f"the checkpoint {state} cannot be read: ")
        assert str(raised.value).endswith("\nexpected: the file as it was written")
    state.write_bytes(whole)
    assert resume(run.path).status == "finished"


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    run, other = stopped(tmp_path / "run"), stopped(tmp_path / "other", tiny("resnet14", checkpoint_every=2))
    shutil.copy(other.folder.checkpoint_path, run.folder.checkpoint_path)
    with pytest.raises(SkipwayError) as raised:
        resume(run.path)
    assert str(raised.value).startswith("the checkpoint is of another model\n  fit: ")
    assert "unexpected in the checkpoint (" in str(raised.value)
    assert str(raised.value).endswith("\nexpected: the model that the run began with")
    assert len(str(raised.value).splitlines()) < 6


def test_a_file_that_is_no_checkpoint(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run")
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, run.folder.checkpoint_path)
    with says(f"{run.folder.checkpoint_path} is of format None\nexpected: 'skipway.checkpoint/1.0'"):
        resume(run.path)


def test_other_data_than_at_the_beginning(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run")
    other = open_once(DataSpec(train_size=500))
    before, now = open_once(SPEC.data).info.fingerprint, other.info.fingerprint
    with says(
        f"the data are others than those the run began with (fingerprint {now}, was {before})\n"
        "expected: digits: scikit-learn's digits, a fifth kept for testing, drawn once and balanced by class"
    ):
        resume(run.path, data=other)


def test_a_module_is_needed_again(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run", tiny("module:Sequential"), module=plain())
    with says(
        f"the run in {run.path} was given a module, Sequential\nexpected: the same module, freshly built\n"
        "try: skipway.resume(DIR, module=MyNet())"
    ):
        resume(run.path)
    finished = resume(run.path, module=plain())
    with says(
        f"the run in {run.path} was given a module, Sequential\nexpected: such a module, to load the weights into\n"
        "try: load_run(DIR).model(MyNet())"
    ):
        finished.model()
    assert isinstance(finished.model(plain()), nn.Module)


def test_weights_before_the_end(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run")
    with says(
        f"the run in {run.path} is stopped and has no final weights\nexpected: a finished run\n"
        f"try: skipway train --resume {run.path}"
    ):
        run.model()


# -- names and devices


def test_names_that_nobody_knows(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with says("unknown precision 'bf16'\nexpected: did you mean 'bf16-true'?"):
        run_spec(replace(SPEC, precision="bf16"), path)
    with says("precision 16-mixed on a processor\nexpected: a GPU\ntry: --precision bf16-mixed"):
        run_spec(replace(SPEC, precision="16-mixed", accelerator="cpu"), path)
    with says("unknown recipe 'quik'\nexpected: did you mean 'quick'?"):
        plan_recipe("quik", DataSpec())
    for model in ("resnet9", "resnet8@preactt", "vgg16"):
        with pytest.raises(SkipwayError, match="expected: "):
            run_spec(replace(SPEC, model=model), path)
    with says("unknown data set 'digit'\nexpected: did you mean 'digits'?\ntry: the path of a folder of class folders"):
        fit("resnet8", "digit", out=path)
    with pytest.raises(SkipwayError, match="unknown data set ''"):
        fit("resnet8", "", out=path)
    # A refusal takes nobody's folder.
    assert run_spec(SPEC, path).status == "finished"


@pytest.mark.parametrize(
    "changes",
    [{"strategy": "ddpp"}, {"accelerator": "gpuu"}, {"accelerator": "cuda", "devices": 3}, {"accelerator": "tpu"}],
)
def test_devices_and_strategies_that_are_not_there(changes: dict[str, Any], tmp_path: Path) -> None:
    if changes.get("accelerator") == "cuda" and torch.cuda.device_count() >= 3:
        pytest.skip("this machine has them")
    spec = replace(SPEC, **changes)
    with pytest.raises(SkipwayError) as raised:
        run_spec(spec, tmp_path / "run")
    given = f"accelerator={spec.accelerator!r}, devices={spec.devices}, strategy={spec.strategy!r}: "
    assert str(raised.value).startswith(given)
    assert str(raised.value).endswith("\nexpected: what Lightning Fabric offers on this machine")
    assert not (tmp_path / "run").exists()


# -- models that do not fit the data


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("five", ("digits has 10 classes, the model's head has 5 outputs\nexpected: at least 10 outputs\n"
         "try: num_classes of your factory")),
        ("map_of_logits", ("logits of shape (2, 10, 8, 8) for targets of shape (2,)\n"
         "expected: (2, 10): one row of logits for each target")),
        ("text_of_logits", "the model returns str\nexpected: a tensor of logits, or a record with them"),
        ("wants_32_pixels", ("the model failed on (2, 1, 8, 8), samples of digits: RuntimeError: mat1 and mat2 shapes "
         "cannot be multiplied (2x64 and 1024x10)\nexpected: a model that reads such samples\n"
         "try: --image-size for nets that are made for another size")),
        ("without_values", "0.weight of the model is on the meta device, without values\nexpected: a net with weights"),
        ("nothing_to_train", "no parameter of the model needs a gradient\nexpected: something to train"),
        ("state_of_words", ("_extra_state in the model's state dict is of type dict\n"
         "expected: tensors, since nothing is pickled\ntry: a buffer, or get_extra_state that gives a tensor")),
    ],
)  # fmt: skip
def test_a_net_that_does_not_fit(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SkipwayError) as raised:
        run_spec(tiny(f"{ZOO}:{name}"), tmp_path / "run")
    assert str(raised.value).replace("addmm: ", "") == said  # which newer PyTorch puts before its message
    assert isinstance(raised.value, ModelRunError) == (name in ("text_of_logits", "wants_32_pixels"))
    assert not (tmp_path / "run" / "spec.json").exists()


@pytest.mark.parametrize(
    ("name", "batch_size", "said"),
    [
        ("needs_two_samples", 1, ("the model failed in step 1, trained on (1, 1, 8, 8): ValueError: Expected more than "
         "1 value per channel when training, got input size torch.Size([1, 10])")),
        ("cuts_the_gradient", 8, ("the model failed in the backward pass of step 1, trained on (8, 1, 8, 8): "
         "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn")),
    ],
)  # fmt: skip
def test_a_net_that_fails_in_training_only(name: str, batch_size: int, said: str, tmp_path: Path) -> None:
    with says(f"{said}\nexpected: a model that trains on such batches", ModelRunError):
        run_spec(tiny(f"{ZOO}:{name}", batch_size=batch_size), tmp_path / "run")


@pytest.mark.parametrize("name", ["lazy", "complex_gain"])
def test_parameters_of_other_kinds(name: str, tmp_path: Path) -> None:
    run = stopped(tmp_path / "run", tiny(f"{ZOO}:{name}", channels_last=True))
    assert resume(run.path).status == "finished"


def test_more_outputs_than_classes_are_no_error(tmp_path: Path) -> None:
    assert run_spec(tiny(f"{ZOO}:twelve", steps=2), tmp_path / "run").status == "finished"


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        ("resnet8", TEXT, ("resnet8 reads images, and the data are sequences of 32 token ids\n"
         "expected: a model that reads them\ntry: gpt_nano, bert_nano")),
        ("gpt_nano", DataSpec(), ("gpt_nano reads token ids, and the data are images (1, 8, 8)\n"
         "expected: a model that reads them\ntry: resnet20, wrn28_10, vit_tiny, mlp40")),
        ("gpt_nano", DataSpec(name="text", context=300, train_size=50, test_size=5),
         "sequences of 300 tokens for gpt_nano\nexpected: at most 256, its context\ntry: --context 256"),
    ],
)  # fmt: skip
def test_tokens_and_images(model: str, data: DataSpec, said: str, tmp_path: Path) -> None:
    with says(said):
        run_spec(tiny(model, data=data), tmp_path / "run", data=open_once(data))


def test_a_batch_larger_than_the_set(tmp_path: Path) -> None:
    with says("batch_size=64, but digits has 50 training samples\nexpected: at most 50"):
        run_spec(tiny(data=DataSpec(train_size=50), batch_size=64), tmp_path / "run")
    assert not (tmp_path / "run" / "spec.json").exists()


def test_a_single_sample(tmp_path: Path) -> None:
    spec = tiny(data=DataSpec(train_size=1, test_size=1), batch_size=1, steps=1, inspect=True)
    assert run_spec(spec, tmp_path / "run").status == "finished"


def test_something_that_is_no_model(tmp_path: Path) -> None:
    with says("a model of type int\nexpected: a name, a module or a RunSpec"):
        fit(3, out=tmp_path / "run")  # type: ignore[arg-type]
    with says("data of type int\nexpected: a name or a DataSpec"):
        fit("resnet8", 3, out=tmp_path / "run")  # type: ignore[arg-type]
    with says("a recipe of type int\nexpected: a name or a RecipeSpec"):
        fit("resnet8", recipe=3, out=tmp_path / "run")  # type: ignore[arg-type]


def test_a_module_without_a_length(tmp_path: Path) -> None:
    compiled: Any = torch.compile(plain(), backend="eager")
    assert run_spec(tiny("module:Compiled", steps=1), tmp_path / "run", module=compiled).status == "finished"

    class Empty(nn.Linear):
        def __len__(self) -> int:
            return 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.flatten(1))

    run = run_spec(tiny("module:Empty", steps=1), tmp_path / "empty", module=Empty(64, 10))
    with says(
        f"{run.folder.weights_path} fits the model only partly, so nothing was loaded\n"
        "  fit: 0 of the model's 2 tensors\n"
        "  of another shape (2): weight [10, 64] in the file, [12, 64] here, bias [10] in the file, [12] here\n"
        "expected: such a module as was trained"
    ):
        run.model(Empty(64, 12))


# -- logging


def test_another_log(tmp_path: Path) -> None:
    with says("--log paper\nexpected: tensorboard"):
        run_spec(SPEC, tmp_path / "run", log="paper")


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning_fabric.loggers.tensorboard as theirs

    monkeypatch.setattr(theirs, "_TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr(theirs, "_TENSORBOARDX_AVAILABLE", False)
    with says(
        "--log tensorboard needs the package 'tensorboard', which is not installed\ntry: pip install 'skipway[track]'",
        MissingPackageError,
    ):
        run_spec(SPEC, tmp_path / "run", log="tensorboard")


# -- what is put back


def test_threads_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    inside: list[int] = []
    data = FromData(open_once(SPEC.data), 1, lambda: inside.append(torch.get_num_threads()))
    run_spec(replace(SPEC, threads=before + 1), tmp_path / "run", data=data)
    assert (inside, torch.get_num_threads()) == ([before + 1], before)


def test_resumed_with_the_threads_it_began_with(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run", replace(SPEC, threads=None))
    assert run.environment["threads"] == torch.get_num_threads()


def test_other_versions_are_said(tmp_path: Path, heard) -> None:
    run = stopped(tmp_path / "run")
    facts = run.environment
    write_json(run.folder.environment_path, facts | {"torch": "2.5.0"})
    resume(run.path, listener=heard)
    assert heard.notes == [f"perhaps not the bits of an undisturbed run: torch 2.5.0 → {facts['torch']}"]


def test_seconds_add_up_over_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of one second a step; what passes between the stretches is not counted."""
    from skipway.train import loop

    now = [1000.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])

    class Slow(FromData):
        def train(self, *, start: int = 0, **how: Any) -> Iterator[Any]:
            for batch in super().train(start=start, **how):
                now[0] += 1
                yield batch

    run = run_spec(SPEC, tmp_path / "run", data=Slow(open_once(SPEC.data), 2))
    assert run.status == "stopped"
    now[0] += 500
    run = resume(run.path, data=Slow(open_once(SPEC.data), -1))
    assert [line["seconds"] for line in run.metrics() if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert (run.result["seconds"], run.result["samples_per_sec"]) == (6, 32)


def test_two_modules_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [fit(plain(), steps=1, batch_size=8) for _ in range(3)]
    names = [run.path.name for run in runs]
    assert names[1:] == [f"{names[0]}-2", f"{names[0]}-3"]


def test_a_run_of_code_in_a_file_is_resumed_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    shutil.copy(ZOO, tmp_path / "here" / "nets.py")
    monkeypatch.chdir(tmp_path / "here")
    stopped(tmp_path / "run", tiny("nets.py:plain", checkpoint_every=2))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkipwayError, match=r"there is no file 'nets\.py'") as raised:
        resume(tmp_path / "run")
    assert str(raised.value).endswith(f"try: cd {tmp_path / 'here'}, where the run began")
    monkeypatch.chdir(tmp_path / "here")
    assert resume(tmp_path / "run").status == "finished"
