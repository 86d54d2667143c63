from pathlib import Path

from onyx.training.contract.metrics_csv import Metrics, Row, curve, read_rows


def row(update: int) -> Row:
    return Row(
        update=update,
        epoch=0.5,
        samples=update * 8,
        trained_tokens=1,
        loss=1 / update,
        gradient_norm=1.0,
        learning_rate=1e-3,
        tokens_per_second=2.0,
    )


def add(path: Path, new: Row) -> None:
    metrics = Metrics(path, after=new.update)
    metrics.add(new)
    metrics.close()


def test_a_resumed_attempt_drops_the_rows_that_it_writes_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = Metrics(path, after=0)
    for update in range(1, 9):
        first.add(row(update))
    first.close()
    second = Metrics(path, after=5)
    second.add(row(6))
    second.sync()
    second.close()
    rows = read_rows(path)
    assert [int(each["update"]) for each in rows] == [1, 2, 3, 4, 5, 6]
    assert float(rows[2]["loss"]) == 1 / 3


def test_an_incomplete_row_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    add(path, row(1))
    with path.open("a") as file:
        file.write("2,0.5")
    assert len(read_rows(path)) == 1
    add(path, row(2))
    assert [each["update"] for each in read_rows(path)] == ["1", "2"]


def test_a_curve_has_its_ends_and_few_points() -> None:
    rows = [{"update": str(update), "loss": str(1 / update)} for update in range(1, 1001)]
    points = curve(rows)
    assert points[0] == (1, 1.0)
    assert points[-1] == (1000, 0.001)
    assert len(points) <= 21
    assert curve([]) == []
    assert curve(rows[:1]) == [(1, 1.0)]
