"""A side of a benchmark in a process of its own: it loads models and runs rounds when it is asked to.

It imports nothing but the standard library: sides run in environments of their own.
"""

import json
import sys
import time


def serve(load, answers=None):
    """Answer requests, a line of JSON each, until there are no more.

    Args:
        load: makes a function that runs a round of a model, and what is to be known of it, of the request's arguments.
        answers: functions that answer other requests, by name.
    """
    _answer("ready")
    run, num_steps = None, 1
    for line in sys.stdin:
        name, arguments = json.loads(line)
        if name == "load":
            run = None  # the last model's memory is free before the next one takes its own
            run, known = load(**arguments)
            num_steps = arguments["num_steps"]
            run()  # which compiles
            _answer(known)
        elif name == "round":
            start, spent = time.perf_counter(), time.process_time()
            run()
            elapsed = time.perf_counter() - start, time.process_time() - spent
            _answer([seconds / num_steps for seconds in elapsed])
        else:
            _answer(answers[name](**arguments))


def _answer(value):
    print("answer", json.dumps(value), flush=True)
