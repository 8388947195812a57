"""The compiler of absent TPUs, in a process of its own: where it meets a fault of its own, it ends its process.

libtpu checks what it believes of a program and aborts where that is false; no exception reaches Python. So a program,
which is plain bytes once it is lowered, goes to another process, and what comes back is all that JAX asks of a program
that cannot run here: texts, shardings, layouts, memory and costs. The process starts with the first program and
compiles one after another; Ctrl-C ends it at once.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import IO, Any

import jax
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]
from jaxlib.mlir import ir

from outlay.core.error_types import CompilerAbortError
from outlay.core.jax_topologies import tpu_topology_devices

_LENGTH = struct.Struct("<Q")
_FATAL = re.compile(r"^F\d{4} .*?\] (?P<check>.*)", re.MULTILINE)
_LONGEST_REASON = 500
_QUESTIONS = (
    "cost_analysis",
    "get_output_layouts",
    "get_output_memory_kinds",
    "get_output_shardings",
    "get_parameter_layouts",
    "get_parameter_shardings",
)
"""What JAX asks of an executable, besides its texts and its memory."""


@dataclass(frozen=True)
class _Compiled:
    """What another process says of a program that it compiled: answers to `_QUESTIONS`, or why there is none."""

    answers: Mapping[str, Any]
    refusals: Mapping[str, str]
    memory: Mapping[str, Any]
    texts: Sequence[tuple[str, str]]


class _Module:
    """The text of a compiled module, as JAX's own modules give it."""

    def __init__(self, text: str, with_constants: str) -> None:
        self._text, self._with_constants = text, with_constants

    def to_string(self, options: Any = None) -> str:
        """Return the text, with large constants if the options ask for them."""
        return self._with_constants if options is not None and options.print_large_constants else self._text


class _Executable:
    """What JAX needs of an executable that nobody runs."""

    def __init__(self, compiled: _Compiled) -> None:
        self._compiled = compiled
        for question in _QUESTIONS:
            setattr(self, question, functools.partial(self._answer, question))

    def _answer(self, question: str) -> Any:
        if question in self._compiled.refusals:
            raise jax.errors.JaxRuntimeError(self._compiled.refusals[question])
        return self._compiled.answers[question]

    def get_compiled_memory_stats(self) -> SimpleNamespace:
        """Return the compiler's figures of memory, by name."""
        return SimpleNamespace(**self._compiled.memory)

    def hlo_modules(self) -> list[_Module]:
        """Return the module."""
        return [_Module(*texts) for texts in self._compiled.texts]


class _CompilerProcess:
    """A process that compiles one program after another.

    It is started anew after an abort, and for another topology: what libtpu holds of the former one goes with it.
    """

    def __init__(self) -> None:
        self._topology: tuple[Any, ...] = ()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._of_parent: subprocess.Popen[bytes] | None = None  # held, or Python would warn that it still runs
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this process

    def ask(self, topology: tuple[Any, ...], *program: Any) -> _Compiled:
        """Have a program compiled.

        Args:
            topology: what it is compiled for, as `compile_apart` takes it.
            program: further arguments of `_compile`.

        Raises:
            jax.errors.JaxRuntimeError: the compiler refuses the program.
            CompilerAbortError: the compiler ended its process.
        """
        with self._lock:
            if topology != self._topology:
                self.kill()
            self._topology, process = topology, self._process or self._start()
            try:
                answer = _exchange(process, (topology, *program))
            except BaseException:  # Ctrl-C: the process would go on, and its answer come to the next question
                self.kill()
                raise
            finally:
                errors = self._take_errors()
            if answer is None:
                self._close()
                raise CompilerAbortError(_reason(process.returncode, errors))
        with contextlib.suppress(OSError):  # what a compiler in this process would print goes to the same place
            os.write(2, errors.encode(errors="surrogateescape"))
        if isinstance(answer, str):
            raise jax.errors.JaxRuntimeError(answer)
        return answer

    def leave_to_parent(self) -> None:
        """In a fork: the process answers its parent alone, so that a fork starts its own."""
        self._of_parent, self._process = self._process, None
        self._lock = threading.Lock()
        self._errors.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this process

    def kill(self) -> None:
        """End the process at once, also in the middle of a program."""
        if self._process:
            self._process.kill()
            self._close()

    def _close(self) -> None:
        """Wait for the process to end."""
        if self._process:
            # It ends when there is nothing more to read; what a killed one has not read yet is lost.
            with contextlib.suppress(BrokenPipeError), self._process:
                self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(path for path in sys.path if path)
        # -P: a file jax.py in the current folder is not imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C reaches this process only, which ends the other
        )
        return self._process

    def _take_errors(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="surrogateescape")
        self._errors.seek(0)
        self._errors.truncate()
        return text


