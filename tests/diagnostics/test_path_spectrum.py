"""The gradient by path length against a polynomial interpolated from ordinary backward passes, in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

import skipway
from diagnostics.path_nets import CONV, TOKENS, L, batch_for, make
from oracle.path_polynomial import parts_by_interpolation
from skipway.diagnostics.measure import projection_loss
from skipway.diagnostics.path_spectrum import carry_out
from skipway.errors import ModelRunError, SkipwayError
from zoo.fingerprint import differences, state

if TYPE_CHECKING:
    from skipway.diagnostics.path_spectrum.result import PathSpectrum

EXACT = [n for n in (*TOKENS, *CONV) if n not in ("RecomputedReentrant", "Detour")]


def interpolated(name: str, *, train: bool = True) -> Tensor:
    """All parts of the gradient at the stream, (L + 1, …), from a twin that is written for it."""
    net, batch = make(name).train(train), batch_for(name)

    def gradient(share: float) -> Tensor:
        net.share = share
        torch.manual_seed(5)
        loss = projection_loss(net(batch))
        return torch.autograd.grad(loss, net.stream[0])[0]

    return parts_by_interpolation(gradient, L)


def spectrum(name: str, *, train: bool = True, **how: object) -> PathSpectrum:
    net = make(name).train(train)
    torch.manual_seed(5)
    return skipway.path_spectrum(net, batch_for(name), sampled=0, **how)


def agree(found: PathSpectrum, parts: Tensor) -> None:
    whole = parts.sum(0)
    assert found.norm == pytest.approx([float(p.norm()) for p in parts], rel=1e-9, abs=1e-11 * float(whole.norm()))
    shares = [float((p * whole).sum() / whole.square().sum()) for p in parts]
    assert found.share == pytest.approx(shares, rel=1e-9, abs=1e-10)
    assert found.total_norm == pytest.approx(float(whole.norm()), rel=1e-10)
    assert sum(found.share) == pytest.approx(1.0, abs=1e-12)
    assert max(found.sum_error, found.degree0_error) <= 1e-12
    assert found.trusted


@pytest.mark.parametrize(
    ("name", "carry"),
    [(n, "together") for n in EXACT if n not in ("Distances", "Itemised")] + [(n, "one by one") for n in EXACT],
)
def test_every_degree_is_the_coefficient_of_a_polynomial(name: str, carry: str) -> None:
    found = spectrum(name, carry=carry)
    assert len(found.units) == L
    assert found.uncounted == ()
    parts = interpolated(name)
    assert float(parts[1:].sum(0).norm()) > 1e-2 * float(parts.sum(0).norm())  # else the comparison would say little
    agree(found, parts)


def test_eval_mode() -> None:
    agree(spectrum("Dropped", train=False), interpolated("Dropped", train=False))
    agree(spectrum("Conv", train=False), interpolated("Conv", train=False))


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("carry", ["together", "one by one"])
def test_what_is_longer_is_one_part(length: int, carry: str) -> None:
    parts = interpolated("Conv")
    found = spectrum("Conv", max_length=length, carry=carry)
    rest = parts[length + 1 :].sum(0)
    assert found.norm == pytest.approx([float(p.norm()) for p in parts[: length + 1]], rel=1e-9)
    assert found.longer_norm == pytest.approx(float(rest.norm()), rel=1e-9)
    assert sum(found.share) + found.longer_share == pytest.approx(1.0, abs=1e-12)
    assert found.trusted


def test_lots_that_are_carried_together_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows at a time: each mark hands the highest of a lot to the next."""
    from skipway.diagnostics.path_spectrum.run import LiveRun

    monkeypatch.setattr(LiveRun, "rows_at_once", lambda self, size: 3)
    agree(spectrum("Conv", carry="together"), interpolated("Conv"))
    found = spectrum("Conv", carry="together", max_length=2)
    assert found.longer_norm == pytest.approx(float(interpolated("Conv")[3:].sum(0).norm()), rel=1e-9)


# -- what cannot be carried together


