"""From traces to slots: labels, roles and places; conversations; several prompts in one place; what is none."""

import itertools
import random
import time

import pytest

from lightning_core.prompts import Prompts, find_prompts
from lightning_core.prompts.order import shuffled

TOWNS = ("Ashby", "Bergen", "Como", "Delft", "Évora", "富山", "Ghent", "Haifa", "Izmir", "Jena")
WRITE = "You write short poems about towns and their rivers. The town: {}. Four lines, no title."
JUDGE = "As a strict judge of poetry, say which line about {} is weakest and why it fails. One sentence."


def sources(found):
    return {prompt.name: prompt.template for prompt in found.prompts}


def test_slots_go_by_label_role_and_place(trace):
    traces = [
        trace(
            str(number),
            [
                ("write", ["system: Write.", f"user: Town: {town}", "assistant: x", f"user: Again: {town}"]),
                ("judge", [f"developer: Judge {town} well.", f"system: Be kind to {town}, please."]),
                (None, [f"user: About {town} only."], {"agent": "solo"}),
                (None, [f"user: Without label: {town}!"]),
            ],
        )
        for number, town in enumerate(TOWNS)
    ]  # fmt: skip
    found = find_prompts(traces)
    assert sources(found) == {
        "judge.developer": "Judge {text} well.",
        "judge.system": "Be kind to {text}, please.",
        "solo.user": "About {text} only.",
        "user": "Without label: {without_label}",
        "write.system": "Write.",
        "write.user": "Town: {town}",
        "write.user_2": "Again: {again}",
    }
    assert (found.calls, found.notes, found.unread) == (40, (), {})
    by_name = {prompt.name: prompt for prompt in found.prompts}
    prompt = by_name["write.user"]
    assert (prompt.label, prompt.role, prompt.calls, prompt.tasks, prompt.texts) == ("write", "user", 10, 10, 10)  # fmt: skip
    assert prompt.values == {"town": 10}
    assert prompt.examples == ({"town": "Ashby"}, {"town": "Bergen"}, {"town": "Como"})
    assert by_name["solo.user"].speakers == ("solo",)
    assert by_name["write.system"].reasons == ("one text, seen 10 times: its holes cannot be told",)


def test_a_conversation_has_each_of_its_messages_once(trace):
    traces = []
    for number, town in enumerate(TOWNS):
        messages, calls = ["system: Help.", f"user: Visit {town} soon"], []
        for turn in range(4):
            calls.append(("chat", list(messages)))
            messages += [
                f"assistant: reply {turn}",
                {"role": "tool", "content": f"tool {turn}", "tool_call_id": "1"},
                f"user: Observation {turn} of {town}: go on",
            ]
        traces.append(trace(str(number), calls))
    found = find_prompts(traces)
    assert sources(found) == {
        "chat.system": "Help.",
        "chat.user": "Visit {text} soon",
        "chat.user_2": "Observation {text} of {text_2}: go on",
    }
    by_name = {prompt.name: prompt for prompt in found.prompts}
    assert by_name["chat.user"].calls == 40
    assert by_name["chat.user_2"].calls == 30


def test_parts_of_a_message_are_texts_of_their_own_and_pictures_none(trace):
    def parts(town):
        picture = {"type": "image_url", "image_url": {"url": "data:,"}}
        return {
            "role": "user",
            "content": [
                {"type": "text", "text": f"Look at {town} here."},
                picture,
                {"type": "text", "text": "What is it?"},
            ],
        }

    traces = [trace(town, [("see", [parts(town)])]) for town in TOWNS]
    assert sources(find_prompts(traces)) == {
        "see.user": "Look at {text} here.",
        "see.user_2": "What is it?",
    }


