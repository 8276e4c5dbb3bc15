"""Tool calls, offered tools, thoughts, system prompts and parts: read, refused, or left out by request."""

import json

import pytest

from executor.prompts.chat_template import messages_of, rendered
from executor.prompts.conversation_forms import conversation_of
from executor.prompts.message_parts import Report
from executor.prompts.prompt_files import encode, encoded, read_prompts
from executor.train.self_distill import Writing, _prompts, before_tools
from executor.train.token_rows import Text, read_texts
from executor.train.token_rows import encode as encode_rows
from tests.executor.train.test_token_rows import CHATML, byte_tokenizer, learnt
from treeopt.errors import ExecutorError

# As Qwen's: tools in front, calls as JSON, thoughts of the last answer alone.
QWEN = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROME = {"name": "weather", "arguments": {"city": "Rome"}}
CALL = {"type": "function", "function": ROME}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
USER, ANSWER = {"role": "user", "content": "Rome?"}, {"role": "assistant", "content": "22 degrees"}


def conversation(record, *leave_out):
    return conversation_of(record, "r", Report(frozenset(leave_out)))


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def called(call):
    """A conversation with a call in any spelling."""
    said = call if "role" in call else {"role": "assistant", "content": None, **call}
    return {"messages": [USER, said, {"role": "tool", "content": "22"}, ANSWER]}


SPELLINGS = {
    "openai": {"tool_calls": [{"id": "c", "type": "function", "function": ROME | {"arguments": '{"city": "Rome"}'}}]},
    "objects": {"tool_calls": [CALL]},
    "bare": {"tool_calls": [ROME]},
    "text": {"tool_calls": json.dumps([CALL])},
    "old": {"function_call": ROME | {"arguments": '{"city": "Rome"}'}},
    "parameters": {"tool_calls": [{"name": "weather", "parameters": {"city": "Rome"}}]},
    "anthropic": {"role": "assistant", "content": [{"type": "tool_use", "name": "weather", "input": {"city": "Rome"}}]},
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_call_is_the_same_in_every_spelling(name):
    turns = conversation(called(SPELLINGS[name]))[0]
    assert [turn[:2] for turn in turns] == [
        ("user", "Rome?"),
        ("assistant", ""),
        ("tool", "22"),
        ("assistant", "22 degrees"),
    ]
    (call,) = messages_of(turns)[1]["tool_calls"]
    assert {key: value for key, value in call.items() if key != "id"} == CALL


@pytest.mark.parametrize("role", ["function_call", "tool_call"])
@pytest.mark.parametrize("answers", ["observation", "function", "tool"])
def test_calls_of_sharegpt(role, answers):
    said = [
        {"from": "human", "value": "Rome?"},
        {"from": role, "value": json.dumps(ROME)},
        {"from": answers, "value": "22"},
        {"from": "gpt", "value": "22 degrees"},
    ]
    turns = conversation({"conversations": said})[0]
    assert messages_of(turns)[1:3] == [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "22"},
    ]


@pytest.mark.parametrize(
    "tools",
    [
        {"tools": [WEATHER]},
        {"tools": json.dumps([WEATHER])},
        {"functions": [WEATHER["function"]]},
        {"tools": [WEATHER["function"]]},
        {"tools": [json.dumps(WEATHER)]},
    ],
)
def test_offered_tools_are_the_same_in_every_spelling(tools):
    found = conversation({"messages": [USER, ANSWER], **tools})
    assert json.loads(found[1]) == {"tools": [WEATHER]}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_reach_the_template_by_the_name_it_knows(name):
    found = conversation({"messages": [USER, ANSWER | {name: "It is warm."}]})
    text = rendered(byte_tokenizer(QWEN), messages_of(found[0]), "r")
    assert "<think>It is warm.</think>22 degrees<|im_end|>" in text
    assert conversation({"messages": [USER, ANSWER | {name: "It is warm."}]}, "thoughts")[0][1] == (
        "assistant",
        "22 degrees",
    )


@pytest.mark.parametrize("answer", [{"c": 22}, 22, ["a", "b"], [], [{"type": "capital", "name": "Rome"}]])
def test_what_a_tool_answers_may_be_any_json(answer):
    said = called({"tool_calls": [CALL]})
    said["messages"][2]["content"] = answer
    assert conversation(said)[0][2] == ("tool", json.dumps(answer))


