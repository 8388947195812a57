"""A plain program enters no more than its ceilings: whoever adds to its way says what for."""

import pytest
from tests.architecture.source_facts import private_names
from tests.architecture.verb_paths import OPTIONAL, PROGRAM, SOURCE, VERBS, ceilings, path_of, path_of_program

_ADVICE = "import a feature where it is wanted, or raise the ceiling in verb_ceilings.toml with a reason"


_EACH_CHANGE = ("program", "second call", "verify")


@pytest.mark.processes
@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=[] if verb in _EACH_CHANGE else pytest.mark.thorough) for verb in VERBS]
)
def test_a_verb_enters_no_more_than_its_ceilings(verb):
    path, most = path_of(verb), ceilings()[verb]
    now = {"files": len(path.files), "lines": path.num_lines, "modules": path.modules, "in_vain": len(path.in_vain)}
    above = {name: number for name, number in now.items() if number > most.get(name, number)}
    assert not above, f"{verb}: {above} above {most}: {_ADVICE}; {sorted(path.files)}, in vain: {path.in_vain}"


@pytest.mark.thorough  # a test of the test
@pytest.mark.processes
def test_the_walk_sees_a_feature_that_is_used():
    by_source = PROGRAM.replace(
        "outlay.fsdp(min_size=8)", 'outlay.Layout([("@loss", jax.P())]) + outlay.fsdp(min_size=8)'
    )
    assert "program/by_source.py" in path_of_program(by_source).files


def test_ceilings_are_of_verbs():
    assert set(ceilings()) == set(VERBS)


def test_the_files_of_features_exist():
    assert not [file for file in OPTIONAL.values() if not (SOURCE / file).is_file()]


def test_private_names_of_jax_are_used_where_they_may_be():
    of_jax = {file for file, names in private_names().items() if any(name.startswith("jax") for name in names)}
    assert of_jax
    assert not [file for file in sorted(of_jax) if not file.startswith("core/jax_")]