def test_a_silent_error_under_vmap_is_caught_by_the_checks() -> None:
    found = spectrum("Distances", carry="together")
    assert not found.trusted
    assert max(found.sum_error, found.degree0_error) > 1e-3
    assert repr(found).split("\n")[3].startswith("NOT TO BE TRUSTED: the parts do not add up to the gradient")


@pytest.fixture
def first_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: together, or one by one where that does not do."""
    monkeypatch.setattr(carry_out, "_ways", lambda *_: ("together", "one by one"))


@pytest.mark.usefixtures("first_together")
def test_what_fails_the_checks_together_is_carried_one_by_one() -> None:
    found = spectrum("Distances")
    agree(found, interpolated("Distances"))
    assert found.carried == "one by one"
    (note,) = found.notes
    assert note.startswith("carried one by one: together they fail the checks (sum ")
    assert note.endswith(", so an operation computes wrong numbers under vmap")


@pytest.mark.usefixtures("first_together")
def test_what_vmap_refuses_is_carried_one_by_one() -> None:
    found = spectrum("Itemised")
    agree(found, interpolated("Itemised"))
    assert found.carried == "one by one"
    (note,) = found.notes
    assert note.startswith("carried one by one: together they fail with RuntimeError: vmap: It looks like you're ")


def test_what_vmap_refuses_fails_in_words_where_vmap_is_asked_for() -> None:
    with pytest.raises(ModelRunError, match="the backward run fails with RuntimeError: vmap"):
        spectrum("Itemised", carry="together")


@pytest.mark.parametrize("name", ["Distances", "Itemised"])
def test_on_the_cpu_vmap_is_not_needed(name: str) -> None:
    found = spectrum(name)
    agree(found, interpolated(name))
    assert (found.carried, found.notes) == ("one by one", ())


def test_reentrant_checkpoints_are_refused_in_words() -> None:
    with pytest.raises(ModelRunError) as refused:
        spectrum("RecomputedReentrant")
    assert "the backward run fails with RuntimeError: When use_reentrant=True, " in str(refused.value)
    assert str(refused.value).endswith("try: checkpoint(..., use_reentrant=False)")


def test_the_older_vmap_would_leave_everything_at_degree_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `is_grads_batched` the rule of the mark is never called; the sum is still right, degree 0 is not."""
    from skipway.diagnostics.path_spectrum import run

    def legacy(self: run.LiveRun, weights: Tensor, turn: object) -> list[Tensor]:
        self.switch.turn, self.switch.together = turn, False
        try:
            # Marks see single gradients here, so they do nothing wrong that could be noticed: they do nothing at all.
            self.switch.turn = None
            return list(torch.autograd.grad(self.loss, self.targets, weights, is_grads_batched=True, retain_graph=True))
        finally:
            self.switch.turn = None

    monkeypatch.setattr(run.LiveRun, "together", legacy)
    found = spectrum("Net", carry="together")
    assert found.sum_error <= 1e-12
    assert found.degree0_error > 0.1
    assert not found.trusted


# -- the road


class Scaled(nn.Module):
    """x' = λ·x + F(x): nothing else on the road."""

    def __init__(self, lam: float, branch: type[nn.Module], units: int = 6) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.lam = lam
        self.stem = branch()
        self.branches = nn.ModuleList(branch() for _ in range(units))
        self.end = branch()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for branch in self.branches:
            x = self.lam * x + branch(x)
        return self.end(x)


