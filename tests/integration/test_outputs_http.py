# SPDX-License-Identifier: Apache-2.0
"""Of a long output a part is shown and the whole can be read by its id: ranges, and a search by lines."""

import http.client
import json
import urllib.parse

import pytest
from boxlib import ApiError


@pytest.fixture
def shown(api, sid):
    """A command that writes a million bytes, of which a thousand are shown."""
    r = api.sh(sid, "seq 1 200000; echo oops >&2", capture_bytes=1000)
    whole = "".join(f"{i}\n" for i in range(1, 200001)).encode()
    assert r["stdout"].encode() == whole[:1000] and r["stdout_truncated_bytes"] == len(whole) - 1000
    assert r["stderr"] == "oops\n" and "stderr_id" not in r
    return sid, r["stdout_id"], whole


def read(api, sid, output, **headers):
    conn = api._conn
    conn.request("GET", f"/v1/sessions/{sid}/outputs/{output}", headers=headers)
    response = conn.getresponse()
    return response, response.read()


def test_the_whole_is_read_by_ranges(api, shown):
    sid, output, whole = shown
    response, data = read(api, sid, output)
    assert (response.status, data) == (200, whole)
    assert response.headers["Box-Produced-Bytes"] == str(len(whole))
    for text, want in (("bytes=0-9", whole[:10]), ("bytes=1000-1999", whole[1000:2000]), ("bytes=-5", whole[-5:]),
                       (f"bytes={len(whole) - 3}-", whole[-3:]), ("bytes=0-99999999999", whole),
                       (f"bytes=0-{2**64 - 1}", whole), (f"bytes=7-{2**64 - 1}", whole[7:])):
        response, data = read(api, sid, output, Range=text)
        assert (response.status, data) == (206, want), text
        first = len(whole) - len(want) if text.startswith("bytes=-") else int(text[6:].split("-")[0])
        assert response.headers["Content-Range"] == f"bytes {first}-{first + len(want) - 1}/{len(whole)}"
    assert read(api, sid, output, Range=f"bytes={len(whole)}-")[0].status == 416
    assert read(api, sid, output, Range="lines=1-2")[0].status == 200  # not understood: the whole


def search(api, sid, output, **query):
    return api.call("GET", f"/v1/sessions/{sid}/outputs/{output}/grep?{urllib.parse.urlencode(query)}")


def test_the_whole_is_searched_by_lines(api, shown):
    sid, output, whole = shown
    found = search(api, sid, output, pattern="^1234.6$")["matches"]
    assert [m["text"] for m in found] == [f"1234{i}6" for i in range(10)]
    assert [m["line"] for m in found] == [int(m["text"]) for m in found]
    assert all(whole[m["offset"]:].startswith(m["text"].encode()) for m in found)
    # A few at a time, going on where the last answer ended.
    some = search(api, sid, output, pattern="77777", literal=1, max_matches=1)
    assert [m["text"] for m in some["matches"]] == ["77777"]
    rest = search(api, sid, output, pattern="77777", literal=1, offset=some["next_offset"], line=some["next_line"])
    assert [m["text"] for m in rest["matches"]] == ["177777"] and rest["matches"][0]["line"] == 177777
    assert "next_offset" not in rest


def test_what_is_wrong_with_a_search_is_told(api, shown):
    sid, output, _ = shown
    for query in ({}, {"pattern": ""}, {"pattern": "("}, {"pattern": "x" * 2000}, {"pattern": "x", "offset": "a"}):
        with pytest.raises(ApiError) as caught:
            search(api, sid, output, **query)
        assert caught.value.status == 422, query


def test_outputs_belong_to_their_session(api, shown, session):
    sid, output, _ = shown
    other = session()
    for owner, name in ((other, output), (sid, "0" * 16), (sid, "nonsense")):
        response, body = read(api, owner, name)
        assert response.status == 404 and json.loads(body)["code"] == "not_found"
    api.rm(sid)
    assert read(api, sid, output)[0].status == 404
    assert http.client.responses[404]
