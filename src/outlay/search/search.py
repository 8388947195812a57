"""Search for a layout: screen by arithmetic, compile the best in processes, rank what fits, explain the losers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from outlay.core import error_types as errors
from outlay.core.disk_cache import cache_folder
from outlay.core.quantities import format_bytes
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.write_layout import unwritable, write_layout
from outlay.report.explain.explanation import Explanation
from outlay.search.candidate import Candidate, words_of
from outlay.search.compiled_price import Price
from outlay.search.in_a_paragraph import in_a_paragraph, of_all
from outlay.search.reasons import (
    among_ties,
    is_tie,
    nothing_fits,
    nothing_to_compile,
    why_chosen,
    why_not_compiled,
    why_slower,
    why_too_big,
)
from outlay.search.screening import Screened, in_order, next_to_compile, promising, screen, without_preset
from outlay.search.search_progress import Progress, counting
from outlay.search.selection import Considered, Selection, Verdict
from outlay.search.workers import Ended, Workers
from outlay.search.workload import Workload

_SEVERAL = 4
"""The number of candidates from which on the best so far may be compiled once more with other options."""


@dataclass(frozen=True)
class Question:
    """What is asked: a recipe, a target, and the candidates.

    Attributes:
        recipe: the recipe as the user named it.
        words: the options that the user gave it.
        target: the hardware.
        candidates: what to choose from.
        layouts: their layouts, by name.
        workload_of: what a candidate computes.
        command: starts a process that prices one candidate, see `Workers`.
        job_of: the job for that process.
        ways_of: what should fit instead of a candidate that does not, excluding what was tried.
        several: the options for which the user gave several values, with these.
        compiler_options: those that were asked for; None for a preset, which may be left out.
        explain: explains a candidate that was compiled; None where that needs other devices than are here.
    """

    recipe: str
    words: tuple[str, ...]
    target: Target
    candidates: tuple[Candidate, ...]
    layouts: Mapping[str, Layout]
    workload_of: Callable[[Candidate], Workload]
    command: tuple[str, ...]
    job_of: Callable[[Candidate], dict[str, Any]]
    ways_of: Callable[[Candidate, Price, Sequence[Candidate]], Sequence[object]] = lambda candidate, price, tried: ()
    several: Mapping[str, Sequence[int]] = field(default_factory=dict)
    compiler_options: str | None = "preset"
    explain: Callable[[Candidate], Explanation] | None = None


def search(question: Question, *, num_candidates: int, num_processes: int, timeout: float) -> Selection:
    """Run a search. Progress goes to stderr.

    Args:
        question: what to search for.
        num_candidates: how many to compile.
        num_processes: how many at a time.
        timeout: seconds for each.

    Raises:
        ChooseError: nothing can be compiled, or nothing that was compiled can run on the target.
        TargetError: the target's compiler is not installed.
        KeyboardInterrupt: on Ctrl-C; what was compiled is kept for the next time.
    """
    start = time.monotonic()
    every, capacity = question.candidates, question.target.hardware.memory_bytes

    def look(candidates: Sequence[Candidate]) -> tuple[list[Screened], list[Considered]]:
        seen = counting(candidates, str(question.target))
        return screen(seen, question.layouts, question.workload_of, question.target)

    worth_it, left_out = promising(every, lambda few: look(few)[0], capacity)
    passed, ruled_out = look(worth_it)
    ruled_out += left_out
    if not passed:
        raise nothing_to_compile(question.target, ruled_out)
    workers = Workers(question.command, num_processes, timeout)
    compiled = _compile(question, passed, workers, min(num_candidates, len(passed)), num_processes)
    tried = _screened(compiled)
    left = in_order([each for each in passed if each not in tried], tried, _priced(compiled), capacity)
    considered = ranked(compiled)
    if considered[0].verdict != "chosen":
        nearest = considered[0]
        known = [each.candidate for each in considered]
        ways = question.ways_of(nearest.candidate, nearest.price, known) if nearest.price else ()
        raise nothing_fits(question.target, considered, len(left), ways)
    chosen = considered[0]
    assert chosen.price is not None
    others = [(str(each.candidate), each.why) for each in considered[1:] if each.verdict == "slower"]
    layout = question.layouts[chosen.candidate.layout]
    return Selection(
        explained=" ".join(
            [
                of_all(len(every), len(compiled), len(ruled_out)),
                in_a_paragraph(layout, chosen.candidate.mesh, chosen.price, others),
            ]
        ),
        recipe=question.recipe,
        words=question.words,
        compiler_options=question.compiler_options or "preset",
        target=str(question.target),
        considered=(*considered, *_not_compiled(left, capacity), *ruled_out),
        toml=_toml(question, chosen),
        seconds=time.monotonic() - start,
        find_explanation=functools.partial(question.explain, chosen.candidate) if question.explain else None,
    )


def _compile(
    question: Question, passed: Sequence[Screened], workers: Workers, total: int, num_processes: int
) -> list[Considered]:
    """Compile candidates; each is chosen with what is known when a process becomes free."""
    compiled: list[Considered] = []
    taken: list[Screened] = []
    running: dict[Future[Ended], Screened] = {}
    # A thread only waits for its process, which does the work.
    with ThreadPoolExecutor(num_processes) as threads, Progress(total, str(question.target)) as progress:
        try:
            while len(compiled) < total:
                while len(running) < num_processes and len(taken) < total:
                    chosen = _next(question, passed, taken, _priced(compiled), total)
                    taken.append(chosen)
                    progress.started(chosen.candidate)
                    running[threads.submit(workers.answer, question.job_of(chosen.candidate))] = chosen
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    each = answered(running.pop(future), future.result())
                    compiled.append(each)
                    progress.ended(each.candidate, future.result(), _in_words(each))
        except KeyboardInterrupt:
            num_priced = len(_priced(compiled))
            raise KeyboardInterrupt(
                f"stopped: {num_priced} of {total} candidates were compiled and are kept in {cache_folder()}; the same "
                "command continues from there"
            ) from None
        finally:
            workers.stop()
    return compiled


def _next(
    question: Question,
    passed: Sequence[Screened],
    taken: Sequence[Screened],
    priced: Sequence[tuple[Screened, Price]],
    total: int,
) -> Screened:
    """Return what to compile next: on the last turn the best so far without the preset, if that is allowed."""
    is_last = question.compiler_options is None and len(taken) + 1 == total >= _SEVERAL
    last = without_preset(priced) if is_last else None
    if last is not None:
        return last
    left = [each for each in passed if each not in taken]
    return next_to_compile(left, taken, priced, question.target.hardware.memory_bytes)


def _screened(compiled: Sequence[Considered]) -> list[Screened]:
    return [Screened(each.candidate, each.expected) for each in compiled if each.expected]


def _priced(compiled: Sequence[Considered]) -> list[tuple[Screened, Price]]:
    return [(one, each.price) for one, each in zip(_screened(compiled), compiled, strict=True) if each.price]


def answered(screened: Screened, ended: Ended) -> Considered:
    """Return a candidate with what its process reported; `ranked` compares it with the others.

    Raises:
        TargetError: the target cannot be compiled for, which holds for every candidate.
    """
    verdict: Verdict = "timed out" if ended.timed_out else "failed"
    failed = Considered(screened.candidate, verdict, ended.failure, expected=screened.expected)
    if ended.answer is None:
        return failed
    if "error" in ended.answer:
        kind, message = ended.answer["error"], ended.answer["message"]
        # A missing compiler is missing for every candidate, so there is nothing to go on with.
        if kind == errors.TargetError.__name__:
            raise errors.TargetError(message)
        return replace(failed, why=message)
    price, was_kept = Price.from_dict(ended.answer["price"]), ended.answer["was_kept"]
    if not price.fits:
        return replace(failed, verdict="does not fit", why=why_too_big(price), price=price, was_kept=was_kept)
    return replace(failed, verdict="slower", why="", price=price, was_kept=was_kept)


def _in_words(each: Considered) -> str:
    if each.price is None:
        return each.why.partition("\n")[0]
    from_cache = ", kept from before" if each.was_kept else ""
    if not each.price.fits:
        return f"does not fit, {each.why}{from_cache}"
    return f"{each.price.range_in_words} a step, {format_bytes(each.price.peak_bytes)}{from_cache}"


def _not_compiled(left: Sequence[Screened], capacity: int) -> list[Considered]:
    return [
        Considered(each.candidate, "not compiled", why_not_compiled(each.expected, capacity), expected=each.expected)
        for each in left
    ]


def _toml(question: Question, chosen: Considered) -> str | None:
    """Return the chosen layout as a file, with its origin at the top."""
    candidate, price = chosen.candidate, chosen.price
    layout = question.layouts[candidate.layout]
    if price is None or unwritable(layout):
        return None
    asked = (*question.words, *words_of(question.several))
    recipe = " ".join(["outlay choose", question.recipe, *asked, "--target", str(question.target)])
    what = f"layout {candidate.layout}, {price.range_in_words} a step by the estimate"
    memory = f"{format_bytes(price.peak_bytes)} of {format_bytes(price.capacity)} a device"
    words = [question.recipe, *question.words, *candidate.all_words, "--layout", "THIS_FILE"]
    run = " ".join([*price.environment, "outlay run", *words])
    return write_layout(layout, mesh=candidate.mesh, comment=f"Chosen by {recipe}\n{what}, {memory}\n{run}")


def ranked(compiled: Sequence[Considered]) -> list[Considered]:
    """Rank candidates: what fits by time, the first of them chosen; what does not fit by memory; then failures.

    Times are per example, since batches may differ. If the estimates cannot tell which is fastest, the one that waits
    least for exchanges is chosen, since more of it overlaps; where memory is scarce, the one that needs the least.
    """
    priced = [(each, price) for each in compiled if (price := each.price_per_sample)]
    fitting = sorted((pair for pair in priced if pair[1].fits), key=lambda pair: pair[1].seconds)
    too_big = sorted((pair for pair in priced if not pair[1].fits), key=lambda pair: pair[1].peak_bytes)
    ranking = []
    if fitting:
        fastest = fitting[0][1]
        alike = [pair for pair in fitting if is_tie(pair[1], fastest)]
        first, price = min(alike, key=lambda pair: among_ties(pair[1], fastest))
        ranking.append(replace(first, verdict="chosen", why=why_chosen(price, fastest)))
        ranking += [replace(each, why=_why_slower(each, first)) for each, _ in fitting if each is not first]
    return [*ranking, *(each for each, _ in too_big), *(each for each in compiled if each.price is None)]


def _why_slower(loser: Considered, winner: Considered) -> str:
    """Say why a candidate lost, per step of the winner; if its batch differs, per as many examples."""
    assert loser.price is not None
    assert winner.price is not None
    why = why_slower(loser.price.times(winner.num_samples / loser.num_samples), winner.price)
    return why if loser.num_samples == winner.num_samples else f"{why}, for as many examples"
