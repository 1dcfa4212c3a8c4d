"""Directions of tracked keys: better small, or neither."""

from pfl_ops import metric_keys


def test_smaller_is_better_of_whole_names_alone():
    """Of all tracked keys; a metric of one's own that only ends in "se" or "lr" rises, as any other one."""
    costs = {key for key in metric_keys.COSTS if metric_keys.smaller_is_better(key)}
    assert costs == {*metric_keys.COSTS} - {"cost/samples_per_second"}
    falling = {key.rpartition("/")[2] for key in metric_keys.scores("test") if metric_keys.smaller_is_better(key)}
    assert falling == {"std"} and metric_keys.smaller_is_better("final/test/G/global/se")
    assert not any(map(metric_keys.smaller_is_better, ("mine/response", "mine/clr")))


def test_rates_rounds_and_numbers_of_clients_are_neutral():
    """Of all tracked keys; a loss, a spread or a cost is none of them, nor is a metric of one's own."""
    scores = {key.rpartition("/")[2] for key in metric_keys.scores("test") if metric_keys.is_neutral(key)}
    assert scores == {"clients"} and not any(map(metric_keys.is_neutral, metric_keys.COSTS))
    neutral = ("train/lr", "best/round", "cost/clients", "final/test/G/global/samples", "method/gamma/mean")
    assert all(map(metric_keys.is_neutral, neutral)) and not any(map(metric_keys.smaller_is_better, neutral))
    assert not any(map(metric_keys.is_neutral, ("train/loss", "test/G/global/se", "mine/response", "mine/clr")))
