"""Messages of processes that wait for or lose each other. Most are consequences: the cause is in another log."""

from __future__ import annotations

from outlay.cli.messages.message import KnownMessage, Values


def _barrier(values: Values) -> Values:
    if values["barrier"].startswith("Shutdown"):
        story = (
            "wanted to end, while the others went on: it raised an error or returned early, so its log has the cause"
        )
    else:
        story = "was there first and waited; those that did not come failed, hang or are slow: see their logs"
    missing = ", ".join(values["missing"].split()) or "not named"
    return {**values, "story": story, "missing": missing, "barrier": values["barrier"].partition("::")[0].lower()}


PROCESSES = (
    KnownMessage(
        "barrier that not all reached",
        (
            r"Barrier timed out\. Id: (?P<barrier>\S+?)\. .{0,300}?# of tasks that reached the barrier: "
            r"(?P<num>\d+)/(?P<all>\d+)\. The first task at the barrier: (?P<first>\S+?)\. Some timed out task "
            r"names: (?P<missing>[\w/:,\s]{0,300}?) \[",
        ),
        "{num} of {all} processes reached the {barrier} barrier, and the rest did not come in time (missing: "
        "{missing}). Process {first} {story}",
        "read the log of process {first}, then of {missing}, for the first Python error. So that one failure ends "
        "all at once: jax.config.update('jax_enable_recoverability', True), or an excepthook that prints and calls "
        "os._exit",
        weight="consequence",
        derive=_barrier,
    ),
    KnownMessage(
        "process that fell silent",
        (
            r"The following tasks are unhealthy \(stopped sending heartbeats\): (?P<tasks>.{1,300}?) The tasks have "
            r"crashed",
        ),
        "process {tasks} stopped sending signs of life: it was killed, by the system (out of memory), the scheduler "
        "or a crash",
        "read the end of its log, and the kernel's (dmesg) or the scheduler's for a kill; heartbeat_timeout_seconds "
        "(100) in jax.distributed.initialize says how soon the others notice",
        weight="consequence",
        derive=lambda values: {**values, "tasks": ", ".join(values["tasks"].split())},
    ),
    KnownMessage(
        "coordinator gone",
        (r"Failed to send RPC to coordination service\. Either the leader task (?:was preempted/)?died",),
        "process 0, which coordinates, is gone; all others end with it",
        "read the log of process 0",
        weight="consequence",
    ),
    KnownMessage(
        "lost connection",
        (
            r"Gloo (?P<what>[\w -]+?) failed: .{0,200}?(?P<how>Connection closed by peer|Connection reset by "
            r"peer|Broken pipe) ?\[?(?P<peer>[^\s\]]*)",
        ),
        "a process ended while this one was in a collective with it ({what}: {how})",
        "read the logs of the other processes for the first Python error; this one only noticed",
        weight="consequence",
    ),
    KnownMessage(
        "ended because another failed",
        (r"Terminating process because the JAX distributed service detected fatal errors",),
        "this process was ended because JAX's coordination service reported an error, most likely that another "
        "process died",
        "read the logs of the others for the first error; run with `python -u` so that nothing is lost",
        weight="consequence",
    ),
    KnownMessage(
        "collective that waited too long",
        (r"Gloo (?P<what>[\w -]+?) failed: .{0,200}?(?P<how>(?:Read|Write|Connect|Wait) timeout)",),
        "in a collective over gloo ({what}), another process did not take part in time ({how})",
        "the processes must run the same functions in the same order: look for one that compiles, loads data or "
        "saves while the others go on",
    ),
    KnownMessage(
        "devices waiting for each other",
        (
            r"This thread has been waiting for [`'](?P<what>[\w -]+?) Rendezvous.{0,400}? for (?P<time>\d+) seconds "
            r"and may be stuck\. Expected (?P<num>\d+) threads",
            r"Termination timeout for [`'](?P<what>[\w -]+?) Rendezvous.{0,400}? of (?P<time>\d+) seconds "
            r"exceeded\..{0,80}? Expected (?P<num>\d+) threads",
        ),
        "a collective ({what}) waits for all {num} devices of this process, and {time} s later some have not come: "
        "they are slow, starved of threads, or run another program",
        "simulated devices: have no more of them than threads (NPROC), and let no Python callback block one; real "
        "devices: look for a collective that only some devices reach, as under lax.cond with a different predicate",
        "outlay.simulate sets NPROC so that devices cannot starve each other",
    ),
    KnownMessage(
        "NCCL failed",
        (
            r"NCCL operation (?P<what>nccl\w+).{0,200}? failed: (?P<why>[^\n(.]{1,120}\w)[^\n]{0,80}?"
            r"(?:Last NCCL warning\(error\) log entry \(may be unrelated\) '(?P<last>[^'\n]*)'|\n|$)",
        ),
        "the library between GPUs failed in {what}: {why}{last}. An 'unhandled system error' is the network, mostly; "
        "'remote process exited' is another process",
        "run again with NCCL_DEBUG=INFO; check that all processes see the same network (NCCL_SOCKET_IFNAME), that "
        "/dev/shm is large enough in a container, and the log of the process that failed first",
        derive=lambda values: {**values, "last": f" ({values['last']})" if values["last"] else ""},
    ),
)
