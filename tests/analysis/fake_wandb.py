"""A small stand-in for a W&B server on the loopback, of the calls that wandb 0.31 makes to log a run and to read it back.

It tests this project's calls, not W&B's own behaviour: what a real server does with filters, limits or steps is not here.
"""

from __future__ import annotations

import io
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class FakeServer:
    """Runs by id with config, summary and history rows; `unknown` lists the operations that it had no answer to."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.unknown: list[str] = []
        handler = type("Handler", (Handler,), {"fake": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def run(self, name: str) -> dict[str, Any]:
        blank = {"config": {}, "summary": {}, "rows": [], "group": None, "state": "running", "displayName": name, "tags": []}
        return self.runs.setdefault(name, blank | {"alerts": []})

    def node(self, name: str) -> dict[str, Any]:
        """A run as GraphQL gives it, with more fields than any query asks for."""
        run = self.runs[name]
        steps = [row["_step"] for row in run["rows"]]
        project = {
            "name": "faultline",
            "entityName": "someone",
            "id": "p",
            "internalId": "1",
            "entity": {"name": "someone", "id": "e"},
        }
        return {
            "id": name,
            "name": name,
            "displayName": run["displayName"],
            "state": run["state"],
            "config": json.dumps({key: {"value": value} for key, value in run["config"].items()}),
            "summaryMetrics": json.dumps(run["summary"]),
            "systemMetrics": "{}",
            "group": run["group"],
            "jobType": "train",
            "tags": run["tags"],
            "createdAt": "2026-11-01T00:00:00Z",
            "updatedAt": "2026-11-01T00:00:00Z",
            "heartbeatAt": "2026-11-01T00:00:00Z",
            "commit": None,
            "description": None,
            "notes": None,
            "readOnly": False,
            "sweepName": None,
            "historyLineCount": len(steps),
            "lastHistoryStep": max(steps, default=-1),
            "historyKeys": {"lastStep": max(steps, default=-1), "keys": {}},
            "user": {"name": "someone", "username": "someone"},
            "projectId": "1",
            "project": project,
            "files": {"uploadUrl": None, "edges": []},
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": "[]",
            "eventsTail": "[]",
            "wandbConfig": json.dumps({"t": {}}),
        }

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The `data` of an operation."""
        viewer = {"id": "v", "entity": "someone", "username": "someone", "email": "", "admin": False, "flags": "{}"}
        viewer |= {"teams": {"edges": []}, "capabilities": [], "name": "someone", "apiKeys": {"edges": []}}
        name = variables.get("name") or variables.get("run") or variables.get("runName") or variables.get("runId")
        project = {"id": "p", "name": "faultline", "internalId": "1", "readOnly": False, "entity": {"name": "someone"}}
        if operation in ("Viewer", "ViewerServerInfo", "GetViewer", "DefaultEntity", "GetDefaultEntity"):
            return {"viewer": viewer}
        if operation == "UpsertBucket":
            run = self.run(name)
            if variables.get("config"):
                values = json.loads(variables["config"])
                run["config"] |= {key: item["value"] for key, item in values.items() if key != "_wandb"}
            run["group"] = variables.get("groupName") or run["group"]
            run["displayName"] = variables.get("displayName") or run["displayName"]
            run["tags"] = variables.get("tags") or run["tags"]
            return {"upsertBucket": {"bucket": self.node(name) | {"sweepName": None}, "inserted": True}}
        if operation == "RunResumeStatus":
            return {"model": project | {"bucket": self.node(name) if name in self.runs else None}}
        if operation == "NotifyScriptableRunAlert":
            self.run(name)["alerts"].append(variables["title"])
            return {"notifyScriptableRunAlert": {"success": True}}
        if operation == "CreateRunFiles":
            return {"createRunFiles": {"runID": name, "uploadHeaders": [], "files": []}}
        if "ParquetHistory" in operation:
            urls = [f"{self.url}/parquet/{name}"]
            return {"project": project | {"run": self.node(name) | {"parquetHistory": {"parquetUrls": urls, "liveData": []}}}}
        if operation in ("Run", "GetRun", "GetLightRun", "RunHistoryKeys", "RunState", "GetRunState") or operation.startswith(
            "Light"
        ):
            return {"project": project | {"run": self.node(name)}}
        if "Runs" in operation:
            group = (json.loads(variables.get("filters") or "{}") or {}).get("group")
            found = [self.node(run) for run in sorted(self.runs) if group is None or self.runs[run]["group"] == group]
            page = {"endCursor": "", "hasNextPage": False}
            edges = [{"node": node, "cursor": node["name"]} for node in found]
            return {
                "project": project
                | {"runCount": len(found), "runs": {"totalCount": len(found), "edges": edges, "pageInfo": page}}
            }
        self.unknown.append(operation)
        return {}

    def stream(self, name: str, body: dict[str, Any]) -> None:
        """History and summary as wandb-core sends them."""
        run = self.run(name)
        for file, content in (body.get("files") or {}).items():
            for line in content["content"]:
                if file == "wandb-history.jsonl":
                    run["rows"].append(json.loads(line))
                elif file == "wandb-summary.json":
                    run["summary"] = json.loads(line)
        if body.get("complete"):
            run["state"] = "finished" if body.get("exitcode") == 0 else "failed"

    def parquet(self, name: str) -> bytes:
        rows = self.runs[name]["rows"]
        names = list(dict.fromkeys(key for row in rows for key in row))
        table = pa.table({key: [row.get(key) for row in rows] for key in names})
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    fake: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def _reply(self, content: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for key, value in {"Content-Length": str(len(content)), "Content-Type": "application/json", **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path.endswith("/file_stream"):
            self.fake.stream(self.path.split("/")[-2], body)
            self._reply(b'{"exitcode": null, "limits": {}}')
            return
        match = re.search(r"(?:query|mutation)\s+(\w+)", body.get("query", ""))
        operation = body.get("operationName") or (match[1] if match else "")
        self._reply(json.dumps({"data": self.fake.answer(operation, body.get("variables") or {})}).encode())

    def do_GET(self) -> None:
        if not self.path.startswith("/parquet/"):
            self._reply(b"{}", 404)
            return
        content = self.fake.parquet(self.path.split("/")[-1])
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            first, last = int(wanted[1]), int(wanted[2] or len(content) - 1)
            total = len(content)
            self._reply(
                content[first : last + 1], 206, **{"Content-Range": f"bytes {first}-{last}/{total}", "Accept-Ranges": "bytes"}
            )
        else:
            self._reply(content, **{"Accept-Ranges": "bytes"})

    do_HEAD = do_GET