def test_what_a_tool_answers_may_be_parts():
    said = called({"tool_calls": [CALL]})
    for parts in ([{"type": "text", "text": "22"}], [{"text": "22"}], [{"type": "input_text", "text": "22"}]):
        said["messages"][2]["content"] = parts
        assert conversation(said)[0][2] == ("tool", "22")
    for kind in ("image_url", "input_image", "tool_result"):
        said["messages"][2]["content"] = [{"type": kind}]
        with pytest.raises(ExecutorError, match=f"type '{kind}'.*--leave-out"):
            conversation(said)


def test_thoughts_in_parts():
    parts = [{"type": "thinking", "thinking": "It is warm."}, {"type": "text", "text": "22"}]
    turns = conversation({"messages": [USER, {"role": "assistant", "content": parts}]})[0]
    assert messages_of(turns)[1] == {"role": "assistant", "content": "22", "reasoning_content": "It is warm."}


def test_system_of_the_record_opens_the_conversation():
    said = {"conversations": [{"from": "human", "value": "Hi"}]}
    for key in ("system", "system_prompt"):
        assert conversation(said | {key: "Latin."})[0] == (("system", "Latin."), ("user", "Hi"))
        assert conversation(said | {key: ""})[0] == (("user", "Hi"),)
        assert conversation(said | {key: "Latin."}, "system")[0] == (("user", "Hi"),)
    opened = {"messages": [{"role": "system", "content": "Latin."}, USER]}
    assert conversation(opened | {"system": "Latin."}) == conversation(opened)
    with pytest.raises(ExecutorError, match="`system` differs from the first turn"):
        conversation(opened | {"system": "Greek."})


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "input_text", "text": "Ro"}, {"type": "output_text", "text": "me?"}],
        ["Ro", "me?"],
        [{"text": "Rome?"}],
        "Rome?",
    ],
)
def test_parts_of_text_are_joined(content):
    assert conversation({"messages": [{"role": "user", "content": content}]})[0] == (("user", "Rome?"),)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "type 'image_url'.*--leave-out"),
        (called({"tool_calls": [{"function": {}}]}), r"tool_calls\[0\] must be a tool call with `name`"),
        ({"messages": [USER], "tools": [{}]}, r"tools\[0\] must be a function with a `name`"),
        ({"messages": [ANSWER | {"thinking": "a", "reasoning": "b"}]}, "`reasoning` and `thinking` differ"),
        ({"messages": [{"role": "user"}]}, "must be an object with `from` and `value` or `role` and `content`"),
    ],
)
def test_what_cannot_be_read_is_named_and_may_be_skipped(tmp_path, record, message):
    with pytest.raises(ExecutorError, match=message):
        conversation(record)
    path = write(tmp_path / "a.jsonl", {"messages": [USER, ANSWER]}, record)
    for read in (lambda report: read_texts([path], report), lambda report: read_prompts(path, report)):
        report = Report(frozenset({"unreadable"}))
        assert len(read(report)) == report.records == 1
        assert [f"{path}, line 2" in reason for reason in report.skipped] == [True]
        assert report.remarks[0].startswith("data: 1 record skipped: ")


def test_the_answers_of_a_conversation_with_calls_are_learnt():
    found = conversation(called({"tool_calls": [CALL]}) | {"tools": [WEATHER]})
    whole, said = learnt(byte_tokenizer(QWEN), Text("r", turns=found[0], extras=found[1]))
    assert whole.startswith('<|im_start|>system\n{"type": "function"')
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call><|im_end|>'
    assert said == f"{call}|22 degrees<|im_end|>"


def test_calls_of_an_answer_whose_thoughts_the_template_drops_later_are_learnt():
    turns = conversation(
        {
            "messages": [
                USER,
                {"role": "assistant", "content": "", "thinking": "Ask.", "tool_calls": [CALL]},
                {"role": "tool", "content": "22"},
                ANSWER,
                {"role": "user", "content": "Oslo?"},
                {"role": "assistant", "content": "5"},
            ]
        }
    )[0]
    whole, said = learnt(byte_tokenizer(QWEN), Text("r", turns=turns))
    assert "Ask." not in whole
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call><|im_end|>'
    assert said == f"{call}|22 degrees<|im_end|>|5<|im_end|>"


