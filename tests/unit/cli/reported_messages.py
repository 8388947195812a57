"""Raw texts that reports of strangers quote, whole or in part: text, name, words of the explanation."""

REPORTED_MESSAGES = [
    ("RuntimeError: Event loop is closed", "work left when Python ended", "wait for saves before the end"),
    (
        "F1126 07:12:01.1 512 py_device_list.cc:271] Check failed: process_indices_->size() == 1 (0 vs. 1)",
        "sharding over no device",
        "an empty list of devices",
    ),
    (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
        "external/gloo/gloo/transport/tcp/loop.cc:210] nfds != -1. -1 vs -1",
        "connections that were closed",
        "os.closerange",
    ),
    (
        "[enforce fail at external/gloo/gloo/transport/tcp/loop.cc:82] rv != -1. -1 vs -1. epoll_ctl: Bad file "
        "descriptor",
        "connections that were closed",
        "ulimit -n",
    ),
    ("ValueError: Found empty item.", "checkpoint of nothing", "save only where it has leaves"),
    (
        'Traceback (most recent call last):\n  File "spmd.py", line 7, in shard\n    assert mesh == other\n'
        "AssertionError\n",
        "failed check without a text",
        "in place of NamedSharding(mesh, ...)",
    ),
    ("Shell source not supported.", "completion asked for otherwise", 'eval "$(outlay completion bash)"'),
    ("TypeError: gt got incompatible shapes (2,), (4,)", "shapes that do not broadcast", "shapes (2,) and (4,)"),
    (
        "ValueError: only valid for values of rank at least 3, but was applied to a value of rank 2",
        "spec longer than the array",
        "the spec has 3 entries",
    ),
    ('"input layouts that disagree"', "int4 of a compiled function", "store such leaves as int8"),
    ("INTERNAL: RET_CHECK failure (... fft_thunk.cc:168)", "FFT of a dim that is not last", "only batch dims"),
    ("RuntimeError: Array has been deleted", "array given away", "it is gone"),
    ("is_deleted() was called on traced array", "called inside jit", "call it from plain Python"),
    ("UnexpectedTracerError", "value that left its function", "return the value from the function"),
    ("PartitioningUnspecifiedError", "annotated parameter under a new dim", "nn.PARTITION_NAME: None"),
    ("RuntimeError: cuDNN not found.", "plugin that does not start", "a complaint, and no failure"),
    (
        "ValueError: For primitive add, context mesh AbstractMesh('data': 8, axis_types=(Auto,)) should match the aval "
        "mesh AbstractMesh('e': 8, axis_types=(Auto,)) for shape float32[8].",
        "value of another mesh than the one set",
        "of AbstractMesh('e': 8, axis_types=(Auto,))",
    ),
    (
        "TypeError: JAX encountered invalid PRNG key data: expected key_data.shape to end with (2,); got shape=(4,) "
        "for impl=PRNGImpl(key_shape=(2,), seed=<function threefry_seed at 0x7f78e1194e0>",
        "key of another generator",
        "jax.random.wrap_key_data(words, impl='rbg')",
    ),
    (
        "TypeError: JAX encountered invalid PRNG key data: expected key_data.dtype = uint32; got dtype=int32",
        "key of another generator",
        "expected key_data.dtype = uint32; got dtype=int32",
    ),
    (
        "ValueError: dtype=key<rbg> is not a valid dtype for JAX type promotion.",
        "random key as a number",
        "leave keys out of the map",
    ),
    (
        "AttributeError: 'int' object has no attribute 'shape'",
        "no array where one is needed",
        "a Python number among the outputs",
    ),
    (
        "TypeError: make() takes 0 positional arguments but 1 was given",
        "function with other arguments",
        "lambda key: make()",
    ),
    (
        "TypeError: fit() got an unexpected keyword argument 'num_steps'",
        "function with other arguments",
        "look at help() of the function",
    ),
    (
        "TypeError: cannot unpack non-iterable NoneType object",
        "one value where several are unpacked",
        "a function returned NoneType",
    ),
    ("TypeError: 'generator' object is not subscriptable", "data that can be read once", "list(generator)"),
    (
        "IndexError: index 16 is out of bounds for axis 0 with size 16",
        "entry that is not there",
        "there are 16, counted from 0",
    ),
    (
        "OSError: [Errno 30] Read-only file system: '/run/plan.json'",
        "file that may not be written",
        "change /run/plan.json: Read-only file system",
    ),
    (
        "OSError: [Errno 39] Directory not empty: '/run/50.partial'",
        "folder that is not empty",
        "/run/50.partial was to be removed",
    ),
    (
        "TypeError: expected str, bytes or os.PathLike object, not NIRGraph",
        "path that is none",
        "of an object that was read already",
    ),
    ("ValueError: PosixPath('.') has an empty name", "path that is none", "give the path as text"),
    (
        "AttributeError: 'NoneType' object has no attribute 'isatty'",
        "output that is closed",
        "> log 2>&1",
    ),
    ("OSError: [Errno 24] Too many open files: 'x.npy'", "too many open files", "ulimit -n 65536"),
    (
        "F1126 07:12:01.1 512 shape_util.cc:99] Check failed: chunks.size() == 1 (0 vs. 1)",
        "check of XLA that failed",
        "something that it takes for granted does not hold: chunks.size() == 1",
    ),
    (
        "Check failed: ... Cannot find a valid window for convert s32[32,2048]",
        "check of XLA that failed",
        "the batch of a device",
    ),
    (
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while "
        "the future was running or pending.",
        "worker of a pool that died",
        "get_context('spawn' or 'forkserver')",
    ),
    (
        "W1126 07:12:01.1 512 preemption_notifier.cc:89] SIGTERM caught at 2026-11-26T07:12:01Z.",
        "SIGTERM that is kept for later",
        "jax_enable_preemption_service",
    ),
    ("OSError: [Errno 98] Address already in use", "port in use", "cannot listen on the port that it was given"),
    (
        "Gloo context initialization failed: DEADLINE_EXCEEDED",
        "peer that was not found",
        "under a name that both know",
    ),
]
