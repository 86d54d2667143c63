from tests.cli.conftest import Onyx


def test_a_key_is_created_listed_and_revoked(onyx: Onyx) -> None:
    made = onyx("keys", "create", "laptop", "--owner", "ada", "--json").json
    assert made["secret"].startswith("onyx_")
    assert "secret_hash" not in made
    listed = onyx("keys", "list")
    assert "laptop" in listed.out
    assert made["secret"] not in listed.out
    assert onyx("keys", "revoke", made["id"]).status == 0
    assert onyx("keys", "list", "--json").json[0]["revoked_at"] is not None
    again = onyx("keys", "revoke", made["id"])
    assert again.status == 1
    assert "onyx keys list" in again.err


def test_only_the_secret_is_on_stdout(onyx: Onyx) -> None:
    made = onyx("keys", "create", "ci", "--admin")
    assert made.out.strip().startswith("onyx_")
    assert made.out.count("\n") == 1
    assert "admin" in made.err


def test_an_empty_name_is_refused(onyx: Onyx) -> None:
    assert onyx("keys", "create", "").status == 2
