"""Rules ``missing-final-norm``, ``missing-final-activation`` and ``double-norm``: what comes behind the last unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._programs import CONV, TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Behind, Member, behind, chains, has, module_of
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding
    from skipway.form import Op

__all__ = ["double_norm", "missing_final_activation", "missing_final_norm"]

_FEWEST_UNITS: Final = 3
_MOST: Final = 0.5
# A stream that its downsampling layers keep small has not outgrown its head.
_SHRUNK: Final = 0.9
_NORMS: Final = frozenset({"layer", "rms", "group", "instance"})
_PRE_ACTIVATION: Final = program(
    CONV, unit="return x + self.second(F.relu(self.norm2(self.first(F.relu(self.norm1(x))))))", depth=4
)
_PRE_NORM: Final = program(TOKENS, unit="return x + self.branch(self.norm(x))", depth=4)
_POST_NORM: Final = program(TOKENS, unit="return self.norm(x + self.branch(x))", depth=4)


@rule(
    "missing-final-norm",
    severity="warning",
    summary="A stack of pre-norm units has no norm behind its last unit: the head reads the stream as it has grown.",
    explanation="Most units of a stream begin with a norm and have none behind the addition, and behind the last unit"
    " no norm comes before the next weights or the output. The growth of the stream is measured. Units that begin with"
    " norm and activation (pre-activation) are the matter of missing-final-activation.",
    fix="put one norm behind the last unit, before the head: x = self.norm(x)",
    source="NeMo pull request 2197; marian-dev pull request 719; Xiong et al. 2020, arXiv 2002.04745, figure 1",
    faulty=_PRE_NORM,
    healthy=_PRE_NORM.replace("nn.Identity()", "nn.LayerNorm(16)"),
)
def missing_final_norm(evidence: Evidence) -> Iterator[Finding]:
    """Fire for each pre-norm stream that no norm ends."""
    for chain in _ending(evidence):
        pre_norm = [m for m in chain if _begins(m, activated=False)]
        if len(pre_norm) < _FEWEST_UNITS or len(pre_norm) <= _MOST * len(chain):
            continue
        last = chain[-1]
        follows = _after(last, evidence)
        said, grown = _growth(chain)
        if follows.norms or said.get("stream_growth", 1.0) < _SHRUNK:
            continue
        yield RULES["missing-final-norm"].finding(
            last.path,
            f"no norm between the last of {len(chain)} units, of which {len(pre_norm)} are pre-norm, and"
            f" {_next(follows, evidence)}{grown}",
            {"units": len(chain), "pre_norm_units": len(pre_norm), **said},
        )


@rule(
    "missing-final-activation",
    severity="warning",
    summary="A stack of pre-activation units lacks the norm and activation behind its last unit.",
    explanation="Most units of a stream begin with norm and activation and have neither behind the addition, and behind"
    " the last unit no activation comes before the next weights or the output.",
    fix="put norm and activation, those that the units begin with, behind the last unit: x = F.relu(self.norm(x))",
    source="He et al. 2016, arXiv 1603.05027, section 3; pytorch-cifar issues 4 and 9",
    faulty=_PRE_ACTIVATION,
    healthy=_PRE_ACTIVATION.replace("nn.Identity()", "nn.BatchNorm2d(8), nn.ReLU()"),
)
def missing_final_activation(evidence: Evidence) -> Iterator[Finding]:
    """Fire for each pre-activation stream that no activation ends."""
    for chain in _ending(evidence):
        pre = [m for m in chain if _begins(m, activated=True)]
        if len(pre) < _FEWEST_UNITS or len(pre) <= _MOST * len(chain):
            continue
        last = chain[-1]
        follows = _after(last, evidence)
        if follows.activated:
            continue
        said, grown = _growth(chain)
        lacking = "no activation" if follows.norms else "neither norm nor activation"
        yield RULES["missing-final-activation"].finding(
            last.path,
            f"{lacking} between the last of {len(chain)} units, of which {len(pre)} are pre-activation, and"
            f" {_next(follows, evidence)}{grown}",
            {"units": len(chain), "pre_activation_units": len(pre), "norms_behind": len(follows.norms), **said},
        )


@rule(
    "double-norm",
    severity="info",
    summary="A stack of post-norm units, whose stream is normalised already, is followed by another norm.",
    explanation="Most units of a stream have a norm behind the addition, and behind the last one a second norm follows"
    " with no weights in between. It costs little and changes little: to be known, not to be mended in haste.",
    fix="drop the norm behind the stack (pass norm=None to nn.TransformerEncoder), or make the units pre-norm",
    source="pytorch issue 50086",
    faulty=_POST_NORM.replace("nn.Identity()", "nn.LayerNorm(16)"),
    healthy=_POST_NORM,
)
def double_norm(evidence: Evidence) -> Iterator[Finding]:
    """Tell of a norm behind a post-norm stream."""
    for chain in chains(evidence):
        post_norm = [m for m in chain if has(m.unit.form.after, "norm", _NORMS)]
        last = chain[-1]
        if len(post_norm) <= _MOST * len(chain) or last not in post_norm:
            continue
        second = _second_norm(last, evidence)
        if second is None:
            continue
        nodes = evidence.graph.nodes
        own = next((i for i in last.described.after_nodes if nodes[i].op in ops.NORM), last.described.end)
        first, other = module_of(own, evidence), module_of(second, evidence)
        yield RULES["double-norm"].finding(
            last.path,
            f"the stream behind {len(post_norm)} post-norm units is normalised twice: by {first}, then by {other}",
            {"post_norm_units": len(post_norm), "norm": first, "second_norm": other},
        )


def _ending(evidence: Evidence) -> list[list[Member]]:
    """Streams from which no other goes on: a stage whose tokens are cut apart and pooled has another behind it."""
    links, found = evidence.found.links, chains(evidence)
    return [
        chain for chain in found
        if not any(
            links.descends(other[0].described.candidate.base, chain[-1].described.candidate.join) for other in found
        )
    ]  # fmt: skip


def _begins(member: Member, *, activated: bool) -> bool:
    """Whether each branch begins with a norm, with or without an activation, and nothing stands on the path."""
    form = member.unit.form
    if form.after or form.merge != "add" or has(form.shortcut, "gate"):
        return False
    return all(_start(branch) == activated for branch in (form.branch, *form.parallel))


def _start(branch: Sequence[Op]) -> bool | None:
    """Whether an activation comes with the norm before the first weights; None where there is no norm."""
    found: bool | None = None
    for op in branch:
        if op.kind == "norm" and found is None:
            found = False
        elif op.kind in ("activation", "gate") and found is not None:  # x·sigmoid(x) written by hand reads as a gate
            return True
        elif op.kind not in ("norm", "activation", "scale", "dropout"):
            break
    return found


def _after(last: Member, evidence: Evidence) -> Behind:
    """What comes behind a stream's last addition."""
    return behind(last.described.candidate.join, evidence)


def _next(follows: Behind, evidence: Evidence) -> str:
    return module_of(follows.ends[0], evidence) if follows.ends else "the output"


def _growth(chain: Sequence[Member]) -> tuple[dict[str, float], str]:
    begun, ended = chain[0].unit.numbers.stream_rms, chain[-1].unit.numbers.out_rms
    if not begun or not ended:
        return {}, " (its growth was not measured)"
    return {
        "stream_growth": ended / begun,
        "stream_rms_last": ended,
    }, f"; the stream has grown {ended / begun:.3g}-fold"


def _second_norm(last: Member, evidence: Evidence) -> int | None:
    """A norm that reads the output of the last unit's own, through views and dropout alone."""
    links = evidence.found.links
    nodes = evidence.graph.nodes
    norms = [i for i in last.described.after_nodes if nodes[i].op in ops.NORM]
    if len(norms) > 1:
        return norms[1]
    pending, seen = [last.described.end], {last.described.end}
    while pending:
        for c in links.consumers[pending.pop()]:
            if c in seen or not links.alive[c]:
                continue
            seen.add(c)
            if nodes[c].op in ops.NORM:
                return c
            if nodes[c].op in ops.VIEW | ops.DROPOUT:
                pending.append(c)
    return None
