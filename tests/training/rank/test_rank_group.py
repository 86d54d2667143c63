"""The ranks of an attempt."""

from onyx.training.rank.rank_group import RankReport, parse_reports


def test_reports_survive_the_vote() -> None:
    reports = [RankReport(budget=7, loss=0.1 + 0.2, peak=2**50), RankReport(budget=1, config=3, clipping=0.0)]
    assert parse_reports([number for each in reports for number in each.numbers()]) == reports