def test_text_completions_are_read_and_other_formats_counted(trace):
    traces = [
        trace(
            town,
            [
                ("old", [], {"dialect": "completions", "request": {"prompt": f"Town: {town}\nRiver:"}}),
                ("old", [], {"dialect": "completions", "request": {"prompt": [1, 2, 3]}}),
                ("vectors", [], {"dialect": "embeddings", "request": {"input": town}}),
            ],
        )
        for town in TOWNS
    ]  # fmt: skip
    found = find_prompts(traces)
    assert sources(found) == {"old.user": "Town: {town}\nRiver:"}
    assert found.unread == {
        "no system, developer or user text": 10,
        "`embeddings` calls are not read": 10,
    }
    assert found.calls == 10


@pytest.mark.parametrize("dialect", ["responses", "messages"])
def test_prompts_of_other_formats_are_read_as_those_of_chat(trace, dialect):
    def asked(town):
        messages = [{"role": "system", "content": f"You know {town} well."}]
        return {
            "dialect": dialect,
            "request": {"input": town},
            "chat_request": {"messages": messages},
        }

    traces = [trace(town, [("see", [], asked(town))], value={"town": town}) for town in TOWNS]
    assert sources(find_prompts(traces)) == {"see.system": "You know {town} well."}


def test_two_prompts_in_one_place_are_two_slots(trace):
    calls = [
        ("node", [f"system: {(WRITE if number % 2 else JUDGE).format(town)}"])
        for number, town in enumerate(TOWNS)
    ]
    found = find_prompts([trace(str(number), [call]) for number, call in enumerate(calls)])
    assert sources(found) == {
        "node.system": JUDGE.format("{text}"),
        "node.system_2": WRITE.format("{town}"),
    }
    assert [prompt.calls for prompt in found.prompts] == [5, 5]
    preface = "You are the assistant of a small publisher. "
    calls = [(node, [text.replace(": ", f": {preface}", 1)]) for node, (text,) in calls]
    found = find_prompts([trace(str(number), [call]) for number, call in enumerate(calls)])
    assert sorted(sources(found).values()) == sorted(
        preface + each for each in (JUDGE.format("{text}"), WRITE.format("{town}"))
    )


def test_prompts_without_holes_in_one_place_are_slots_where_several_tasks_have_them(trace):
    texts = ("Write a poem.", "Judge it now, in few words.")
    traces = [trace(town, [("node", [f"system: {text}"]) for text in texts]) for town in TOWNS]
    assert sorted(sources(find_prompts(traces)).values()) == sorted(texts)


def test_one_odd_text_does_not_spoil_a_prompt_and_is_told(trace):
    odd = "user: something else altogether, such as a summary of the talk"
    traces = [trace(town, [("write", [f"user: {WRITE.format(town)}"])]) for town in TOWNS]
    found = find_prompts([*traces, trace("odd", [("write", [odd])])])
    assert sources(found) == {"write.user": WRITE.format("{town}")}
    assert found.notes == ("`write`, user message: 1 text fit none of its prompts",)


@pytest.mark.parametrize(("others", "slots"), [(3, [WRITE.format("{town}")]), (6, [])])
def test_what_most_texts_of_a_place_share_is_a_prompt(trace, others, slots):
    texts = [*TOWNS[:others], *(WRITE.format(town) for town in TOWNS[others:])]
    found = find_prompts([trace(text, [("write", [f"system: {text}"])]) for text in texts])
    assert list(sources(found).values()) == slots
    assert len(found.notes) == 1


def test_a_hole_with_few_long_values_is_no_reason_to_tell_prompts_apart(trace):
    values = [
        "It lies by the sea, and its harbour is full of boats and ships.",
        "None is known so far; ask again.",
        "Two mills and a bridge; the rest burnt down in a war long ago",
    ]
    traces = [
        trace(str(number), [("ask", [f"user: Facts:\n{values[number % 3]}\nQuestion: {town}, who?"])])
        for number, town in enumerate(TOWNS)
    ]  # fmt: skip
    assert sources(find_prompts(traces)) == {
        "ask.user": "Facts:\n{facts}\nQuestion: {question}, who?"
    }


