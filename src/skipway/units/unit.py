"""What is reported of one residual unit: where it is, its form, its proof, its numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from skipway.errors import SkipwayError
from skipway.form import UnitForm
from skipway.units.passage import Passage
from skipway.units.reading import checked, measured

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Kind", "StreamNumbers", "Unexplained", "Unit"]

Kind = Literal["unit", "long_skip", "injection", "cell", "merge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNumbers:
    """Signal measured at one unit; None where it could not be measured. All are dimensionless except the gradients.

    Args:
        stream_rms: root mean square of x, the stream where the unit reads it.
        branch_rms: root mean square of the branch's output as it enters the merge, s·F(x).
        shortcut_rms: root mean square of the shortcut's output, h(x).
        cosine: cosine between shortcut and branch output, over all their entries.
        out_rms: root mean square of x', the stream behind the unit.
        grad_stream: L2 norm of the gradient of the loss with respect to x (units of the loss per unit of x).
        grad_branch: L2 norm of the gradient of the loss with respect to the branch's output.
        similarity: mean cosine between different tokens (or, for images, between channels) of one sample in x'.
    """

    stream_rms: float | None = None
    branch_rms: float | None = None
    shortcut_rms: float | None = None
    cosine: float | None = None
    out_rms: float | None = None
    grad_stream: float | None = None
    grad_branch: float | None = None
    similarity: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """Plain numbers by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StreamNumbers:
        """The numbers that `to_dict` wrote.

        Raises:
            SkipwayError: one is missing, unknown, or no number.
        """
        checked(data, _NUMBERS, "numbers of a unit")
        return cls(**{name: measured(data[name], name) for name in _NUMBERS})


_NUMBERS: Final = tuple(f.name for f in fields(StreamNumbers))
_PLAIN: Final = (
    "index", "path", "level", "closed", "dtype", "parameters", "flops", "activation_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One residual unit of a model.

    Args:
        index: position along the model, from 0, in order of execution of the merges.
        path: module path; ``@k`` marks the k-th call of a shared module, ``#k`` the k-th of several units in
            one module.
        kind: ``"unit"``; ``"long_skip"`` (the branch holds units and the merge lies outside their module: FPN, U-Net);
            ``"injection"`` (a stream from elsewhere joins); ``"cell"`` (sum of pooled and convolved inputs, NASNet);
            ``"merge"`` (joined by concatenation, product or stream mixing rather than addition).
        level: 0 on the main stream, 1 and more inside a branch.
        form: the formula.
        proof_error: largest relative error of the replacement run, in eps of the compute dtype; None without a proof.
        closed: nothing but x enters the branch (False for cross-attention, routers).
        shape: shape of x', the stream behind the unit.
        dtype: dtype of x', e.g. ``"float32"``.
        parameters: parameters used by the unit, each counted once per unit.
        flops: floating point operations of the unit on the given batch (a multiply-add counts 2).
        activation_bytes: bytes of the tensors that the unit makes on the given batch.
        numbers: the measured signal.
        before: what the stream passes between the unit that this one follows and its x; None where nothing does.
    """

    index: int
    path: str
    kind: Kind
    level: int
    form: UnitForm
    proof_error: float | None
    closed: bool
    shape: tuple[int, ...]
    dtype: str
    parameters: int
    flops: int
    activation_bytes: int
    numbers: StreamNumbers = StreamNumbers()
    before: Passage | None = None

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values; the form as its equation."""
        return {
            "index": self.index,
            "path": self.path,
            "kind": self.kind,
            "level": self.level,
            "equation": self.form.equation(),
            "proof_error_eps": self.proof_error,
            "closed": self.closed,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "parameters": self.parameters,
            "flops": self.flops,
            "activation_bytes": self.activation_bytes,
            **self.numbers.to_dict(),
            "before": None if self.before is None else self.before.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Unit:
        """The record that `to_dict` wrote; its form is read back from the equation.

        Raises:
            SkipwayError: a field is missing or unknown, or holds what it cannot hold.
        """
        known = {name: value for name, value in data.items() if name != "before"}  # older records have none
        checked(known, (*_PLAIN, "kind", "equation", "proof_error_eps", "shape", *_NUMBERS), "unit")
        kind: Kind = data["kind"]
        if kind not in get_args(Kind):
            raise SkipwayError(f"kind of a unit {kind!r}", "one of " + ", ".join(get_args(Kind)))
        return cls(
            **{name: data[name] for name in _PLAIN},
            kind=kind,
            form=UnitForm.parse(data["equation"]),
            proof_error=measured(data["proof_error_eps"], "proof_error_eps"),
            shape=tuple(data["shape"]),
            numbers=StreamNumbers.from_dict({name: data[name] for name in _NUMBERS}),
            before=Passage.from_dict(data["before"]) if data.get("before") is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A join of the stream that is not reported as a unit, with the reason: never guessed."""

    path: str
    op: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """The record as JSON-ready values."""
        return {"path": self.path, "op": self.op, "reason": self.reason}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Unexplained:
        """The record that `to_dict` wrote.

        Raises:
            SkipwayError: a field is missing or unknown.
        """
        checked(data, ("path", "op", "reason"), "unexplained join")
        return cls(data["path"], data["op"], data["reason"])
