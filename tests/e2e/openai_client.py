"""A conversation with a tool, as the official client of the OpenAI protocol has it: whole and in pieces."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0, timeout=60)
model = client.models.list().data[0].id
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
QUESTION = [{"role": "developer", "content": "Help."}, {"role": "user", "content": "Weather in Paris?"}]


def whole(messages, **more):
    answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=0, **more)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    choice = answer.choices[0]
    message = choice.message
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return choice.finish_reason, message.content, message.model_extra.get("reasoning_content"), calls


def in_pieces(messages, **more):
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=TOOLS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        **more,
    )
    finish, content, reasoning, calls, usage = None, "", "", {}, None
    for part in stream:
        usage = part.usage or usage
        for choice in part.choices:
            finish = choice.finish_reason or finish
            content += choice.delta.content or ""
            reasoning += choice.delta.model_extra.get("reasoning_content") or ""
            for call in choice.delta.tool_calls or []:
                known = calls.setdefault(call.index, ["", "", ""])
                known[0] += call.id or ""
                known[1] += call.function.name or ""
                known[2] += call.function.arguments or ""
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return finish, content or None, reasoning or None, [tuple(call) for call in calls.values()]


for ask in (whole, in_pieces):
    finish, content, reasoning, calls = ask(QUESTION)
    assert (finish, content, reasoning) == ("tool_calls", "Let me look.", "I need the weather."), (finish, content, reasoning)
    assert [call[1:] for call in calls] == [("weather", '{"city":"Paris","days":2}')], calls
    call = calls[0]
    function = {"name": call[1], "arguments": call[2]}
    messages = QUESTION + [
        {
            "role": "assistant",
            "content": content,
            "reasoning_content": reasoning,
            "tool_calls": [{"id": call[0], "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call[0], "content": "sunny"},
    ]
    plain = {"chat_template_kwargs": {"enable_thinking": False}}
    finish, content, reasoning, calls = ask(messages, extra_body=plain)
    assert (finish, content, reasoning, calls) == ("stop", "It is sunny in Paris.", None, []), (finish, content)

NAMED = {"type": "function", "function": {"name": "weather"}}
for ask in (whole, in_pieces):
    for choice in ("required", NAMED):
        for thinking in (True, False):
            more = {"chat_template_kwargs": {"enable_thinking": thinking}}
            finish, content, reasoning, calls = ask(QUESTION, tool_choice=choice, extra_body=more)
            told = (finish, content, reasoning, [call[1] for call in calls])
            assert told == ("tool_calls", None, "I need the weather." if thinking else None, ["weather"]), told

for wrong, error in [
    ({"temperature": "hot"}, openai.BadRequestError),
    ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, openai.BadRequestError),
    ({"tool_choice": "required", "tools": []}, openai.BadRequestError),
    ({"model": "other"}, openai.NotFoundError),
]:
    arguments = {"model": model, "messages": QUESTION, "tools": TOOLS, **wrong}
    try:
        client.chat.completions.create(**arguments)
        raise SystemExit(f"{wrong} was accepted")
    except error as refused:
        assert refused.body["message"], refused
try:
    openai.OpenAI(base_url=sys.argv[1], api_key="wrong", max_retries=0).models.list()
    raise SystemExit("a wrong key was accepted")
except openai.AuthenticationError:
    pass

answer = client.completions.create(model=model, prompt="z", max_tokens=4, temperature=0, logprobs=1)
assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("zzzz", "length"), answer
assert len(answer.choices[0].logprobs.token_logprobs) == 4
print("the client is content")