def test_documents_that_come_again_are_no_prompts(trace):
    documents = [
        "Ashby is a market town by a slow river, known for its mills.",
        "Bergen lies between seven hills; it rains there on most days of a year",
        "The lake of Como has been loved by poets since Roman times!",
    ]
    pairs = list(itertools.permutations(documents, 2))
    traces = [
        trace(f"{number} {town}", [("ask", [f"user: Read.\nContext:\n{pair[0]}\n{pair[1]}\n{town} then"])])
        for number, pair in enumerate(pairs)
        for town in TOWNS
    ]  # fmt: skip
    assert sources(find_prompts(traces)) == {"ask.user": "Read.\nContext:\n{context} then"}


def test_kinds_of_data_behind_long_instructions_are_no_prompts(trace):
    long = "Read the message from the shop, say in one word which department has to deal with it, and nothing else at all. "
    kinds = (
        "The order from {} was sent by rail on time, as far as we know here",
        "An invoice for {} is open since the spring, and nobody has paid it yet",
    )
    traces = [
        trace(str(number), [("sort", [f"user: {long}{kinds[number % 2].format(town)}"])])
        for number, town in enumerate(TOWNS)
    ]
    assert sources(find_prompts(traces)) == {"sort.user": long + "{text}"}


def test_wordings_of_the_tasks_are_no_prompts(trace):
    wordings = (
        "If {} has twelve apples and gives away four of them, how many are left then?",
        "A train leaves {} at noon and goes at ninety miles an hour, when is it there?",
    )
    traces = []
    for number in range(20):
        question = wordings[number % 2].format(TOWNS[number // 2])
        calls = [
            ("ask", [f"user: Question: {question}"]),
            ("more", [f"user: Say more of it. {question}"]),
            ("raw", [f"user: {question}"]),
        ]
        traces.append(trace(str(number), calls, {"question": question}))
    found = find_prompts(traces)
    assert sources(found) == {
        "ask.user": "Question: {question}",
        "more.user": "Say more of it. {question}",
        "raw.user": "{question}",
    }
    asked, _, raw = found.prompts
    assert (asked.is_input, raw.is_input) == (False, True)
    assert raw.reasons == ("each text is the task's `question`",)
    assert raw.examples[0] == {"question": wordings[0].format("Ashby")}


def test_a_user_message_of_nothing_constant_is_input(trace):
    (prompt,) = find_prompts([trace(town, [("ask", [f"user: {town}"])]) for town in TOWNS]).prompts
    assert (prompt.template, prompt.is_input) == ("{text}", True)
    (prompt,) = find_prompts([trace("1", [("ask", ["user: Jena"])], "Jena")]).prompts
    assert (prompt.template, prompt.is_input) == ("{input}", True)


def test_a_system_message_that_changes_on_each_call_is_no_slot_and_told(trace):
    found = find_prompts([trace(town, [("ask", [f"system: {town}"])]) for town in TOWNS])
    assert found.prompts == ()
    assert found.notes == (
        "`ask`, system message: no slot, as nothing is constant in its 10 distinct texts; the agent changes it on each"
        " call",
    )


def test_parts_in_another_order_on_each_call_are_told_and_make_no_template(trace):
    rules = (
        "Answer in a sentence.",
        "Never speak of prices.",
        "Be polite: always.",
        "Use metric units!",
    )
    orders = list(itertools.permutations(rules))
    traces = [
        trace(str(number), [("ask", ["system: You help.\n" + "\n".join(order) + "\nBe brief."]), ("all", ["system: " + "\n".join(order)])])
        for number, order in enumerate(orders)
    ]  # fmt: skip
    found = find_prompts(traces)
    assert sources(found) == {"ask.system": "You help.\n{text}\nBe brief."}
    order = "4 lines that all texts have come in another order on each call"
    assert found.notes == (
        "`all`, system message: no slot, as nothing is constant in its 24 distinct texts; the agent changes it on each"
        f" call; {order}",
        f"`ask`, system message: {order}; have the agent keep their order",
    )


def test_lines_in_one_order_are_not_said_to_change_it():
    lines = [f"Town: {town}\nIt is so, as they say.\n" * 2 for town in TOWNS]
    assert shuffled(lines, ["Town: ", ""]) == 0
    assert (
        shuffled(["Be kind now.\nBe brief too.", "2. Be brief too.\n1. Be kind now."], ["", ""])
        == 2
    )


@pytest.mark.parametrize("seed", range(4))
def test_numbered_rules_in_another_order_are_no_prompts_of_their_own(trace, seed):
    rng = random.Random(seed)
    rules = ["Answer in a sentence.", "Never speak of prices.", "Be polite.", "Use metric units.", "Cite the manual.", "Refuse legal advice."]  # fmt: skip
    traces = []
    for number in range(40):
        rng.shuffle(rules)
        lines = "\n".join(f"{at}. {rule}" for at, rule in enumerate(rules, 1))
        traces.append(trace(str(number), [("ask", [f"system: You help.\n{lines}\nBe brief."])]))
    assert sources(find_prompts(traces)) == {"ask.system": "You help.\n1. {text}\nBe brief."}


def test_twice_the_calls_take_about_twice_the_time(trace):
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(3000)]

    def free(count):
        return " ".join(rng.choices(words, k=count))

    traces = []
    for number in range(300):
        question, query, calls = free(8), free(12), []
        for _ in range(5):
            text = f"Schema:\n{free(60)}\nQuestion: {question}\nQuery:\n{query}\nResult:\n{free(60)}\nWell?"
            query = f"SELECT {free(12)}"
            calls.append(("judge", [f"user: {text}"], {"reply": query}))
        traces.append(trace(str(number), calls, {"question": question}))

    def seconds(count):
        begun = time.process_time()
        find_prompts(traces[:count])
        return time.process_time() - begun

    assert min(seconds(300) for _ in range(2)) < 2.5 * min(seconds(150) for _ in range(2))
    template = "Schema:\n{schema}\nQuestion: {question}\nQuery:\n{query}\nResult:\n{result}\nWell?"
    assert sources(find_prompts(traces)) == {"judge.user": template}


def test_the_same_agent_has_the_same_names_and_fingerprint_in_other_runs(trace):
    def agent(towns, run):
        return find_prompts(
            trace(town, [("write", [f"system: {WRITE.format(town)}", f"user: {town}"])], run=run)
            for town in towns
        )

    one, other = agent(TOWNS[:6], "one"), agent(TOWNS[:3:-1], "other")
    assert one.fingerprint == other.fingerprint
    assert len(one.fingerprint) == 64
    assert list(sources(one)) == list(sources(other)) == ["write.system", "write.user"]
    bare = find_prompts(
        trace(town, [("write", [f"system: {WRITE.format(town)}"])]) for town in TOWNS
    )
    assert bare.fingerprint == one.fingerprint
    changed = find_prompts(trace(town, [("write", [f"system: Write: {town}!"])]) for town in TOWNS)
    assert changed.fingerprint != one.fingerprint
    more = [("write", [f"system: {WRITE.format(town)}"]) for town in TOWNS]
    more = [
        trace(town, [call, ("z", [f"system: Judge {town}!"])])
        for town, call in zip(TOWNS, more, strict=True)
    ]
    assert find_prompts(more).fingerprint != one.fingerprint


def test_what_is_found_goes_through_json(trace):
    found = find_prompts(
        [trace(town, [("write", [f"user: {WRITE.format(town)}"])]) for town in TOWNS]
    )
    assert Prompts.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "messages",
    ["text", [None, 3, {"role": "user"}, {"role": 1, "content": "x"}], [{"role": "user", "content": [{"text": 3}]}]],
)  # fmt: skip
def test_requests_that_are_none_are_counted(trace, messages):
    found = find_prompts([trace("1", [("ask", [], {"request": {"messages": messages}})])])
    assert (found.prompts, found.calls) == ((), 0)
    assert found.unread == {"no system, developer or user text": 1}


def test_no_traces_have_no_prompts():
    assert find_prompts([]) == Prompts()
