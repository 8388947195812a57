"""The rooms of the house: no two files of one name, nothing knows the applications on it, messages in plain words."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source_facts import parsed

SRC = Path(__file__).parents[2] / "src"
APPLICATION = Path(__file__).parents[2] / "packages" / "outlay-brain" / "src"
SOURCES = (SRC, APPLICATION)

PRIVATE_WORDS = frozenset(
    ["found", "wanted", "said", "kept", "told", "took", "gone", "hear", "cure", "cures", "ours", "theirs", "mine"]
)
"""Verbs and pronouns in the place of nouns, which say nothing of what a value is: a name says what it names."""

SHORT = 120
"""A module of fewer lines that only one neighbour imports is a paragraph of that neighbour ..."""

ON_THEIR_OWN = {
    "outlay.analysis.cost.measure": "timing what devices do, which knows nothing of targets",
    "outlay.analysis.findings.exchanges_in_loops": "one of the kinds of findings, each a file",
    "outlay.analysis.findings.synchronous_loops": "one of the kinds of findings, each a file",
    "outlay.analysis.hlo.execute.solving": "one of the kinds of operations, each a table",
    "outlay.cli.slurm_checks": "looking for what a script names, which knows nothing of scripts",
    "outlay.cli.slurm_init": "the questions of `outlay slurm init`, which `run` has no need of",
    "outlay.brain.fused.rows_of_threads": "code in another language, with its constants",
    "outlay.brain.check_arguments": "what is asked of arguments; brain.py is as long as a file should be",
    "outlay.brain.row_steps": "the steps that rows are checked by; brain.py is as long as a file should be",
    "outlay.brain.run.brain_programs": "the programs that a process keeps, which know nothing of runs",
    "outlay.jobs.blocking_call": "what a frame of Python calls, which knows nothing of jobs",
    "outlay.recipes.layouts_to_try": "which layouts and meshes are tried, which knows nothing of options and processes",
    "outlay.search.in_a_paragraph": "a choice in words; selection.py is as long as a file should be",
    "outlay.program.stages.added_over_parts": "what a loss may do with its sums, which knows nothing of stages",
    "outlay.program.stages.layer_counts": "how many layers a place has, by their price, which knows nothing of traces",
    "outlay.program.stages.stage_exchange": "what only stages of several processes enter",
    "outlay.program.staged_gradients": "stages in one trace; what dispatches them has no need of it but its end",
    "outlay.program.contexts.ring_turns": "the order in which keys come, which knows nothing of attention",
    "outlay.analysis.verify.as_compiled.in_float64": "what is settled in float64, apart from how far rounding goes",
    "outlay.models.transformer.expert_layer": "what only transformers with experts enter",
    "outlay.report.explain.explain_schedule": "what only the page of an explanation enters, and never its text",
    "outlay.report.metric_rows": "what only runs with metrics of several numbers import",
    "outlay.launcher.stacks": "asking processes for their stacks, which knows nothing of verdicts",
    "outlay.layout.indivisible": "the alternatives for an uneven split, which only an error says",
    "outlay.program.compiler_aborts": "what is read of a program once its compiler has aborted, and never before",
    "outlay.arrays.piece_exchange": "what is sent between processes, which knows nothing of arrays and places",
    "outlay.core.library_attention": "what is known of modules of libraries, with nothing of JAX's own",
    "outlay.program.gather_state": "fetching a state from several processes; program.py is as long as a file may be",
    "outlay.program.program_of_objects": "what only programs of NNX objects enter",
    "outlay.train.patience_counter": "counting, which asks process 0; commands know the rule alone, without JAX",
    "outlay.recipes.in_processes": "what only runs in processes of their own enter",
    "outlay.program.by_rows": "what only graphs split by rows enter",
    "outlay.program.own_meshes": "the words for meshes that a model names, which nobody needs where a trace succeeds",
    "outlay.program.leaked_values": "a search through what Python objects hold, which knows nothing of programs",
    "outlay.analysis.verify.sampled.alike_options": "what a compiler is asked for, which knows nothing of proofs",
    "outlay.analysis.verify.as_compiled.kernels": "which call is of which kernel, which knows nothing of proofs",
    "outlay.analysis.verify.as_compiled.only_wrong": "a question to a text, which knows nothing of proofs",
    "outlay.analysis.verify.doubts": "what a proof cannot show, in words; the proof itself is as long as a file may be",
    "outlay.analysis.verify.own_dtypes": "the short way of a proof, without float64",
    "outlay.analysis.verify.parts": "causes in graphs, beside causes.py for steps over a batch",
    "outlay.analysis.verify.ratio_names": "the names of ratios, which know nothing of leaves",
    "outlay.analysis.verify.same_operations": "comparing two traces, which knows nothing of proofs",
    "outlay.analysis.verify.static.computed_results": "what is certain of a trace, which knows nothing of devices",
    "outlay.analysis.verify.as_compiled.own_rounding": "what a step allows, which knows nothing of comparing",
    "outlay.analysis.verify.static.attention_rules": "one of the kinds of operations, each a table",
    "outlay.analysis.verify.static.convolution_rules": "one of the kinds of operations, each a table",
    "outlay.analysis.verify.static.one_device": "what one device keeps, a question of a choice alone",
    "outlay.analysis.verify.static.where_lost": "a look at what was followed, once it was",
    "outlay.analysis.verify.static.expected_spreads": "what a plan says, beside what a program does",
    "outlay.analysis.verify.static.neighbours": "arithmetic of permutations, which knows nothing of values",
    "outlay.program.compile_progress": "imported only for what takes long to compile",
    "outlay.search.search_progress": "what a search shows, which knows nothing of what it searches",
    "outlay.train.not_finite": "what only jobs of several processes enter",
    "outlay.train.added_in_loops": "imported only where there are microbatches",
}
"""... but for these, and why."""


def test_no_two_files_have_the_same_name():
    files = [path for source in SOURCES for path in source.rglob("*.py")]
    names = Counter(path.name for path in files if path.name != "__init__.py")
    assert names, "no files found: the test looks in the wrong place"
    assert not [name for name, count in names.items() if count > 1]


def test_nothing_imports_the_application():
    importers = [
        str(path.relative_to(SRC))
        for path in (SRC / "outlay").glob("**/*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("outlay.brain")
    ]
    assert not importers


def test_nothing_speaks_of_the_application():
    """What the line offers a spiking network, it offers every graph; `find.py` knows what is released beside it."""
    words = re.compile("neuron|spike|spiking|brain|soma|synap", re.IGNORECASE)
    offenders = [
        f"{path.relative_to(SRC)}:{number}"
        for path in (SRC / "outlay").glob("*/**/*")
        if path.suffix in (".py", ".toml", ".j2", ".css") and path.name != "find.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line.replace("JetBrains", ""))
    ]
    assert not offenders


MODES_COMPARED = {
    "analysis/verify/verify.py": "whether a user asked to compare a mode with itself",
    "recipes/prepare.py": "which layout a user means who names a mode only",
    "recipes/ways_to_fit.py": "whether a command has to name the mode",
}
"""What compares names of modes without concluding anything from them."""


def test_nobody_concludes_from_the_mode_of_a_program():
    """Who needs to know something of a program asks for that: a new mode then answers, and is asked nowhere else."""
    compares = re.compile(
        r"\bmode\s*[!=]=|[!=]=\s*[\w.]*\bmode\b|\b(?:if|and|or|not|return)\s+[\w.]*\bmode\s+(?:not\s+)?in\s*[(\[{]|\bmatch\s+[\w.]*\bmode\s*:"
    )
    comparing = {
        path.relative_to(SRC / "outlay").as_posix()
        for path in (SRC / "outlay").glob("*/**/*.py")
        if "program" not in path.parts and compares.search(path.read_text(encoding="utf-8"))
    }
    assert comparing == set(MODES_COMPARED)


def test_messages_count_in_words():
    """`outlay.core.quantities.counted` knows one leaf from two leaves; nobody has to read "1 leaf(s)"."""
    every = [path for source in SOURCES for path in source.rglob("*")]
    files = [path for path in every if path.suffix in (".py", ".toml", ".j2")]
    lazy = [
        f"{path.name}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\b[a-z]{3,}\((s|es)\)", line)
    ]
    assert len(files) > 200
    assert not lazy


PRONOUNS = re.compile(r"\b(?:those (?:that|of|which|who)|of (?:which|whom)|it asks for|such(?! as)\b|whoever)\b")
"""Words in the place of the noun that says what something is."""
MOST_PRONOUNS = 25
"""First lines of docstrings that may have one; the number may fall."""


def test_first_lines_of_docstrings_name_things():
    """A reader of a list of functions sees nothing but this line."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    lines = [
        (ast.get_docstring(node) or "").partition("\n")[0]
        for path in SRC.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, kinds)
    ]
    offenders = [line for line in lines if PRONOUNS.search(line)]
    assert len(lines) > 3000
    assert len(offenders) <= MOST_PRONOUNS, offenders