def test_thoughts_are_learnt_and_turns_of_weight_0_are_not():
    turns = conversation({"messages": [USER, ANSWER | {"weight": 0}, USER, ANSWER | {"thinking": "Warm."}]})[0]
    assert learnt(byte_tokenizer(QWEN), Text("r", turns=turns))[1] == "<think>Warm.</think>22 degrees<|im_end|>"
    assert learnt(byte_tokenizer(None), Text("r", turns=turns[:2]))[1] == ""


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": [USER, ANSWER], "tools": [WEATHER]}, "leaves out `tools`; --leave-out tools"),
        (called({"tool_calls": [CALL]}), "leaves out the tool call or answer of turn 1; --leave-out unreadable"),
        ({"messages": [USER, ANSWER | {"thinking": "Warm."}]}, "thoughts of turn 1; --leave-out thoughts"),
    ],
)
def test_a_template_that_leaves_out_a_part_is_refused(tmp_path, record, message):
    (text,) = read_texts([write(tmp_path / "a.jsonl", record)])
    with pytest.raises(ExecutorError, match=message):
        encode_rows(byte_tokenizer(CHATML), [text])
    with pytest.raises(ExecutorError, match="no chat template, which"):
        encode_rows(byte_tokenizer(None), [text])
    report = Report(frozenset({"unreadable"}))
    assert encode_rows(byte_tokenizer(CHATML), [text], report) == []
    assert len(report.skipped) == 1


def test_prompts_end_with_what_a_tool_answers(tmp_path):
    path = write(tmp_path / "p.jsonl", called({"tool_calls": [CALL]}) | {"tools": [WEATHER]})
    (prompt,) = read_prompts(path)
    tokenizer = byte_tokenizer(QWEN)
    text = tokenizer.decode(encode(tokenizer, [prompt])[0])
    assert text.endswith("<|im_start|>tool\n22<|im_end|>\n<|im_start|>assistant\n")
    assert '"name": "weather"' in text.split("<|im_end|>")[0]


def test_arguments_of_the_template_are_those_of_the_record(tmp_path):
    template = CHATML + "{% if enable_thinking is false %}<think></think>{% endif %}"
    record = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False, "tokenize": True}}
    (prompt,) = read_prompts(write(tmp_path / "p.jsonl", record))
    tokenizer = byte_tokenizer(template)
    assert tokenizer.decode(encode(tokenizer, [prompt])[0]).endswith("<think></think>")


def test_prompts_that_the_template_refuses_may_be_skipped(tmp_path):
    path = write(tmp_path / "p.jsonl", {"messages": [USER]}, called({"tool_calls": [CALL]}), {"text": "t"})
    report = Report(frozenset({"unreadable"}))
    kept = encoded(byte_tokenizer(CHATML), read_prompts(path), report)
    assert [prompt.where for prompt, _ in kept] == [f"{path}, line 1", f"{path}, line 3"]
    assert len(report.skipped) == 1


def test_data_and_prompts_read_the_same_turns(tmp_path):
    record = called({"tool_calls": [CALL]}) | {"tools": [WEATHER], "system": "Latin."}
    path = write(tmp_path / "a.jsonl", record)
    (text,), (prompt,) = read_texts([path]), read_prompts(path)
    assert text.turns[:-1] == prompt.turns
    assert text.extras == prompt.extras != ""


def test_self_distillation_stops_before_the_first_call():
    found = conversation(called({"tool_calls": [CALL]}))
    assert before_tools(found[0]) == found[0][:1]
    (asked,) = _prompts(byte_tokenizer(QWEN), Text("r", turns=found[0], extras='{"tools": []}'), Writing())
    assert (asked.turns, asked.extras) == ((("user", "Rome?"),), '{"tools": []}')


def test_what_is_left_out_is_counted(tmp_path):
    record = {"messages": [USER, ANSWER | {"thinking": "a"}], "tools": [WEATHER], "system": "s"}
    report = Report(frozenset({"tools", "thoughts", "system"}))
    read_texts([write(tmp_path / "a.jsonl", record, record)], report)
    assert report.left_out == {"tools": 2, "thoughts": 2, "system": 2}
    assert "data: the tools that a record offers left out of 2 records" in report.remarks
