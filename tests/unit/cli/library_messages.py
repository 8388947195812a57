"""Errors of JAX, Flax, optax, NumPy and Python that public programs ended in: text, name, words of the explanation."""

LIBRARY_MESSAGES = [
    (
        "TypeError: float() argument must be a string or a real number, not 'ShapeDtypeStruct'",
        "constructor given shapes",
        "filled with ShapeDtypeStruct in place of its arrays",
    ),
    (
        "AttributeError: 'NamedSharding' object has no attribute 'ndim'",
        "constructor given shapes",
        "object.__new__(cls)",
    ),
    (
        "ValueError: Custom node type mismatch: expected type: <class 'tuple'>, value: {}.",
        "trees of other structure",
        "opt_state = optimizer.init(params)",
    ),
    (
        "ValueError: pytree structure error: different numbers of pytree children at key path\n    tree.head",
        "trees of other structure",
        "two trees that belong together",
    ),
    (
        "TypeError: Function compiled with input pytree does not match the input pytree it was called with. There are "
        "1 mismatches, including:",
        "trees of other structure",
        "give those of the first call",
    ),
    (
        "ValueError: Too many leaves for PyTreeDef; expected 36",
        "tree of another number of leaves",
        "a tree of 36 leaves",
    ),
    (
        "TypeError: Computation compiled for 42 inputs but called with 36",
        "tree of another number of leaves",
        "left behind while it was traced",
    ),
    (
        "TypeError: Error interpreting argument to <function step at 0x7f00> as an abstract array. The problematic "
        "value is of type <class 'jax._src.custom_derivatives.custom_jvp'> and was passed to the function at path "
        "args[0].activation.",
        "not an array for JAX",
        "eqx.filter_jit",
    ),
    ("TypeError: Dtype >f4 is not a valid JAX array type.", "not an array for JAX", "JAX was given >f4"),
    (
        "TypeError: Value 'abc' with dtype <U3 is not a valid JAX array type. Only arrays of numeric types are "
        "supported by JAX.",
        "not an array for JAX",
        "numbers in place of text",
    ),
    (
        "ValueError: setting an array element with a sequence. The requested array has an inhomogeneous shape after 1 "
        "dimensions. The detected shape was (8,) + inhomogeneous part.",
        "lists of uneven lengths",
        "np.stack(images)",
    ),
    (
        "TypeError: scale_by_zoom_linesearch.<locals>.update_fn() missing 3 required keyword-only arguments: 'value', "
        "'grad', and 'value_fn'",
        "optimizer that asks for more",
        "do not agree on 'value', 'grad', and 'value_fn'",
    ),
    (
        "TypeError: sgd.<locals>.update_fn() got an unexpected keyword argument 'value'",
        "optimizer that asks for more",
        "optax.with_extra_args_support(optimizer)",
    ),
    (
        "TypeError: gt got incompatible shapes for broadcasting: (2,), (4,).",
        "shapes that do not broadcast",
        "arrays of shapes (2,) and (4,)",
    ),
    (
        "ValueError: Operands could not be broadcast together for add on shapes (8, 4) (4,) and with the config option "
        "jax_numpy_rank_promotion='raise'.",
        "shapes that do not broadcast",
        "b[None]",
    ),
    (
        "TypeError: only 0-dimensional arrays can be converted to Python scalars",
        "one number expected",
        "more than one entry",
    ),
    (
        "TypeError: only length-1 arrays can be converted to Python scalars",
        "one number expected",
        "x.mean()",
    ),
    ("ValueError: `set_mesh` can only be used outside of `jax.jit`.", "called inside jit", "while JAX traces"),
    (
        "jax.errors.ConcretizationTypeError: The is_deleted() method was called on traced array with shape float32[8].",
        "called inside jit",
        "call it from plain Python",
    ),
    (
        "ValueError: Duplicate Param\nfound at paths:\n\n  - a.kernel\n  - b.kernel",
        "variable of NNX at two places",
        "nnx.split / nnx.merge",
    ),
    (
        "flax.errors.TraceContextError: Cannot mutate Param from a different trace level",
        "variable of NNX from outside",
        "pass the module as an argument",
    ),
    (
        "FloatingPointError: invalid value (nan) encountered in jit(step)",
        "NaN where NaNs are looked for",
        "jit(step) made a nan",
    ),
    ("ValueError: mmap length is greater than file size", "file shorter than its header says", "was cut short"),
    (
        "AttributeError: module 'numpy' has no attribute 'float8_e4m3fn'",
        "dtype that NumPy has not",
        "arrays of float8_e4m3fn",
    ),
    ("ValueError: Unsupported data type: uint4", "dtype that NumPy has not", "arrays of uint4"),
    (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 37.3 GiB for an array with shape (100000, "
        "100000) and data type float32",
        "array larger than the memory",
        "an array of (100000, 100000) in float32, 37.3 GiB",
    ),
    (
        'ValueError: RESOURCE_EXHAUSTED: Error writing local file "/run/recording.zarr/.__lock": Failed to write',
        "disk that is full",
        "make room there",
    ),
    ("OSError: [Errno 28] No space left on device: '/run/plan.json'", "disk that is full", "the quota of this user"),
    ("RecursionError: maximum recursion depth exceeded", "nesting too deep", "two lines that repeat"),
    (
        "OverflowError: Python integer 1099511627783 out of bounds for int32",
        "integer too large for its dtype",
        "1099511627783 does not fit into int32",
    ),
    (
        "IndivisibleError: One of with_sharding_constraint arguments was given the sharding of NamedSharding(mesh="
        "Mesh('data': 8), spec=P(None, None, 'data', None), memory_kind=device), which implies that the global size of "
        "its dimension 2 should be divisible by 8, but it is equal to 4 (full shape: (8, 16, 4, 8))",
        "dim does not divide",
        "of size 4, is not divisible by 8",
    ),
]