def test_names_say_what_they_name():
    """A JAX user must not have to learn a dialect: what is given a name in the code has one of the field's."""
    a_word = re.compile(rf"\b_*({'|'.join(sorted(PRIVATE_WORDS))})_*\b")
    offenders = [
        f"{path.relative_to(SRC.parent)}:{line} {name}"
        for folder in (SRC, *(SRC.parent / name for name in ("benchmarks", "examples", "packages", "tests")))
        for path in folder.rglob("*.py")
        if a_word.search(path.read_text(encoding="utf-8"))  # few files are parsed
        for name, line in _given_names(parsed(path))
        if name.strip("_") in PRIVATE_WORDS
    ]
    assert not offenders


def _given_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The variables, attributes, parameters, functions and classes that a module names, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                yield name, node.lineno


def test_what_only_a_neighbour_imports_is_a_part_of_it():
    importers = _importers()
    lonely = {
        module
        for module, by in importers.items()
        if len(by) == 1
        and next(iter(by)).rpartition(".")[0] == module.rpartition(".")[0]
        and len(_file_of(module).read_text(encoding="utf-8").splitlines()) < SHORT
    }
    # A command is a file of its own, which the list of commands imports.
    lonely -= {module for module in lonely if importers[module] == {"outlay.cli.main"}}
    assert lonely == set(ON_THEIR_OWN)


def _importers() -> dict[str, set[str]]:
    """The modules that import a module, `if TYPE_CHECKING` and the public stubs included."""
    importers: dict[str, set[str]] = defaultdict(set)
    files = [(root, path) for root in SOURCES for path in root.rglob("*.py*") if path.suffix in (".py", ".pyi")]
    for root, path in files:
        importer = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        package = importer if path.stem == "__init__" else importer.rpartition(".")[0]
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ImportFrom):
                continue
            source = f"{package}.{node.module}" if node.level else node.module or ""
            for module in {source, *(f"{source}.{alias.name}" for alias in node.names)}:
                if module != importer and _file_of(module).is_file():
                    importers[module].add(importer)
    assert importers, "no imports found: the test looks in the wrong place"
    return importers


def _file_of(module: str) -> Path:
    source = APPLICATION if module.startswith("outlay.brain") else SRC
    return source / Path(*module.split(".")).with_suffix(".py")
