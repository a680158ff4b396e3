"""`skipway inspect --html` and `Inspection.to_html`: the file, and what is said when it cannot be written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import skipway
from skipway.cli import main
from skipway.diagnostics.inspection import Inspection
from skipway.models.load import load_model
from skipway.report import dumps, inspection_report

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x)


def test_the_command_writes_the_report_beside_what_it_prints(capsys, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert main(["inspect", "mlp40@pre_norm", "--html", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "residual units, each proved" in printed
    page = target.read_text(encoding="utf-8")
    assert "<h1>skipway · mlp40@pre_norm</h1>" in page
    assert len(page.encode()) < 6 * MIB
    assert list(tmp_path.iterdir()) == [target]


def test_json_stays_pure(capsys, tmp_path: Path) -> None:
    assert main(["inspect", "mlp40@pre_norm", "--json", "--html", str(tmp_path / "report.html")]) == 0
    printed = capsys.readouterr()
    report = Inspection.from_dict(json.loads(printed.out))
    assert report.to_dict() == json.loads(printed.out)
    rebuilt = report.to_html(tmp_path / "again.html")
    assert rebuilt.read_bytes() == (tmp_path / "report.html").read_bytes()


def test_a_file_that_cannot_be_written_is_refused_before_the_work(capsys, tmp_path: Path) -> None:
    assert main(["inspect", "no such model", "--html", str(tmp_path / "missing" / "report.html")]) == 3
    assert capsys.readouterr().err == (
        f"error: --html: cannot write {tmp_path}/missing/report.html: there is no folder {tmp_path}/missing\n"
        f"expected: an existing folder\ntry: mkdir -p {tmp_path}/missing\n"
    )
    assert main(["inspect", "no such model", "--html", str(tmp_path)]) == 3
    assert capsys.readouterr().err == (
        f"error: --html: {tmp_path} is a folder\nexpected: the name of a file\ntry: {tmp_path}/report.html\n"
    )


def test_a_plain_net_has_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(5)), nn.Linear(8, 3))
    batch = torch.randn(4, 8)
    inspection = skipway.inspect(net, batch)
    assert [layer.path for layer in inspection.layers] == ["0.0", "1.0", "2.0", "3.0", "4.0", "5"]
    outputs: list[torch.Tensor] = []
    for module in net.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _m, _i, out: (outputs.append(out), out.retain_grad())[0])
    from skipway.diagnostics.measure import projection_loss

    projection_loss(net(batch)).backward()
    for layer, output in zip(inspection.layers, outputs, strict=True):
        assert layer.rms == pytest.approx(output.square().mean().sqrt().item(), rel=1e-5)
        assert layer.grad == pytest.approx(output.grad.norm().item(), rel=1e-5)
    assert Inspection.from_dict(json.loads(dumps(inspection.to_dict()))).layers == inspection.layers
    assert "6 weighted layers, each on the road" in inspection.to_html(tmp_path / "r.html").read_text(encoding="utf-8")


def test_where_there_are_units_no_layers_are_measured() -> None:
    net = nn.Sequential(*(Residual() for _ in range(3)))
    assert skipway.inspect(net, torch.randn(4, 8)).layers == []


@pytest.mark.exhaustive
def test_1001_layers_for_real(opened) -> None:
    torch.manual_seed(0)
    loaded = load_model("resnet1001@preact")
    inspection = skipway.inspect(loaded.model.train(), loaded.batch, name="resnet1001@preact")
    shown = opened(inspection_report(inspection), wait="commit")
    ready_ms = shown.until("roads")
    assert shown.units().count() == 333 + 2  # norm and ReLU before the split of a stage's first unit
    assert ready_ms < 2000, f"the road can be used after {ready_ms:.0f} ms"
    print(
        f"road after {ready_ms:.0f} ms, charts after {shown.until('charts'):.0f} ms, {shown.path.stat().st_size} bytes"
    )
    assert shown.path.stat().st_size < 6 * MIB
    assert (
        shown.page.locator(".fact").first.inner_text()
        == "3 of 333\nunits have something standing on the road, and 2 places between them"
    )
