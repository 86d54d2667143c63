from onyx.cli.client import ServerSentEvent, parse


def test_comments_and_a_message_that_was_cut_off_are_skipped() -> None:
    lines = [
        ": keepalive",
        "",
        "id: 4",
        'data: {"seq":',
        "data: 4}",
        "",
        "event: done",
        'data: {"status": "succeeded"}',
        "",
        'data: {"seq": 5',
    ]
    assert list(parse(lines)) == [
        ServerSentEvent("message", {"seq": 4}, "4"),
        ServerSentEvent("done", {"status": "succeeded"}, None),
    ]
