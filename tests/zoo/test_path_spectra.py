"""The gradient by path length of public models, none of them changed: `path_spectra.py` prints the errors."""

from __future__ import annotations

import pytest

from zoo.path_spectra import SINGLE_INSIDE, SPECTRA, spectrum_of

pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries' deprecations

QUICK = ("hf/gpt2", "hf/gptj(par)", "hf/albert(shared)")


def check(name: str, *, carry: str = "together", allowed: float = 1e-10) -> None:
    found = spectrum_of(name, sampled=0, carry=carry)
    assert found.carried == carry
    assert max(found.sum_error, found.degree0_error) <= allowed
    assert found.trusted
    assert found.uncounted == ()
    assert len(found.units) > 1
    # Else nearly everything would be of degree 0, and the checks would say nothing.
    assert 1 - abs(found.share[0]) / sum(map(abs, found.share)) > 0.1


@pytest.mark.parametrize("carry", ["together", "one by one"])
@pytest.mark.parametrize("name", QUICK)
def test_sample(name: str, carry: str) -> None:
    import transformers

    # Attention of GPT-J is computed in single precision up to transformers 4.
    single = name == "hf/gptj(par)" and transformers.__version__ < "5"
    check(name, carry=carry, allowed=1e-6 if single else 1e-10)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [n for n in SPECTRA if n not in QUICK])
def test_in_double_precision(name: str) -> None:
    check(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SINGLE_INSIDE)
def test_with_single_precision_inside(name: str) -> None:
    check(name, allowed=1e-6)


def test_there_are_twenty() -> None:
    assert len(set(SPECTRA)) >= 20
