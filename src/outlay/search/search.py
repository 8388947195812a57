"""The search: screen by arithmetic, compile the best in processes, rank what fits, say why the others lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from outlay.core import errors
from outlay.core.sizes import format_bytes
from outlay.layout.layout import Layout
from outlay.layout.toml_write import unwritable, write_layout
from outlay.meshes.target import Target
from outlay.search.cache import cache_folder
from outlay.search.candidate import Candidate
from outlay.search.nothing_fits import nothing_fits, nothing_to_compile
from outlay.search.order import Screened, in_order, next_to_compile
from outlay.search.price import Price
from outlay.search.progress import Progress
from outlay.search.rank import Outcome, ranked
from outlay.search.render import step_time
from outlay.search.screen import RuledOut, screen
from outlay.search.selection import Considered, Selection
from outlay.search.why import why_not_compiled, why_too_big
from outlay.search.workers import Ended, Workers
from outlay.search.workload import Workload


@dataclass(frozen=True)
class Question:
    """What is asked: a recipe on a target, and among which candidates.

    Attributes:
        recipe: the recipe as the user named it.
        words: the options that the user gave it.
        target: the hardware.
        candidates: what to choose from.
        layouts: their layouts, by name.
        workload_of: what a candidate computes.
        command: starts a process that prices one candidate, see `Workers`.
        job_of: the job of that process.
    """

    recipe: str
    words: tuple[str, ...]
    target: Target
    candidates: tuple[Candidate, ...]
    layouts: Mapping[str, Layout]
    workload_of: Callable[[Candidate], Workload]
    command: tuple[str, ...]
    job_of: Callable[[Candidate], dict[str, Any]]


def search(question: Question, *, num_candidates: int, num_processes: int, timeout: float) -> Selection:
    """Answer a question. Progress goes to stderr.

    Args:
        question: what to choose, from what.
        num_candidates: how many to compile.
        num_processes: how many at a time.
        timeout: seconds for each.

    Raises:
        ChooseError: nothing can be compiled, or nothing that was compiled can run on the target.
        TargetError: the target's compiler is not here.
        KeyboardInterrupt: on Ctrl-C; what was compiled is kept for the next time.
    """
    start = time.monotonic()
    passed, ruled_out = screen(question.candidates, question.layouts, question.workload_of, question.target)
    if not passed:
        raise nothing_to_compile(question.target, ruled_out)
    workers = Workers(question.command, num_processes, timeout)
    outcomes = _compile(question, passed, workers, min(num_candidates, len(passed)), num_processes)
    capacity = question.target.hardware.memory_bytes
    tried = {outcome.screened for outcome in outcomes}
    waiting = [each for each in passed if each not in tried]
    left = in_order(waiting, tried, _priced(outcomes), capacity)
    considered = ranked(outcomes)
    if considered[0].verdict != "chosen":
        raise nothing_fits(question.target, considered, len(left))
    return Selection(
        recipe=question.recipe,
        words=question.words,
        target=str(question.target),
        considered=(*considered, *_not_compiled(left, capacity), *_ruled_out(ruled_out)),
        toml=_toml(question, considered[0]),
        seconds=time.monotonic() - start,
    )


def _compile(
    question: Question, passed: Sequence[Screened], workers: Workers, total: int, num_processes: int
) -> list[Outcome]:
    """Compile so many candidates, the next one chosen by what is known when a process is free."""
    outcomes: list[Outcome] = []
    taken: list[Screened] = []
    running: dict[Future[Ended], Screened] = {}
    capacity = question.target.hardware.memory_bytes
    with ThreadPoolExecutor(num_processes) as threads, Progress(total, str(question.target)) as progress:
        try:
            while len(outcomes) < total:
                while len(running) < num_processes and len(taken) < total:
                    left = [each for each in passed if each not in taken]
                    chosen = next_to_compile(left, taken, _priced(outcomes), capacity)
                    taken.append(chosen)
                    progress.started(chosen.candidate)
                    running[threads.submit(workers.answer, question.job_of(chosen.candidate))] = chosen
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = _outcome(running.pop(future), future.result())
                    outcomes.append(outcome)
                    progress.ended(outcome.screened.candidate, future.result(), _in_words(outcome))
        except KeyboardInterrupt:
            kept = sum(each.price is not None for each in outcomes)
            raise KeyboardInterrupt(
                f"stopped: {kept} of {total} candidates were compiled and are kept in {cache_folder()}; the same "
                "command goes on from there"
            ) from None
        finally:
            workers.stop()
    return outcomes


def _priced(outcomes: Sequence[Outcome]) -> list[tuple[Screened, Price]]:
    return [(each.screened, each.price) for each in outcomes if each.price is not None]


def _outcome(screened: Screened, ended: Ended) -> Outcome:
    """What a process said of its candidate.

    Raises:
        TargetError: the target cannot be compiled for, which holds for every candidate.
    """
    if ended.answer is None:
        return Outcome(screened, None, ended.failure, ended.timed_out)
    if "error" in ended.answer:
        kind, message = ended.answer["error"], ended.answer["message"]
        if kind == errors.TargetError.__name__:
            raise errors.TargetError(message)
        return Outcome(screened, None, message)
    return Outcome(screened, Price.from_dict(ended.answer["price"]), was_kept=ended.answer["was_kept"])


def _in_words(outcome: Outcome) -> str:
    if outcome.price is None:
        return outcome.failure.partition("\n")[0]
    kept = ", kept from before" if outcome.was_kept else ""
    if not outcome.price.fits:
        return f"does not fit, {why_too_big(outcome.price)}{kept}"
    return f"{step_time(outcome.price)} a step, {format_bytes(outcome.price.peak_bytes)}{kept}"


def _not_compiled(left: Sequence[Screened], capacity: int) -> list[Considered]:
    return [
        Considered(each.candidate, "not compiled", why_not_compiled(each.expected, capacity), expected=each.expected)
        for each in left
    ]


def _ruled_out(ruled_out: Sequence[RuledOut]) -> list[Considered]:
    return [Considered(each.candidate, "ruled out", each.why) for each in ruled_out]


def _toml(question: Question, chosen: Considered) -> str | None:
    """The chosen layout as a file, with where it comes from at its top."""
    candidate, price = chosen.candidate, chosen.price
    layout = question.layouts[candidate.layout]
    if price is None or unwritable(layout):
        return None
    recipe = " ".join(["outlay choose", question.recipe, *question.words, "--target", str(question.target)])
    what = f"layout {candidate.layout}, {step_time(price)} a step by the estimate"
    memory = f"{format_bytes(price.peak_bytes)} of {format_bytes(price.capacity)} a device"
    run = " ".join(["outlay run", question.recipe, *question.words, *candidate.words, "--layout", "THIS_FILE"])
    return write_layout(layout, mesh=candidate.mesh, comment=f"Chosen by {recipe}\n{what}, {memory}\n{run}")
