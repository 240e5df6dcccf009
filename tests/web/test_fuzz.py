"""The quick part of the fuzz tests; `make soak` runs the long one."""

from web_client import WebServer


def test_generated_requests_and_damaged_files_are_answered_as_documented(tmp_path):
    import schemathesis  # takes seconds, which no other worker needs

    from web_fuzz import call_operations, send_broken_files

    with WebServer(tmp_path, "de-en") as server:
        schema = schemathesis.openapi.from_url(f"{server.client.base_url}openapi.json")
        statuses = call_operations(schema, server.client, max_examples=4)
        assert sum(statuses.values()) > 50
        assert {200, 201, 204, 404, 422} <= set(statuses)
        statuses = send_broken_files(server.client, 32)
        assert sum(statuses.values()) == 32
        assert statuses[422] > 16