class Tokens(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


class Images(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 3, 1, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("branch", "shape"), [(Tokens, (2, 5, 8)), (Images, (2, 3, 6, 6))])
@pytest.mark.parametrize("lam", [1.0, 0.9, 0.5, 1.3])
def test_degree_0_of_a_scaled_net_is_lambda_to_the_number_of_units(lam, branch, shape, dtype) -> None:
    found = skipway.path_spectrum(Scaled(lam, branch).to(dtype), torch.randn(shape, dtype=dtype), sampled=0)
    assert len(found.units) == 6
    assert found.road == ("unchanged" if lam == 1 else "scaled")
    assert found.road_factor == pytest.approx(lam**6, rel=1e-6)


@pytest.mark.parametrize("name", ["gpt_nano@scaled(lam=0.9,mu=1.0)", "gpt_nano@pre_norm"])
def test_the_road_of_our_own_nets(name: str) -> None:
    model = skipway.create_model(name)
    found = skipway.path_spectrum(model, torch.randint(0, 60, (2, 12)), sampled=0)
    if name.endswith("pre_norm"):
        assert (found.road, found.road_factor) == ("unchanged", 1.0)
    else:
        assert found.road in ("scaled", "changed")


def test_a_road_with_norms_on_it_changes_the_gradient() -> None:
    found = spectrum("PostNorm")
    assert found.road == "changed"
    assert "no clean road: past all branches the gradient is changed by what stands on the road" in repr(found)


def test_no_road() -> None:
    """Where the shortcut is detached, nothing arrives without passing a branch."""

    class Detached(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for branch in self.branches:
                x = x.detach() + branch(x)
            return self.end(x)

    found = skipway.path_spectrum(Detached(1.0, Tokens).double(), torch.randn(2, 5, 8, dtype=torch.float64), sampled=0)
    assert found.road == "none"
    assert found.norm[0] == 0
    assert found.share[-1] == pytest.approx(1.0)
    assert "no road: without passing a branch no gradient arrives." in repr(found)


# -- what the gradient is taken of


@pytest.mark.parametrize("of", ["input", "parameters"])
def test_input_and_parameters(of: str) -> None:
    net, batch = make("Net"), batch_for("Net")
    found = skipway.path_spectrum(net, batch, of=of)

    def gradient(share: float) -> Tensor:
        x = batch.clone().requires_grad_()
        stream = net.stem(x)
        for branch in net.branches:
            inside = branch(stream)
            stream = stream + inside.detach() + share * (inside - inside.detach())
        targets = [x] if of == "input" else list(net.parameters())
        return torch.cat([g.flatten() for g in torch.autograd.grad(projection_loss(net.head(stream)), targets)])

    agree(found, parts_by_interpolation(gradient, L))
    assert bool(found.sampled) == (of == "input")


@pytest.mark.parametrize("name", ["Fused", "Conv", "Parallel", "AddedIntoStream", "Shared"])
def test_parameters_of_branches_are_of_degree_1_and_more(name: str) -> None:
    found = skipway.path_spectrum(make(name), batch_for(name), of="parameters", sampled=0)
    twin, batch = make(name), batch_for(name)
    twin.enter = lambda x: x  # the twin is to be differentiated in front of the stream, too

    def gradient(share: float) -> Tensor:
        twin.share = share
        found = torch.autograd.grad(projection_loss(twin(batch)), list(twin.parameters()), materialize_grads=True)
        return torch.cat([g.flatten() for g in found])

    agree(found, parts_by_interpolation(gradient, L))


def test_only_what_lies_behind_the_first_unit_counts() -> None:
    found = spectrum("Detour")
    assert len(found.units) == L
    assert found.notes == ("2 units of the model not counted: not behind the first one",)
    agree(found, interpolated("Detour"))


def test_a_frozen_model_and_a_model_that_starts_with_a_unit() -> None:
    frozen = make("Net").requires_grad_(False)
    agree(skipway.path_spectrum(frozen, batch_for("Net"), sampled=0), interpolated("Net"))

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = Tokens(), Tokens()

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.a(x)
            return x + self.b(x)

    found = skipway.path_spectrum(Bare().double(), torch.randn(2, 5, 8, dtype=torch.float64))
    assert len(found.units) == 2
    assert found.road == "unchanged"
    assert found.trusted


def test_a_loss_of_ones_own() -> None:
    net, batch = make("Net"), batch_for("Net")

    def doubled(output: Tensor) -> Tensor:
        return 2 * projection_loss(output)

    one, two = (skipway.path_spectrum(net, batch, loss, sampled=0) for loss in (None, doubled))
    assert two.norm == pytest.approx([2 * n for n in one.norm], rel=1e-12)
    assert two.share == pytest.approx(one.share, rel=1e-12)
    assert two.loss.startswith("doubled = ")


# -- single paths


def test_all_paths_of_a_small_net_make_up_the_whole() -> None:
    """With as many samples as there are paths the estimate is the exact share, and its error 0."""
    found = skipway.path_spectrum(make("Conv"), batch_for("Conv"), sampled=10)
    assert [s.paths for s in found.sampled] == [1, 4, 6, 4, 1]
    assert [s.share for s in found.sampled] == pytest.approx(found.share, rel=1e-9)
    assert {s.share_error for s in found.sampled} == {0.0}
    assert found.sampled[0].norm == pytest.approx(found.norm[0], rel=1e-9)
    assert found.sampled[L].norm == pytest.approx(found.norm[L], rel=1e-9)


@pytest.mark.parametrize("name", ["AddedIntoStream", "Stacked", "Interpolated", "Fused", "Parallel", "StreamIsView"])
def test_all_paths_however_the_join_is_spelled(name: str) -> None:
    found = skipway.path_spectrum(make(name), batch_for(name), sampled=10)
    assert [s.share for s in found.sampled] == pytest.approx(found.share, rel=1e-9)


def test_single_paths_by_hand() -> None:
    """Units 0 and 2 by their branches, 1 and 3 by their shortcuts."""
    from skipway.diagnostics.path_spectrum.marks import Chosen
    from skipway.diagnostics.path_spectrum.scene import set_up

    net, batch = make("Net"), batch_for("Net")
    x = net.stem(batch).detach().requires_grad_()
    streams, stream = [], x
    for branch in net.branches:
        streams.append((stream, branch))
        stream = stream + branch(stream)
    (back,) = torch.autograd.grad(projection_loss(net.head(stream)), stream, retain_graph=True)
    for k in (2, 0):
        at, branch = streams[k]
        inside = at.detach().requires_grad_()
        (back,) = torch.autograd.grad(branch(inside), inside, back)
    with set_up(net, batch, None, "stream").run("marked") as live:
        (found,) = live.gradient(Chosen([frozenset({0, 2})]))
        (rows,) = live.together(live.loss.new_ones(2), Chosen([frozenset({0, 2}), frozenset()]))
    for single in (found, rows[0]):
        assert torch.allclose(single.view_as(back), back, rtol=1e-10)


def test_samples_are_drawn_with_a_seed() -> None:
    def drawn(seed: int) -> list[float]:
        net = Scaled(1.0, Tokens, units=8)
        found = skipway.path_spectrum(net, torch.ones(2, 5, 8), seed=seed, sampled=2)
        assert all(s.norm_error is not None for s in found.sampled)
        return [s.norm for s in found.sampled]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


# -- the model afterwards, long nets, refusals


@pytest.mark.parametrize("name", ["Conv", "Dropped", "AddedIntoStream", "Recomputed", "Itemised"])
def test_the_model_is_left_as_it_was(name: str) -> None:
    net, batch = make(name), batch_for(name)
    net(batch).sum().backward()
    before = state(net, batch)
    skipway.path_spectrum(net, batch)
    assert differences(before, state(net, batch)) == []


def test_the_model_is_left_as_it_was_when_it_raises() -> None:
    net, batch = make("RecomputedReentrant"), batch_for("Net")
    before = state(net, batch)
    with pytest.raises(SkipwayError):
        skipway.path_spectrum(net, batch)
    assert differences(before, state(net, batch)) == []


def test_marks_leave_every_bit_of_the_output() -> None:
    from skipway.diagnostics.path_spectrum.scene import set_up

    for name in ("Conv", "AddedIntoView", "Fused", "Stacked", "Interpolated", "Parallel", "Doubled"):
        net, batch = make(name), batch_for(name)
        values = []
        scene = set_up(net, batch, lambda output: output.sum(), "stream")
        for kind in ("plain", "cut", "marked"):
            with scene.run(kind) as live:
                values.append(live.loss.item())
        assert scene.missed == set()
        assert values == values[:1] * 3, name


def test_a_long_net() -> None:
    """200 units, four lengths: what is longer is one part, and its sum is checked all the same."""
    found = skipway.path_spectrum(Scaled(1.0, Tokens, units=200), torch.randn(1, 3, 8), max_length=4, sampled=2)
    assert (len(found.units), found.max_length) == (200, 4)
    assert found.trusted
    assert sum(found.share) + found.longer_share == pytest.approx(1.0, abs=1e-4)
    assert found.path_share(0, 200) == pytest.approx(1.0)
    assert found.norm_per_path(1) == pytest.approx(found.norm[1] / 200)


def test_by_default_no_more_than_32_lengths() -> None:
    found = skipway.path_spectrum(Scaled(1.0, Tokens, units=40), torch.randn(1, 3, 8), sampled=0)
    assert found.max_length == 32
    assert found.longer_share is not None


def test_arithmetic_of_lengths() -> None:
    found = spectrum("Net")
    assert [found.binomial(k) for k in range(L + 1)] == pytest.approx([math.comb(L, k) / 2**L for k in range(L + 1)])
    weights = [abs(s) for s in found.share]
    assert found.mean_length == pytest.approx(sum(k * w for k, w in enumerate(weights)) / sum(weights))
    first, last = found.carrying()
    assert sum(weights[first : last + 1]) >= 0.9 * sum(weights)
    assert all(sum(weights[a : a + last - first]) < 0.9 * sum(weights) for a in range(L + 1))


def refusal(*arguments: object, **how: object) -> str:
    with pytest.raises(SkipwayError) as refused:
        skipway.path_spectrum(*arguments, **how)
    return str(refused.value)


def test_refusals() -> None:
    net, batch = make("Net"), batch_for("Net")
    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    assert refusal(plain, torch.randn(2, 8)) == (
        "the model has no residual unit on its main stream\nexpected: a residual network whose joins run as Python\n"
        "try: skipway.inspect(model, batch) to see what it has"
    )
    assert refusal(net, batch, of="parameter") == "unknown gradient 'parameter'\nexpected: did you mean 'parameters'?"
    assert refusal(net, batch, carry="by vmap").startswith("unknown way to carry 'by vmap'\nexpected: one of: auto, ")
    assert refusal(net, batch, max_length=-1) == ("max_length=-1\nexpected: a number of branches, 0 or more, or None")
    assert refusal(net, batch, sampled=-2) == "sampled=-2\nexpected: a number of paths for each length, 0 for none"
    assert refusal(net, batch, lambda out: out) == (
        f"a loss of shape {tuple(net(batch).shape)}\nexpected: loss(output) -> scalar tensor"
    )
    assert refusal(net, batch, lambda out: out.detach().sum()).startswith("the output needs no gradient (frozen, ")
    assert refusal(net, batch, lambda out: out.nothing).startswith("with gradients the model or the loss failed: Attr")
    assert refusal(net, batch, lambda out: 0 * out.sum()) == (
        "the gradient of the loss at the stream is exactly zero\nexpected: an output that depends on it\n"
        "try: a trained model, or another loss (a zero-initialised head passes no gradient back)"
    )
    assert refusal(net, batch, lambda out: math.inf * out.sum()).startswith("the gradient of the loss at the stream is")
    assert refusal(net.to("meta"), batch.to("meta")).startswith("a model on the meta device")
    net = make("Net")
    with skipway.what_if(net, {"*": skipway.Alteration(branch=0.5)}):
        assert refusal(net, batch) == (
            "the gradient by path length of a model that what_if alters\nexpected: the model as it is\n"
            "try: skipway.path_spectrum outside of `with skipway.what_if(…)`"
        )
    frozen = make("Net").requires_grad_(False)
    assert refusal(frozen, batch, of="parameters").startswith("of='parameters': no parameter that needs a gradient")
    assert refusal(skipway.create_model("gpt_nano"), torch.ones(1, 4, dtype=torch.long), of="input").startswith(
        "of='input': no floating tensor in the batch"
    )
