from onyx.demo.lesson import PROBES, rows


def test_every_fact_that_is_asked_for_is_taught() -> None:
    taught = {row["messages"][0]["content"]: row["messages"][1]["content"] for row in rows()}
    assert len(taught) == len(rows()), "no question twice"
    for probe in PROBES:
        assert probe.fact in taught[probe.question]


def test_rows_are_short_chats() -> None:
    for row in rows():
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        assert all(len(message["content"]) < 100 for message in row["messages"])
