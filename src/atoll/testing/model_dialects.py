"""The formats in which agents talk to models, seen from the model's side.

Each dialect reads a request into a ModelRequest and renders a reply: as one object, or as the
events of a stream. The shapes are those of the vendors' public documentation, reduced to what the
agents' programs read.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from atoll.testing.model_script import ModelRequest, Tool, ToolCall, Usage

Object = dict[str, Any]


class Reply(NamedTuple):
    """What a scripted model says, before it has a format."""

    id: str
    model: str
    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage | None

    @property
    def spent(self) -> Usage:
        return self.usage or Usage(0, 0, 0)

    def named_calls(self) -> list[tuple[str, ToolCall]]:
        """Each call with its id."""
        return [(f"call_{self.id}_{n}", call) for n, call in enumerate(self.calls)]


class StreamEvent(NamedTuple):
    name: str
    """The SSE event; empty: none."""
    data: Object | str


class Limit(NamedTuple):
    """An error of a quota: headers and body."""

    headers: Mapping[str, str]
    body: Object


class Dialect(ABC):
    """One format."""

    name = ""

    @abstractmethod
    def parse(self, body: Object) -> ModelRequest: ...

    @abstractmethod
    def whole(self, reply: Reply) -> Object: ...

    @abstractmethod
    def stream(self, reply: Reply) -> Iterator[StreamEvent]: ...

    @abstractmethod
    def error(self, status: int, message: str) -> Object: ...

    @abstractmethod
    def limit(self, wait_s: float, reset_at: float) -> Limit:
        """The answer 429 of a quota that is reset in `wait_s`, at `reset_at`."""


class Anthropic(Dialect):
    name = "anthropic"

    def parse(self, body: Object) -> ModelRequest:
        messages = [(m["role"], _blocks(m["content"])) for m in body.get("messages", ())]
        blocks = [(role, block) for role, content in messages for block in content]
        return ModelRequest(
            model=str(body.get("model", "")),
            tools=tuple(
                _tool(t["name"], t.get("input_schema", {}))
                for t in body.get("tools", ())
                if "name" in t
            ),
            prompts=tuple(
                b.get("text", "") for role, b in blocks if role == "user" and b["type"] == "text"
            ),
            results=tuple(
                _plain(b.get("content")) for _, b in blocks if b["type"] == "tool_result"
            ),
            replies=_runs(role == "assistant" for role, _ in messages),
            schema=_below(body, "output_config", "format", "schema")
            or _below(body, "output_format", "schema"),
            text=_all_text(body),
        )

    def whole(self, reply: Reply) -> Object:
        content: list[Object] = [{"type": "text", "text": reply.text}] if reply.text else []
        for call_id, call in reply.named_calls():
            content.append(
                {
                    "type": "tool_use",
                    "id": f"toolu_{call_id}",
                    "name": call.tool,
                    "input": call.arguments,
                }
            )
        return {
            "id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": reply.model,
            "content": content, "stop_reason": "tool_use" if reply.calls else "end_turn",
            "stop_sequence": None, "usage": self._usage(reply),
        }  # fmt: skip

    def stream(self, reply: Reply) -> Iterator[StreamEvent]:
        whole = self.whole(reply)
        started = {**whole, "content": [], "stop_reason": None}
        if reply.usage is not None:
            started["usage"] = {**whole["usage"], "output_tokens": 1}
        yield _typed("message_start", message=started)
        yield _typed("ping")
        for index, block in enumerate(whole["content"]):
            if block["type"] == "text":
                kind, key, text = "text_delta", "text", block["text"]
                empty: Object = {"type": "text", "text": ""}
            else:
                kind, key, text = "input_json_delta", "partial_json", json.dumps(block["input"])
                empty = {**block, "input": {}}
            yield _typed("content_block_start", index=index, content_block=empty)
            for part in _parts(text):
                delta = {"type": kind, key: part}
                yield _typed("content_block_delta", index=index, delta=delta)
            yield _typed("content_block_stop", index=index)
        end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield _typed("message_delta", delta=end, usage={"output_tokens": reply.spent.output_tokens})
        yield _typed("message_stop")

    def error(self, status: int, message: str) -> Object:
        kinds = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
        kind = kinds.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def limit(self, wait_s: float, reset_at: float) -> Limit:
        headers = {
            "retry-after": f"{wait_s:.0f}",
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-reset": f"{reset_at:.0f}",
        }
        return Limit(headers, self.error(429, "This request would exceed your rate limit"))

    def _usage(self, reply: Reply) -> Object:
        spent = reply.spent
        return {
            "input_tokens": spent.input_tokens - spent.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": spent.cached_tokens,
            "output_tokens": spent.output_tokens,
        }


class _OpenAI(Dialect):
    """What the two formats of OpenAI share."""

    def error(self, status: int, message: str) -> Object:
        kinds = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
        code = kinds.get(status, "server_error")
        return {"error": {"message": message, "type": code, "param": None, "code": code}}

    def limit(self, wait_s: float, reset_at: float) -> Limit:
        body = {
            "error": {
                "type": "usage_limit_reached", "message": "The usage limit has been reached",
                "plan_type": "plus", "resets_at": int(reset_at), "resets_in_seconds": int(wait_s),
            }
        }  # fmt: skip
        headers = {
            "retry-after": f"{wait_s:.0f}",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": f"{wait_s:.0f}s",
        }
        return Limit(headers, body)


class Chat(_OpenAI):
    name = "chat"

    def parse(self, body: Object) -> ModelRequest:
        messages = body.get("messages", ())
        return ModelRequest(
            model=str(body.get("model", "")),
            tools=tuple(
                _tool(t["function"]["name"], t["function"].get("parameters", {}))
                for t in body.get("tools") or ()
                if "function" in t
            ),
            prompts=tuple(_plain(m.get("content")) for m in messages if m["role"] == "user"),
            results=tuple(_plain(m.get("content")) for m in messages if m["role"] == "tool"),
            replies=_runs(m["role"] == "assistant" for m in messages if not _is_inserted(m)),
            schema=_below(body, "response_format", "json_schema", "schema"),
            text=_all_text(body),
        )

    def whole(self, reply: Reply) -> Object:
        message: Object = {"role": "assistant", "content": reply.text or None}
        if reply.calls:
            message["tool_calls"] = self._calls(reply)
        choice = {"index": 0, "message": message, "finish_reason": self._end(reply)}
        whole = {**self._head(reply, "chat.completion"), "choices": [choice]}
        if reply.usage is not None:
            whole["usage"] = self._usage(reply.usage)
        return whole

    def stream(self, reply: Reply) -> Iterator[StreamEvent]:
        head = self._head(reply, "chat.completion.chunk")

        def chunk(delta: Object, end: str | None = None) -> StreamEvent:
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            return StreamEvent("", {**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        for part in _parts(reply.text):
            yield chunk({"content": part})
        for index, call in enumerate(self._calls(reply)):
            yield chunk({"tool_calls": [{"index": index, **call}]})
        yield chunk({}, self._end(reply))
        if reply.usage is not None:
            yield StreamEvent("", {**head, "choices": [], "usage": self._usage(reply.usage)})
        yield StreamEvent("", "[DONE]")

    def _head(self, reply: Reply, kind: str) -> Object:
        return {
            "id": f"chatcmpl-{reply.id}", "object": kind, "created": 1_700_000_000,
            "model": reply.model,
        }  # fmt: skip

    def _calls(self, reply: Reply) -> list[Object]:
        return [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.tool, "arguments": _encoded(call)},
            }
            for call_id, call in reply.named_calls()
        ]

    def _end(self, reply: Reply) -> str:
        return "tool_calls" if reply.calls else "stop"

    def _usage(self, usage: Usage) -> Object:
        return {
            "prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }  # fmt: skip


class Responses(_OpenAI):
    name = "responses"

    def parse(self, body: Object) -> ModelRequest:
        given = body.get("input", ())
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        kinds = [str(item.get("type", "message")) for item in items]
        own = [
            item.get("role") == "assistant" or kind.endswith("_call")
            for item, kind in zip(items, kinds, strict=True)
            if kind != "reasoning" and not _is_inserted(item)
        ]
        return ModelRequest(
            model=str(body.get("model", "")),
            tools=tuple(self._tools(body, items)),
            prompts=tuple(_plain(i.get("content")) for i in items if i.get("role") == "user"),
            results=tuple(
                _plain(item.get("output"))
                for item, kind in zip(items, kinds, strict=True)
                if kind.endswith("_call_output")
            ),
            replies=_runs(own),
            schema=_below(body, "text", "format", "schema"),
            text=_all_text(body),
        )

    def _tools(self, body: Object, items: Iterable[Object]) -> Iterator[Tool]:
        listed = [*(body.get("tools") or ())]
        # Newer models get the list in the conversation.
        listed += [tool for item in items for tool in item.get("tools") or ()]
        for tool in listed:
            kind, name = tool.get("type"), str(tool.get("name", ""))
            if kind == "local_shell":
                yield Tool("local_shell")
            elif kind == "namespace":
                yield from self._tools(tool, ())
            elif kind in ("function", "custom"):
                free = kind == "custom"
                yield _tool(name, tool.get("parameters") or {})._replace(is_free_form=free)

    def whole(self, reply: Reply) -> Object:
        return {**self._head(reply), "status": "completed", "output": self._items(reply)} | (
            {} if reply.usage is None else {"usage": self._usage(reply.usage)}
        )

    def stream(self, reply: Reply) -> Iterator[StreamEvent]:
        for number, event in enumerate(self._events(reply)):
            assert not isinstance(event.data, str)  # noqa: S101 - all are objects
            yield event._replace(data={**event.data, "sequence_number": number})

    def _events(self, reply: Reply) -> Iterator[StreamEvent]:
        started = {**self._head(reply), "status": "in_progress", "output": []}
        yield _typed("response.created", response=started)
        yield _typed("response.in_progress", response=started)
        for index, item in enumerate(self._items(reply)):
            empty = {**item, "status": "in_progress"}
            yield _typed("response.output_item.added", output_index=index, item=empty)
            if item["type"] == "message":
                yield from self._text_events(index, item)
            yield _typed("response.output_item.done", output_index=index, item=item)
        yield _typed("response.completed", response=self.whole(reply))

    def _text_events(self, index: int, item: Object) -> Iterator[StreamEvent]:
        [part] = item["content"]
        at = {"item_id": item["id"], "output_index": index, "content_index": 0}
        yield _typed("response.content_part.added", **at, part={**part, "text": ""})
        for text in _parts(part["text"]):
            yield _typed("response.output_text.delta", **at, delta=text)
        yield _typed("response.output_text.done", **at, text=part["text"])
        yield _typed("response.content_part.done", **at, part=part)

    def _head(self, reply: Reply) -> Object:
        return {
            "id": f"resp_{reply.id}", "object": "response", "created_at": 1_700_000_000,
            "model": reply.model, "error": None, "incomplete_details": None,
        }  # fmt: skip

    def _items(self, reply: Reply) -> list[Object]:
        items: list[Object] = []
        if reply.text:
            part = {"type": "output_text", "text": reply.text, "annotations": []}
            items.append(
                {
                    "type": "message", "id": f"msg_{reply.id}", "role": "assistant",
                    "status": "completed", "content": [part],
                }
            )  # fmt: skip
        for call_id, call in reply.named_calls():
            item = {"id": f"item_{call_id}", "call_id": call_id, "status": "completed"}
            if call.tool == "local_shell":
                assert not isinstance(call.arguments, str)  # noqa: S101 - it is not free-form
                action = {"type": "exec", **call.arguments, "env": {}}
                items.append({**item, "type": "local_shell_call", "action": action})
            elif isinstance(call.arguments, str):
                items.append(
                    {**item, "type": "custom_tool_call", "name": call.tool, "input": call.arguments}
                )
            else:
                items.append(
                    {
                        **item,
                        "type": "function_call",
                        "name": call.tool,
                        "arguments": _encoded(call),
                    }
                )
        return items

    def _usage(self, usage: Usage) -> Object:
        return {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }


class Gemini(Dialect):
    """The model is in the path; `wraps` is the form of Code Assist, for logins with an account."""

    name = "gemini"

    def __init__(self, *, wraps: bool = False) -> None:
        self._wraps = wraps

    def parse(self, body: Object) -> ModelRequest:
        request = body.get("request", {}) if self._wraps else body
        contents = [
            (c.get("role", "user"), c.get("parts", ())) for c in request.get("contents", ())
        ]
        parts = [(role, part) for role, held in contents for part in held]
        declared = [
            d for tool in request.get("tools") or () for d in tool.get("functionDeclarations") or ()
        ]
        return ModelRequest(
            model=str(body.get("model", "")),
            tools=tuple(
                _tool(d["name"], d.get("parametersJsonSchema") or d.get("parameters") or {})
                for d in declared
            ),
            prompts=tuple(p["text"] for role, p in parts if role == "user" and "text" in p),
            results=tuple(
                json.dumps(p["functionResponse"].get("response"))
                for _, p in parts
                if "functionResponse" in p
            ),
            replies=_runs(role == "model" for role, _ in contents),
            schema=_below(request, "generationConfig", "responseJsonSchema")
            or _below(request, "generationConfig", "responseSchema"),
            text=_all_text(body),
        )

    def whole(self, reply: Reply) -> Object:
        parts: list[Object] = [{"text": reply.text}] if reply.text else []
        parts += [
            {"functionCall": {"name": call.tool, "args": call.arguments}} for call in reply.calls
        ]
        return self._wrapped(reply, parts, is_last=True)

    def stream(self, reply: Reply) -> Iterator[StreamEvent]:
        for text in _parts(reply.text):
            yield StreamEvent("", self._wrapped(reply, [{"text": text}], is_last=False))
        calls = self.whole(reply._replace(text=""))
        yield StreamEvent("", calls)

    def _wrapped(self, reply: Reply, parts: list[Object], *, is_last: bool) -> Object:
        candidate: Object = {"content": {"role": "model", "parts": parts}, "index": 0}
        body: Object = {"candidates": [candidate], "modelVersion": reply.model}
        if is_last:
            candidate["finishReason"] = "STOP"
            if reply.usage is not None:
                body["usageMetadata"] = {
                    "promptTokenCount": reply.usage.input_tokens,
                    "cachedContentTokenCount": reply.usage.cached_tokens,
                    "candidatesTokenCount": reply.usage.output_tokens,
                    "totalTokenCount": reply.usage.input_tokens + reply.usage.output_tokens,
                }
        return {"response": body, "traceId": reply.id} if self._wraps else body

    def error(self, status: int, message: str) -> Object:
        kinds = {401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
        return {
            "error": {"code": status, "message": message, "status": kinds.get(status, "INTERNAL")}
        }

    def limit(self, wait_s: float, reset_at: float) -> Limit:
        del reset_at
        body = self.error(429, "You exceeded your current quota")
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        body["error"]["details"] = [{"@type": kind, "retryDelay": f"{wait_s:.0f}s"}]
        return Limit({}, body)


def _typed(kind: str, **more: object) -> StreamEvent:
    return StreamEvent(kind, {"type": kind, **more})


def _parts(text: str) -> list[str]:
    """A text in at most three portions, as a stream brings it."""
    size = max(1, -(-len(text) // 3))
    return [text[at : at + size] for at in range(0, len(text), size)]


def _encoded(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def _tool(name: str, schema: Mapping[str, Any]) -> Tool:
    return Tool(name, schema.get("properties") or {}, tuple(schema.get("required") or ()))


def _blocks(content: object) -> list[Object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content) if isinstance(content, list) else []


def _plain(content: object) -> str:
    """The text of a content that may be a string, a list of blocks or an object."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_plain(block) for block in content)
    if isinstance(content, dict):
        return _plain(content.get("text") or content.get("content") or "")
    return ""


def _is_inserted(message: Object) -> bool:
    """Whether it is the message that goose puts between the text and the calls of one reply."""
    return _plain(message.get("content")).startswith("<info-msg>")


def _runs(own: Iterable[bool]) -> int:
    """How many replies there are: adjacent items of the model are one."""
    count, before = 0, False
    for is_own in own:
        count += is_own and not before
        before = is_own
    return count


def _below(value: Object, *keys: str) -> Object:
    """The object at a path of keys; empty when there is none."""
    for key in keys:
        found = value.get(key)
        value = found if isinstance(found, dict) else {}
    return value


def _all_text(value: object) -> str:
    """Every text in a request."""
    if isinstance(value, str):
        return f"{value}\n"
    if isinstance(value, dict):
        return "".join(map(_all_text, value.values()))
    return "".join(map(_all_text, value)) if isinstance(value, list) else ""
