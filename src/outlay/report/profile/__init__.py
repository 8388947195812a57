"""Compare predicted and measured times: join a trace of JAX's profiler with the operations of `explain`."""
