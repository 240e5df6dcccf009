import optuna
import pytest

from search_task import SPACE
from sightline import limits
from sightline.errors import SightlineError
from sightline.run_config import build_config, change_values
from sightline.search.space import MAX_CHECKED_COMBINATIONS, MAX_LISTED_PROBLEMS, read_space

VALUES = {"task": "toy_search"}


def problems(space, values=VALUES):
    """The lines of the error that refuses a space."""
    with pytest.raises(SightlineError) as error:
        read_space(space, values)
    first, *lines = str(error.value).split("\n  ")
    assert first == f"a space must be valid, got {len(lines)} problem{'s' if len(lines) > 1 else ''}:"
    return lines


def sampled(space, count=40):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [space.suggest(study.ask()) for _ in range(count)]


def test_settings_are_choices_integers_numbers_and_log_ranges(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(
        "model.kind: [plain, wide]\nmodel.size: {min: 2, max: 6, step: 2}\nmodel.rate: {min: 1e-3, max: 1, log: true}\n"
    )
    settings = sampled(read_space(path, VALUES))
    assert {s["model.kind"] for s in settings} == {"plain", "wide"}
    assert {s["model.size"] for s in settings} == {2, 4, 6}
    rates = [s["model.rate"] for s in settings]
    assert all(isinstance(rate, float) and 1e-3 <= rate <= 1 for rate in rates)
    assert sum(rate < 0.03 for rate in rates) > 10


def test_integers_follow_from_the_key_not_from_how_a_range_is_written():
    space = read_space({"model.size": {"min": 1, "max": 3.0}, "model.rate": {"min": 0, "max": 1}}, VALUES)
    settings = sampled(space)
    assert {s["model.size"] for s in settings} == {1, 2, 3}
    assert any(not s["model.rate"].is_integer() for s in settings)


def test_a_setting_with_an_unmet_condition_is_left_out():
    space = read_space(SPACE, VALUES)
    assert [setting.key for setting in space.settings][-1] == "model.width"
    settings = sampled(space)
    assert {s["model.kind"] == "wide" for s in settings} == {True, False}
    assert all(("model.width" in s) == (s["model.kind"] == "wide") for s in settings)


def test_conditions_may_come_first_and_depend_on_each_other():
    space = {
        "model.rate": {"min": 0.1, "max": 0.2, "if": {"model.width": 4}},
        "model.width": {"choices": [2, 4], "if": {"model.kind": ["wide"]}},
        "model.kind": ["plain", "wide"],
    }
    keys = {tuple(settings) for settings in sampled(read_space(space, VALUES))}
    wide = ("model.kind", "model.width")
    assert keys == {("model.kind",), wide, (*wide, "model.rate")}


def test_lists_are_choices():
    space = read_space({"model.shape": [[1, 2], [3]]}, VALUES)
    assert sorted(settings["model.shape"] for settings in sampled(space, 20))[::19] == [[1, 2], [3]]


def test_a_grid_has_every_combination_once():
    described = {
        "model.size": {"min": 1, "max": 3},
        "model.kind": ["plain", "wide"],
        "model.width": SPACE["model.width"],
    }
    described["model.rate"] = {"min": 0.1, "max": 0.3, "step": 0.1}
    grid = read_space(described, VALUES).grid()
    assert len(grid) == 3 * 3 * (1 + 2)
    assert len({tuple(settings.items()) for settings in grid}) == len(grid)
    assert {settings["model.rate"] for settings in grid} == {0.1, 0.2, 0.3}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"min": 0.001, "max": 0.01, "step": 0.003}, [0.001, 0.004, 0.007, 0.01]),
        ({"min": 0, "max": 0.5, "step": 0.2}, [0, 0.2, 0.4]),  # a step that does not divide the range
    ],
)
def test_steps_have_no_rounding_errors(described, expected):
    space = read_space({"model.rate": described}, VALUES)
    assert [settings["model.rate"] for settings in space.grid()] == expected
    assert {settings["model.rate"] for settings in sampled(space)} <= set(expected)
    study = optuna.create_study()
    for settings in space.grid():
        study.enqueue_trial(settings)
        assert space.suggest(study.ask()) == settings


def test_a_grid_must_have_single_values_and_a_limit(monkeypatch):
    with pytest.raises(SightlineError, match=r"model\.rate must have single values for a grid, got a range"):
        read_space(SPACE, VALUES).grid()
    monkeypatch.setattr(limits, "MAX_SEARCH_TRIALS", 11)
    with pytest.raises(SightlineError, match="a grid must have at most 11 combinations, got more"):
        read_space({"model.size": {"min": 1, "max": 4}, "model.width": [1, 2, 4]}, VALUES).grid()


def test_all_problems_are_in_one_list():
    assert problems(
        {
            "model.sise": [1, 2],
            "model.kind": [],
            "model.rate": {"min": 1.0, "max": 0.1},
            "model.size": [1, 0, "x"],
            "model.width": {"min": 1, "max": 2, "if": {"model.knd": "wide"}},
        }
    ) == [
        "model.sise must be a known key; did you mean 'size'?; known keys are size, kind, rate, width, shape, error",
        "model.kind must have at least one choice, got []",
        "model.rate must have min below max, got 1.0 and 0.1",
        "model.size must be an integer of at least 1, got 0",
        "model.size must be an integer, got 'x'",
        "model.width must have keys of the space in `if`, got model.knd; did you mean 'model.kind'?",
    ]