_process = _CompilerProcess()
atexit.register(_process.kill)  # whoever ends waits for no program of another thread
os.register_at_fork(after_in_child=_process.leave_to_parent)
_topologies: dict[Any, tuple[Any, ...]] = {}
"""The arguments of `tpu_topology_devices` that gave the devices of a client."""


def compile_apart(devices: Sequence[jax.Device], *topology: Any) -> None:
    """Have JAX compile for these compile-only devices in a process of its own.

    Args:
        devices: all devices of a topology.
        topology: its name, the number of slices and further options, as `tpu_topology_devices` takes them.
    """
    _topologies[devices[0].client] = topology
    _divert_jax()


@functools.cache
def _divert_jax() -> None:
    compile_here = compiler.compile_or_get_cached

    def compile_there(
        backend: Any, module: Any, devices: Any, options: Any, host_callbacks: Any, device_list: Any, *rest: Any
    ) -> Any:
        if backend not in _topologies or host_callbacks:
            return compile_here(backend, module, devices, options, host_callbacks, device_list, *rest)
        code, numbers = mlir.module_to_bytecode(module), [device.id for device in device_list]
        return _Executable(_process.ask(_topologies[backend], code, options.SerializeAsString(), numbers))

    compiler.compile_or_get_cached = compile_there


def serve() -> None:
    """Compile what comes in on stdin until it ends: what the other process runs."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing but answers goes there
    _end_with(os.getppid())
    while (request := _receive(requests)) is not None:
        topology, *program = request
        try:
            answer = _compile(_devices(*topology), *program)
        except jax.errors.JaxRuntimeError as error:
            answer = str(error)
        sys.stderr.flush()
        _send(answers, answer)


@functools.cache
def _devices(topology: str, num_slices: int, options: tuple[tuple[str, Any], ...]) -> dict[int, jax.Device]:
    devices = tpu_topology_devices(topology, num_slices, **dict(options))
    return {device.id: device for device in devices}


def _compile(devices: dict[int, jax.Device], module: bytes, options: bytes, numbers: list[int]) -> _Compiled:
    chosen = tuple(devices[number] for number in numbers)
    with mlir.make_ir_context():
        executable = chosen[0].client.compile(
            ir.Module.parse(module),
            executable_devices=xla_client.DeviceList(chosen),
            compile_options=xla_client.CompileOptions.ParseFromString(options),
        )
    answers, refusals = {}, {}
    for question in _QUESTIONS:
        try:
            answers[question] = getattr(executable, question)()
        except jax.errors.JaxRuntimeError as error:
            refusals[question] = str(error)
    stats = executable.get_compiled_memory_stats()
    memory = {name: getattr(stats, name) for name in dir(stats) if not name.startswith("_")}
    with_constants = _hlo.HloPrintOptions()
    with_constants.print_large_constants = True
    texts = [(one.to_string(), one.to_string(with_constants)) for one in executable.hlo_modules()]
    return _Compiled(answers, refusals, memory, texts)


def _end_with(parent: int) -> None:
    """End this process soon after its parent, also in the middle of a program."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _exchange(process: subprocess.Popen[bytes], request: tuple[Any, ...]) -> _Compiled | str | None:
    """Return the answer to a request: a compiled program, why it is refused, or None if the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _send(process.stdin, request)
    except BrokenPipeError:
        return None
    return _receive(process.stdout)


def _send(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    """Return the next value; None at the end of the stream, also if it ends within a value."""
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(length)
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None


def _reason(code: int, errors: str) -> str:
    """Say how the process of the compiler ended, and what it last wrote."""
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    check = _FATAL.search(errors)
    lines = [check["check"]] if check else [line.strip() for line in errors.splitlines() if line.strip()]
    return f"{how}: {lines[-1][:_LONGEST_REASON]}" if lines else f"{how}, without a word"
