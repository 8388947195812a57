from outlay.program.consistency import Facts, disagreement, same_everywhere, source_of

USUAL = Facts({"mesh": "data=2", "seed": "0"}, {"batch.x": "float32[8, 4]", "batch.y": "int32[8]"}, "a\nb\nc", "f.py:3")


def message(**processes):
    by_process = {tuple(map(int, name.strip("p").split("_"))): facts for name, facts in processes.items()}
    return disagreement(by_process, {group: facts.hashes for group, facts in by_process.items()})


def other(**changed):
    return Facts(**({name: getattr(USUAL, name) for name in ("config", "data", "program", "where")} | changed))


def test_processes_are_set_against_most_of_them():
    text = message(p0=other(config={"mesh": "data=1", "seed": "7"}), p1_2=USUAL)
    assert "process 0 against processes 1, 2:" in text
    assert "config: mesh is data=1, there data=2; and 1 more difference\n" in text
    assert text.endswith("fix: start all processes with the same options, files and versions")


def test_each_kind_of_difference_is_said_with_its_fix():
    text = message(
        p0=USUAL, p1=other(data=USUAL.data | {"batch.x": "float32[4, 4]"}), p2=other(program="a\nB\nc", where="g.py:9")
    )
    assert "process 1 against process 0:\n    data: batch.x is float32[4, 4], there float32[8, 4]\n" in text
    hashes = other(program="a\nB\nc").hashes["program"], USUAL.hashes["program"]
    lines = f"    program: {hashes[0]} (g.py:9), there {hashes[1]} (f.py:3)\n      - b\n      + B\n"
    assert f"process 2 against process 0:\n{lines}" in text
    assert text.count("fix: ") == 2


def test_another_program_is_only_the_consequence_of_other_data():
    text = message(p0=USUAL, p1=other(data={}, program="a\nB\nc"))
    assert "data: batch.x is absent, there float32[8, 4]; and 1 more difference" in text
    assert "+ B" not in text
    assert "jax.process_index" not in text


def test_a_program_that_was_too_long_is_told_apart_by_its_hash():
    assert "      - " not in message(p0=USUAL, p1=other(program=""))


def test_facts_arrive_as_they_were_sent():
    assert Facts.from_json(USUAL.to_json()) == USUAL


def test_where_a_callback_is_pinned_is_no_difference():
    one = "  sdy.mesh @maximal_mesh_0 = <[], device_ids=[0]>\n  call @f() {sharding = <@maximal_mesh_0, []>}\n"
    assert same_everywhere(one) == same_everywhere(one.replace("_0", "_1").replace("[0]", "[1]"))
    assert same_everywhere(one) != same_everywhere(one.replace("@f", "@g"))


def test_a_step_of_ours_is_named_by_the_loss_in_it():
    import optax

    from outlay.train.step import train_step

    def loss(params, batch, keys):
        return params, {}

    assert source_of(train_step(loss, optax.sgd(0.1))) == f"{__file__}:{loss.__code__.co_firstlineno}"
