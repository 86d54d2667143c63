from onyx.cli.client import Sent, parse


def test_messages_comments_and_a_message_that_was_cut_off() -> None:
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
        Sent("message", {"seq": 4}, "4"),
        Sent("done", {"status": "succeeded"}, None),
    ]
