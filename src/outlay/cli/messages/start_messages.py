"""Messages from before the first step: platforms, flags, simulated devices, and processes that look for each other."""

from __future__ import annotations

from outlay.cli.messages.message import KnownMessage

START = (
    KnownMessage(
        "number of devices set too late",
        (r"(?P<setting>jax_num_cpu_devices) config should be updated before backends are initialized",),
        "JAX had started when {setting} was set, and the number of devices is fixed from then on. (XLA_FLAGS="
        "--xla_force_host_platform_device_count set that late is ignored without a word.)",
        "set it right after `import jax`. jax.random.key(0) or jnp.zeros at the top of an imported module starts JAX "
        "already",
        "outlay.simulate(8) names the file and the line that had started JAX",
    ),
    KnownMessage(
        "distributed start too late",
        (r"jax\.distributed\.initialize\(\) must be called before any JAX (?:calls|computations)",),
        "JAX had started on this process alone when jax.distributed.initialize was called",
        "call it first in main, before anything makes an array, also at the top of imported modules, and before "
        "jax.devices()",
        "outlay doctor names what had started JAX",
    ),
    KnownMessage(
        "no cluster found",
        (
            r"(?P<missing>coordinator_address|num_processes|process_id|Number of processes|The process id of the "
            r"current process) (?:should|must) be defined",
        ),
        "jax.distributed.initialize() found no SLURM, MPI, Kubernetes or TPU pod to read {missing} from: some of their "
        "environment variables are missing",
        'pass all three: jax.distributed.initialize("host0:1234", num_processes=2, process_id=0), with host0 the '
        "machine of "
        "process 0 as all others see it",
        "outlay doctor lists the SLURM variables that are set",
    ),
    KnownMessage(
        "port in use",
        (
            r"Failed to add port to server: No address added out of total \d+ resolved for '[^'\n]*:(?P<port>\d+)'"
            r"(?:.{0,4000}?Failed to start RPC server)?",
        ),
        "process 0 cannot listen on port {port}, where the others are to find it: it is taken, often by the last run",
        "end the old process, or pass another port to jax.distributed.initialize in all processes",
        "",
    ),
    KnownMessage(
        "process that never came",
        (r"DEADLINE_EXCEEDED: .{0,300}?CoordinationService/RegisterTask",),
        "the processes did not all find each other in time (initialization_timeout, 300 s unless set): one never "
        "started or died early, or cannot reach the coordinator. This kills the process without a Python error",
        "count the processes that started; check that each got the same coordinator_address and num_processes and "
        "its own process_id, that process 0 listens there (JAX_COORDINATOR_BIND_ADDRESS), and that its name is not "
        "127.0.x elsewhere",
        "",
    ),
    KnownMessage(
        "peer that was not found",
        (r"GetKeyValue\(\) timed out with key: (?P<key>\S+)(?: and duration: (?P<time>\S+))?",),
        "while connecting for the first collective, this process waited for another one to announce itself under "
        "{key}, and it did not",
        "all processes must run the same compiled functions in the same order; look for one that failed, is still "
        "compiling, or takes another branch, such as `if jax.process_index() == 0`",
        "",
    ),
    KnownMessage(
        "unknown flag of XLA",
        (r"Unknown flags? in XLA_FLAGS: (?P<flags>[^\n]+)",),
        "this XLA does not know {flags}; flags come and go with versions, and those of one platform may be missing "
        "on another",
        "take it out of XLA_FLAGS; look for a slip of the finger or a typographic dash",
        "outlay doctor shows XLA_FLAGS and finds typographic dashes",
    ),
    KnownMessage(
        "value of a flag of XLA",
        (r"Couldn't interpret value (?P<value>\S*) for flag (?P<flag>\w+)\.",),
        "XLA_FLAGS gives --{flag} the value '{value}', which is not of the type that the flag takes",
        "correct the value; the list of flags that XLA prints below says the types",
        "outlay.simulate(8) sets the number of simulated devices without a flag",
    ),
    KnownMessage(
        "platform that is not there",
        (
            r"Unknown backend:? '?(?P<platform>\w+)'? requested, but no platforms that are instances of \w+ are "
            r"present\. Platforms present are: (?P<present>[^\n]+)",
            r"Unknown backend (?P<platform>\w+)\. Available backends are (?P<present>[^\n]+)",
            r"Unable to initialize backend '(?P<platform>\w+)': Backend '\w+' is not in the list of known backends: "
            r"(?P<present>[^\n]+?\])",
        ),
        "the platform '{platform}' was asked for, and this JAX has {present}",
        "correct the name in JAX_PLATFORMS or in jax.devices(...), or install it: pip install -U 'jax[cuda13]' or "
        "'jax[tpu]'",
        "outlay doctor shows the platform, the devices and JAX_PLATFORMS",
    ),
    KnownMessage(
        "GPU that is not used",
        (r"An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed",),
        "there is a GPU, but JAX works on the CPU: the part of JAX for CUDA is not installed here",
        "pip install -U 'jax[cuda13]' into this environment",
        "outlay doctor says so too",
        weight="warning",
    ),
)
