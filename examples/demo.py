"""What skipway shows, in under a minute on a laptop's processor: `make demo`.

1. torchvision's ResNet-50: every residual unit, proved, with the signal in both directions.
2. A transformer of 60 of PyTorch's own layers with the norm behind each addition (`norm_first=False`), beside its twin
   with the norm inside each branch (`norm_first=True`): the same layers, one flag. The first hands its head tokens that
   are all alike, and a short training run of both shows what that costs.
"""

# Shapes: N batch, T tokens, D width, K classes.
from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipway
from skipway.parts import Table, Text
from skipway.report import inspection_parts
from skipway.report.console import show
from skipway.report.numbers import short

LAYERS, WIDTH, CLASSES, STEPS = 60, 64, 256, 30


class Transformer(nn.Module):
    """(N,T) integers to (N,T,K): say each token again."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=norm_first)
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH) if norm_first else nn.Identity()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def heading(text: str) -> None:
    show([Text(text=f"\n━━ {text} ━━", tone="title")])


def tokens(seed: int) -> Tensor:
    return torch.randint(CLASSES, (4, 32), generator=torch.Generator().manual_seed(seed))


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def inspected(model: nn.Module) -> skipway.Inspection:
    ids = tokens(seed=0)

    def say_again(logits: Tensor) -> Tensor:
        return cross_entropy(logits, ids)

    return skipway.inspect(model, ids, loss=say_again)


def trained(model: nn.Module) -> tuple[float, float]:
    """Loss of the first and the last of a few steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        ids = tokens(seed=step)
        loss = cross_entropy(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def unit(report: skipway.Inspection) -> str:
    """The second unit of a layer with its branch as F."""
    form = report.units[1].form
    inside = "".join(f"{op}(" for op in form.branch_start) + "x" + ")" * len(form.branch_start)
    total = f"x + F({inside})"
    return "".join(f"{op}( " for op in form.after) + total + " )" * len(form.after)


def ends(report: skipway.Inspection, name: str) -> str:
    values = [v for u in report.units if (v := getattr(u.numbers, name)) is not None]
    return f"{short(values[0])} → {short(values[-1])}"


def main() -> None:
    start = time.perf_counter()
    # Sixty tiny layers: threads cost more here than they bring.
    torch.set_num_threads(min(2, torch.get_num_threads()))
    heading("skipway inspect tv:resnet50")
    torch.manual_seed(0)
    loaded = skipway.load_model("tv:resnet50")
    show(inspection_parts(skipway.inspect(loaded.model.train(), loaded.batch, name=loaded.label)))

    columns = []
    for norm_first in (False, True):
        heading(f"{LAYERS} × nn.TransformerEncoderLayer(norm_first={norm_first})")
        torch.manual_seed(0)
        model = Transformer(norm_first=norm_first)
        report = inspected(model)
        show(inspection_parts(report))
        first, last = trained(model)
        columns.append(
            (
                unit(report),
                ", ".join(str(op) for op in report.units[1].form.after) or "nothing",
                f"{len(report.units)}, {sum(u.proof_error is not None for u in report.units)} proved",
                ends(report, "stream_rms"),
                ends(report, "similarity"),
                ends(report, "grad_stream"),
                f"{first:.2f} → {last:.2f}",
            )
        )
    heading("what differs")
    names = (
        "one unit",
        "stands on the road",
        "units",
        "rms of the stream, first → last",
        "cosine of tokens, first → last",
        "gradient at the stream, first → last",
        f"loss, {STEPS} steps of Adam",
    )
    rows = tuple(zip(names, *columns, strict=True))
    show([Table(columns=("", "norm_first=False (post-norm)", "norm_first=True (pre-norm)"), rows=rows)])
    show([Text(text=f"{time.perf_counter() - start:.0f} s", tone="muted")])


if __name__ == "__main__":
    main()
