"""What programs draw at random is the same in every run, place and order."""

from __future__ import annotations

import random

import pytest

from pettingllms.sandbox import Case, Limits, open_sandbox

DRAWS = {
    "random": "import random; print(random.random(), random.randrange(10**9), random.sample(range(99), 5))",
    "shuffle": "import random; x = list(range(30)); random.shuffle(x); print(x)",
    "seed of nothing": "import random; random.seed(); print(random.random())",
    "own generator": "import random; a, b = random.Random(), random.Random(); print(a.random(), b.random())",
    "temporary names": "import tempfile; print(tempfile.mktemp(), tempfile.mkdtemp(), tempfile.NamedTemporaryFile().name)",
    "hash order": "print({'a', 'b', 'c', 'd'}, hash('text'), {b'x': 1, 'y': 2}.keys() | {'z', 'w'})",
    "function": "import random\ndef f(): return random.random()\nprint(f())",
}  # fmt: skip
NUMPY = {
    "numpy": "import numpy; print(numpy.random.rand(3).tolist())",
    "numpy generator": "import numpy; print(numpy.random.default_rng().random(3).tolist())",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["standard", "numpy"])
def test_draws_depend_on_neither_run_nor_place_nor_order(kind: str):
    packages = ("numpy",) if kind == "numpy" else ()
    named = NUMPY if kind == "numpy" else DRAWS
    programs, cases = list(named.values()), [Case(), Case("x")]
    limits = Limits(memory_mib=1024)
    seen: dict[str, set[str]] = {program: set() for program in programs}
    for order in (programs, programs[::-1]):
        with open_sandbox("embedded", workers=2, packages=packages) as sandbox:
            for _ in range(2):
                rows = sandbox.run(order, cases, limits=limits)
                for program, row in zip(order, rows, strict=True):
                    assert {result.status for result in row} == {"ok"}
                    seen[program] |= {result.stdout for result in row}
    assert {program: texts for program, texts in seen.items() if len(texts) != 1} == {}


def test_generators_without_a_seed_are_not_all_the_same():
    program = "import random; print(random.Random().random() == random.Random().random())"
    with open_sandbox("embedded", workers=1) as sandbox:
        assert sandbox.run([program], [Case()])[0][0].stdout == "False\n"


def test_seeds_mean_what_they_mean_outside():
    program = "import random; random.seed('s'); print(random.random(), random.Random(5).random())"
    random.seed("s")
    expected = f"{random.random()} {random.Random(5).random()}\n"
    with open_sandbox("embedded", workers=1) as sandbox:
        assert sandbox.run([program], [Case()])[0][0].stdout == expected


@pytest.mark.parametrize("seed", ["seed()", "random.seed()"])
def test_a_function_that_seeds_with_nothing_draws_the_same_in_every_run(seed: str):
    # Neither name is imported: function cases have both.
    program = f"def f():\n    {seed}\n    return random.random()"
    case = Case(function="f", args="[]")
    with open_sandbox("embedded", workers=1) as sandbox:
        results = [sandbox.run([program], [case])[0][0] for _ in range(3)]
    assert len({(result.status, result.value) for result in results}) == 1
    assert results[0].status == "ok"
