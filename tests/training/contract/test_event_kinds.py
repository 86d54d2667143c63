from typing import get_args

from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Event


def test_each_kind_has_one_constant() -> None:
    named = {value for name, value in vars(event_kinds).items() if name.isupper()}
    assert named == {*get_args(event_kinds.RankEventKind), event_kinds.STATUS}


def test_ranks_write_all_kinds_except_status() -> None:
    assert set(get_args(Event.model_fields["kind"].annotation)) == set(get_args(event_kinds.RankEventKind))
