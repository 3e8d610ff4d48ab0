"""The picture of a search."""

import importlib.util

import numpy as np
import pytest
from matplotlib.image import imread

from lightning_prompt.plot import draw_scores, figure_of
from lightning_prompt.scored import Scored, best_of

BASE = Scored(name="costs $5 or $x", phase="before", rollouts=40, mean=0.3, low=0.2, high=0.4)


def scored(rollouts, mean, phase="reflection", **interval):
    return Scored(name=f"c{rollouts}", phase=phase, rollouts=rollouts, mean=mean, **interval)


CANDIDATES = [
    scored(60, 0.2, low=0.1, high=0.3), scored(80, 0.5, "demonstrations"), scored(100, None),
    scored(120, 0.45), scored(140, 0.6),
]  # fmt: skip


def line(axes, label):
    (found,) = (each for each in axes.get_lines() if each.get_label() == label)
    assert found.get_drawstyle() in ("default", "steps-post")  # A step holds until the next.
    return list(map(float, found.get_xdata())), list(map(float, found.get_ydata()))


def test_the_best_so_far_climbs_and_reaches_to_where_the_budget_ended():
    axes = figure_of("run", BASE, CANDIDATES, end=(150, "150 of 150 rollouts")).axes[0]
    assert line(axes, "best so far") == (
        [40, 60, 80, 120, 140, 150],
        [0.3, 0.3, 0.5, 0.5, 0.6, 0.6],
    )
    assert line(axes, "end: 150 of 150 rollouts")[0] == [150, 150]
    assert line(axes, r"before: costs \$5 or \$x")[1] == [0.3, 0.3]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "rollouts taken (count)",
        "mean reward (no unit), 95 % interval",
    )


def test_every_scored_candidate_is_a_point_of_its_phases_own_mark_with_its_interval():
    axes = figure_of("run", BASE, CANDIDATES, end=None).axes[0]
    bars = {each.get_label(): each for each in axes.containers}
    assert set(bars) == {"reflection", "demonstrations"}
    points, _, (spread,) = bars["reflection"].lines
    assert list(points.get_xdata()) == [60, 120, 140]
    assert [list(map(float, segment[:, 1])) for segment in spread.get_segments()] == [
        [pytest.approx(0.1), pytest.approx(0.3)], [0.45, 0.45], [0.6, 0.6],
    ]  # fmt: skip
    assert points.get_marker() != bars["demonstrations"].lines[0].get_marker()


def test_a_mean_outside_of_its_interval_is_drawn_too():
    points = [scored(60, 0.8, low=0.8000000000000002, high=0.9), scored(80, 0.5, low=0.1, high=0.4)]
    (bars,) = figure_of("run", BASE, points, end=None).axes[0].containers
    (spread,) = bars.lines[2]
    ends = [[float(y) for _, y in segment] for segment in spread.get_segments()]
    assert ends == [[0.8, pytest.approx(0.9)], [pytest.approx(0.1), 0.5]]


def test_the_picture_is_written_into_the_run_folder(run_folder):
    path = draw_scores(run_folder, BASE, CANDIDATES, end=(150, "2 of 2 USD"))
    assert path == run_folder / "scores.png"
    pixels = imread(path)
    assert pixels.shape[:2] == (540, 960)
    assert np.unique(pixels).size > 10


def test_what_was_scored_is_drawn_and_nothing_where_nothing_was(run_folder):
    nothing = Scored(name="original", phase="before", rollouts=0)
    assert draw_scores(run_folder, nothing, [scored(3, None)], end=(3, "?")) is None
    assert draw_scores(run_folder, nothing, [scored(3, 0.5)], end=None) is not None


def test_without_matplotlib_there_is_no_picture(run_folder, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert draw_scores(run_folder, BASE, CANDIDATES, end=None) is None


def test_the_best_is_the_first_of_the_highest():
    first, second = scored(1, 0.5), scored(2, 0.5)
    assert best_of([scored(0, None), first, second, scored(3, 0.1)]) is first
    assert best_of([scored(0, -0.5), scored(1, None)]).rollouts == 0
    assert best_of([scored(0, None)]) is None
