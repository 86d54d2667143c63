from fastapi.testclient import TestClient

from tests.api.openai.helpers import create, refused


def test_events_are_newest_first_and_keep_their_ids(client: TestClient) -> None:
    job = create(client)
    for change in ("pause", "resume", "cancel"):
        client.post(f"/v1/fine_tuning/jobs/{job['id']}/{change}")
    path = f"/v1/fine_tuning/jobs/{job['id']}/events"
    everything = client.get(path).json()
    assert [event["message"] for event in everything["data"]] == [
        "The job was cancelled",
        "The job was resumed",
        "The job is paused",
        "The job was created",
    ]
    assert everything["has_more"] is False
    first = client.get(path, params={"limit": 2}).json()
    rest = client.get(path, params={"limit": 2, "after": first["data"][-1]["id"]}).json()
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert first["data"] + rest["data"] == everything["data"]
    assert refused(client.get(path, params={"after": "ftevent-x-1"})) == ("after", "invalid_value")
