from outlay.core.suggest import MAX_LISTED, did_you_mean


def test_a_near_miss_names_what_was_meant():
    assert did_you_mean("params.dense.kernal", ["params.dense.kernel", "params.dense.bias", "step"]) == (
        "did you mean 'params.dense.kernel'?"
    )


def test_at_most_two_are_suggested():
    assert did_you_mean("layer", ["layer0", "layer1", "layer2"]).count("layer") == 2


def test_far_from_everything_lists_what_there_is():
    assert did_you_mean("zzz", ["data", "model"]) == "known: 'data', 'model'"
    assert did_you_mean("zzz", []) == "known: none"


def test_a_long_list_is_cut_and_the_rest_is_counted():
    text = did_you_mean("zzz", [f"a{i}" for i in range(1000)])
    assert text.count("'") == 2 * MAX_LISTED
    assert text.endswith(f"and {1000 - MAX_LISTED} more")


def test_no_name_is_suggested_twice():
    assert did_you_mean("attentoin", ["none", "attention", "attention"]) == "did you mean 'attention'?"