@pytest.mark.parametrize(
    ("described", "problem"),
    [
        ({}, "a space must have at least one key, got none"),
        ({"out": ["a", "b"]}, "out must be the same in all trials, got it in the space; set it in the config"),
        ({"model.size": 3}, "model.size must be [a, b] or {min: a, max: b}, got 3; for a single value write [3]"),
        (
            {"model": {"size": [1, 2]}},
            "model must be [a, b] or {min: a, max: b}, got {'size': [1, 2]}; write the whole key, such as "
            "model.size: ...",
        ),
        ({"model.size": [1, 1]}, "model.size must have different choices, got 1 twice"),
        ({"model.size": {"min": 1}}, "model.size must have a number as max, got None"),
        ({"model.size": {"min": 1, "max": 2.5}}, "model.size must have an integer as max, got 2.5"),
        (
            {"model.rate": {"min": 0.1, "max": 1.0, "lgo": True}},
            "model.rate must have the keys min and max, and may have step, log and if, got 'lgo'; did you mean 'log'?",
        ),
        ({"model.rate": {"min": 0, "max": 1, "log": True}}, "model.rate must have min above 0 with log, got 0"),
        ({"model.rate": {"min": 1, "max": 2, "log": "yes"}}, "model.rate must have true or false as log, got 'yes'"),
        (
            {"model.rate": {"min": 1, "max": 2, "log": True, "step": 0.1}},
            "model.rate must have either log or a step, got both",
        ),
        ({"model.rate": {"min": 1, "max": 2, "step": 3}}, "model.rate must have a step from 0 to max - min, got 3"),
        ({"model.rate": {"min": 1, "max": float("inf")}}, "model.rate must have a number as max, got inf"),
        (
            {"model.kind": {"choices": ["plain"], "if": 3}},
            "model.kind must have another key and its values in `if`, got 3",
        ),
        (
            {"model.size": [1, 2], "model.width": {"choices": [2], "if": {"model.size": 3}}},
            "model.width must have values of model.size in `if`, got 3",
        ),
        (
            {
                "model.size": {"choices": [1], "if": {"model.width": 2}},
                "model.width": {"choices": [2], "if": {"model.size": 1}},
            },
            "conditions must not depend on each other, got a cycle in model.size, model.width",
        ),
    ],
)
def test_a_bad_setting_is_refused(described, problem):
    assert problems(described) == [problem]


def test_combinations_that_the_config_refuses_are_refused():
    values = {"task": "image_classification"}
    space = {"model.embed_dim": [32, 48], "model.num_heads": [2, 3, 5]}
    assert problems(space, values) == [
        "model: num_heads must divide embed_dim=32, got 3; or set head_dim",
        "model: num_heads must divide embed_dim=32, got 5; or set head_dim",
        "model: num_heads must divide embed_dim=48, got 5; or set head_dim",
    ]
    space["model.num_heads"] = {"choices": [2, 4], "if": {"model.embed_dim": [32]}}
    assert read_space({**space, "model.depth": {"min": 1, "max": 900}}, values)


def test_many_problems_are_counted():
    with pytest.raises(SightlineError, match="got 30 problems:") as error:
        read_space({f"model.key{i}": [1] for i in range(30)}, VALUES)
    assert str(error.value).endswith(f"\n  and {30 - MAX_LISTED_PROBLEMS} more")


def test_samples_of_a_large_space_have_every_value():
    values = {"task": "image_classification"}
    ranges = {"model.depth": {"min": 1, "max": 40}, "training.learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}}
    choices = {"model.dropout": [i / 50 for i in range(40)], "training.batch_size": [2**i for i in range(10)]}
    space = read_space(ranges | choices, values)
    samples = list(space.samples())
    assert len(samples) == MAX_CHECKED_COMBINATIONS
    for setting in space.settings:
        assert {sample[setting.key] for sample in samples} == set(setting.sample_values())
    assert {1, 40} <= {sample["model.depth"] for sample in samples}


def test_epochs_replace_the_steps_of_the_config():
    values = {"task": "toy_search", "training": {"steps": 3}}
    [sample] = read_space({"training.epochs": [2]}, values).samples()
    training = build_config(change_values(values, sample)).training
    assert (training.epochs, training.steps) == (2, None)


def test_a_space_of_the_package_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = [setting.key for setting in read_space("image_classification", {"task": "image_classification"}).settings]
    assert keys[:4] == ["model.patch_size", "model.embed_dim", "model.num_heads", "model.depth"]
    message = "space must be a YAML file or one of image_classification, got 'image_clasification'; did you mean"
    with pytest.raises(SightlineError, match=message):
        read_space("image_clasification", VALUES)
    with pytest.raises(SightlineError, match=r"space must be a YAML file, got 'space\.yaml', which is not a file"):
        read_space("space.yaml", VALUES)
    (tmp_path / "space.yaml").write_text("model.size: [1")
    with pytest.raises(SightlineError, match=r"space\.yaml must be a space in YAML, got an error"):
        read_space("space.yaml", VALUES)
