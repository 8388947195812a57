"""How a job ended: the exit code, and the text that says which process failed first, and why."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outlay.core.quantities import counted, plural
from outlay.jobs.exit_codes import STOPPED, STOPPING, STUCK, TERMINATED, UNCAUGHT, is_echo, shell_code
from outlay.jobs.job_folder import Failure, JobFolder
from outlay.jobs.verdict import Verdict
from outlay.launcher.merged_output import MergedOutput
from outlay.launcher.process import Process


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        exit_code: what the launcher ends with; 0 if all is well.
        text: what to print, the most important last; empty if all is well.
        is_failure: whether it failed by itself; False where somebody stopped it.
    """

    exit_code: int
    text: str = ""
    is_failure: bool = True


def after_failure(
    result: Verdict, processes: Sequence[Process], folder: JobFolder, output: MergedOutput, held: Sequence[int] = ()
) -> JobResult:
    """Return the result of a job in which processes failed.

    Args:
        result: the verdict.
        processes: all processes of the job, ended.
        folder: the folder of the job.
        output: the output of the job.
        held: the processes that a signal held when the first failed.
    """
    assert result.first is not None
    first = processes[result.first]
    failure = folder.failure(first.number)
    error_text = failure.traceback if failure else output.last_errors(first.number)
    if failure and failure.type == "SystemExit":  # its traceback shows only where; what was printed before says why
        error_text += output.last_errors(first.number)
    lines = []
    if (num := output.num_held(but=first.number)) > 0:
        lines.append(f"{counted(num, 'line')} from the other processes, which only followed, left out ({output.log})")
    if result.culprits == (first.number,):
        lines.append(f"process {first.number} of {len(processes)} failed first: {_reason(first, folder)}")
    else:  # the one to blame comes last, and is not the one that failed
        culprits = [processes[number] for number in result.culprits]
        codes = ", ".join(sorted({str(one.exit_code) for one in culprits}))
        is_held = all(one.number in held for one in culprits)
        why = "gave no sign of life, held by a signal (SIGSTOP)" if is_held else f"ended early, with exit code {codes}"
        error_text += (
            f"{_name(culprits)} of {len(processes)} {why}: "
            f"process {first.number} ended because of {_pronoun(culprits)}, {_reason(first, folder)}\n"
        )
    return JobResult(_code(first, failure), "\n".join([*lines, error_text]))


def left_early(processes: Sequence[Process], finished: Sequence[Process], stacks: Mapping[int, str]) -> JobResult:
    """Return the result of a job in which processes ended well while others waited for them in a collective."""
    text = (
        f"{_name(finished)} of {len(processes)} ended early, while the others wait for {_pronoun(finished)} in a "
        "collective: all processes must take the same steps"
    )
    return JobResult(STUCK, "\n".join([text, *_headed(stacks)]))


def never_joined(processes: Sequence[Process], exited: Sequence[Process]) -> JobResult:
    """Return the result of a job in which processes ended well before they joined, while others waited for them."""
    codes = ", ".join(sorted({str(process.exit_code) for process in exited}))
    return JobResult(
        STUCK,
        f"{_name(exited)} of {len(processes)} ended, with exit code {codes}, before outlay.join(), where the others "
        f"wait for {_pronoun(exited)}: all processes must join, or none",
    )


def succeeded(processes: Sequence[Process]) -> JobResult:
    """Return the result of a job in which all processes ended well, or saved and stopped on request."""
    stopped = max((process.exit_code for process in processes if process.exit_code in STOPPING), default=0)
    text = {
        STOPPED: "stopped on request; the exit code says that the job can be continued",
        TERMINATED: "stopped by SIGTERM to a process: the state is saved, all processes ended",
    }
    return JobResult(stopped, text.get(stopped, ""), is_failure=False)


def stuck(
    processes: Sequence[Process], why: Mapping[int, str], stacks: Mapping[int, str], waiting: Sequence[int]
) -> JobResult:
    """Return the result of a job that stood still.

    Args:
        processes: the processes of the job.
        why: by process, what it was doing and for how long.
        stacks: by process that answered, where its threads were.
        waiting: the processes that waited in JAX's compiled code.
    """
    waits = [f"process {number}: {text}" for number, text in why.items()]
    silent = [number for number in why if number not in stacks]
    late = [processes[number] for number in why if number not in waiting]
    lines = ["the job is stuck", *waits, *_headed(stacks)]
    if waiting and late:
        names = _name([processes[number] for number in waiting])
        lines.append(f"\nwaiting in JAX, as for a collective: {names}; missing there: {_name(late)}")
    elif len(waiting) > 1:
        lines.append("\nall wait in JAX, but not for the same collective")
    lines.append(
        "  fix: if they only needed more time, --stuck-after SECONDS or --stuck-after off; before the first step, "
        "--start-within SECONDS"
    )
    if silent:
        lines.append(f"no stacks from {', '.join(map(str, silent))}: outlay.join() was not called, or did not return")
    return JobResult(STUCK, "\n".join(lines) + "\n")


def _headed(stacks: Mapping[int, str]) -> list[str]:
    return [f"\nprocess {number} is here:\n{text.rstrip()}" for number, text in sorted(stacks.items())]


def is_echo_of_another(process: Process, folder: JobFolder, output: MergedOutput) -> bool:
    """Return whether a process that has failed only says that another one has gone."""
    failure = folder.failure(process.number)
    # A signal is a cause of its own, except SIGABRT: JAX ends a process with it that has lost another one. Where the
    # process has written why it fails, the signal may be the launcher's.
    if failure is None and (process.exit_code or 0) < 0 and process.exit_code != -signal.SIGABRT:
        return False
    error_text = failure.message if failure else ""
    if failure is None or failure.type == "SystemExit":  # what it printed before says why
        error_text += output.last_errors(process.number)
    return is_echo(error_text)


def _reason(process: Process, folder: JobFolder) -> str:
    failure = folder.failure(process.number)
    if failure:
        return f"{failure.type}, exit code {_code(process, failure)}"
    code = process.exit_code or UNCAUGHT
    if code > 0:
        return f"exit code {code}"
    hint = ", by a user, or by the system because memory ran out" if -code == signal.SIGKILL else ""
    return f"ended by {signal.Signals(-code).name}{hint}; exit code {_code(process)}"


def _code(process: Process, failure: Failure | None = None) -> int:
    """Return the exit code of a process, or what it would have been.

    The launcher's SIGTERM may reach a process that has written why it fails and has not ended yet.
    """
    if failure and process.exit_code in (None, -signal.SIGTERM):
        return failure.exit_code
    return shell_code(process.exit_code or UNCAUGHT)


def _name(processes: Sequence[Process]) -> str:
    numbers = ", ".join(str(process.number) for process in processes)
    return f"{plural(len(processes), 'process', 'processes')} {numbers}"


def _pronoun(processes: Sequence[Process]) -> str:
    return plural(len(processes), "it", "them")
