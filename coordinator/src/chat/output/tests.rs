//! Turns as models write them, well and badly, each in every split.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::event::append;
use super::*;
use crate::chat::marker::ControlTokens;
use crate::chat::message::{Conversation, ToolCall};
use crate::chat::template::Thinking::{self, Closed, Open, Unstated};
use crate::chat::template::{RenderOptions, Template};

fn schemas() -> ToolSchemas {
    let properties = json!({
        "path": {"type": "string"},
        "text": {"type": "string"},
        "note": {"type": ["string", "null"]},
        "n": {"type": "integer"},
        "deep": {"type": "boolean"},
        "list": {"type": "array"},
    });
    ToolSchemas::from_tools(&[json!({"type": "function", "function": {
        "name": "edit", "parameters": {"type": "object", "properties": properties},
    }})])
}

/// Events of a turn in pieces, neighbours joined.
fn events(parser: &Parser, pieces: &[&str], ended: Ended) -> Vec<Event> {
    let mut parser = parser.clone();
    let mut events = Vec::new();
    for piece in pieces {
        for event in parser.push(piece) {
            append(&mut events, event);
        }
    }
    for event in parser.finish(ended) {
        append(&mut events, event);
    }
    events
}

/// One line an event, for comparing.
fn told(events: &[Event]) -> String {
    let lines = events.iter().map(|event| match event {
        Event::Reasoning(text) => format!("reasoning {text:?}"),
        Event::Content(text) => format!("content {text:?}"),
        Event::CallStart { index, name } => format!("call {index} {name}"),
        Event::CallArguments { index, fragment } => format!("arguments {index} {fragment}"),
        Event::CallEnd { index, complete: true } => format!("end {index}"),
        Event::CallEnd { index, complete: false } => format!("cut {index}"),
        Event::Finish(reason) => format!("{reason:?}"),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Checks a turn whole, in single characters and in every two pieces.
fn check(parser: &Parser, text: &str, ended: Ended, expected: &str) {
    let whole = events(parser, &[text], ended);
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(told(&whole), expected.join("\n"), "{text:?}");
    check_splits(parser, text, ended, &whole);
}

fn check_splits(parser: &Parser, text: &str, ended: Ended, whole: &[Event]) {
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(events(parser, &chars, ended), whole, "{text:?} in characters");
    for (at, _) in text.char_indices() {
        let (a, b) = text.split_at(at);
        assert_eq!(events(parser, &[a, b], ended), whole, "{a:?} + {b:?}");
    }
}

fn turn(thinking: Thinking, text: &str, expected: &str) {
    check(&Parser::new(thinking, schemas()), text, Ended::Token, expected);
}

#[test]
fn reasoning_and_content() {
    turn(Open, "why\n</think>so </b>.", "reasoning \"why\\n\" \n content \"so </b>.\" \n Stop");
    turn(Open, "</think>so", "content \"so\" \n Stop");
    turn(Open, "\n</think>\n\nso", "content \"\\n\\nso\" \n Stop");
    turn(Open, "<think>why</think>so", "reasoning \"why\" \n content \"so\" \n Stop");
    turn(Open, "  why", "reasoning \"  why\" \n Stop");
    turn(Closed, "so", "content \"so\" \n Stop");
    turn(Closed, "</think>so", "content \"so\" \n Stop");
    turn(Closed, " \n</think>\nso", "content \"\\nso\" \n Stop");
    turn(Closed, "say </think> or <think>", "content \"say </think> or <think>\" \n Stop");
    turn(Unstated, "<think>why</think>so", "reasoning \"why\" \n content \"so\" \n Stop");
    turn(Closed, "", "Stop");
    turn(Closed, " \n", "Stop");
    turn(Closed, "a <", "content \"a <\" \n Stop");
    turn(Closed, "<thin", "content \"<thin\" \n Stop");
}

#[test]
fn the_end_tag_of_a_turn_is_not_text() {
    turn(Closed, "so</assistant>", "content \"so\" \n Stop");
    turn(Closed, "so</assistant>\n", "content \"so\" \n Stop");
    turn(Closed, "</assistant>", "Stop");
    turn(Open, "why</assistant>", "reasoning \"why\" \n Stop");
    turn(Closed, "quote </assistant> here", "content \"quote </assistant> here\" \n Stop");
    turn(
        Closed,
        "<tool_call>edit</tool_call></assistant>",
        "call 0 edit \n arguments 0 {} \n end 0 \n ToolCalls",
    );
    turn(
        Closed,
        "<tool_call>edit<arg_key>path</arg_key><arg_value>a</assistant>",
        "call 0 edit \n arguments 0 {\"path\":\"a\"} \n end 0 \n ToolCalls",
    );
}

#[test]
fn calls_of_both_forms() {
    let told = r#"
        content "ok"
        call 0 edit
        arguments 0 {"path":"a.rs","n":3,"deep":true}
        end 0
        ToolCalls"#;
    turn(
        Closed,
        "ok<tool_call>edit<arg_key>path</arg_key><arg_value>a.rs</arg_value><arg_key>n</arg_key>\
         <arg_value>3</arg_value><arg_key>deep</arg_key><arg_value>true</arg_value></tool_call>",
        told,
    );
    let old = "\nok\n<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value>a.rs</arg_value>\n<arg_key>n</arg_key>\n\
               <arg_value>3</arg_value>\n<arg_key>deep</arg_key>\n<arg_value>true</arg_value>\n</tool_call>\n";
    check(&Parser::new(Closed, schemas()).padded(true), old, Ended::Token, told);
    turn(
        Closed,
        "<tool_call>\n list_dir \n</tool_call>",
        "call 0 list_dir \n arguments 0 {} \n end 0 \n ToolCalls",
    );
}

#[test]
fn the_padded_dialect_gives_its_newlines_to_the_tags() {
    let padded = |thinking| Parser::new(thinking, schemas()).padded(true);
    check(
        &padded(Open),
        "\n why\n\n</think>\nso\n</assistant>\n",
        Ended::Token,
        r#"
            reasoning " why\n"
            content "so"
            Stop"#,
    );
    check(&padded(Closed), "\n\nso\n\n", Ended::Token, "content \"\\nso\\n\" \n Stop");
    check(&padded(Closed), "\nso\n", Ended::Length, "content \"so\\n\" \n Length");
}

#[test]
fn strings_are_verbatim_and_other_types_are_decoded() {
    turn(
        Closed,
        "<tool_call>edit<arg_key>text</arg_key><arg_value>  if x:\n\t\"a\\b\" </think> <tool_call>é🌊\n\
         </arg_value><arg_key>note</arg_key><arg_value>null</arg_value><arg_key>n</arg_key><arg_value> 7 \
         </arg_value><arg_key>list</arg_key><arg_value>[1, {\"a\": 2.50}]</arg_value></tool_call>",
        r#"
            call 0 edit
            arguments 0 {"text":"  if x:\n\t\"a\\b\" </think> <tool_call>é🌊\n","note":null,"n":7,"list":[1, {"a": 2.50}]}
            end 0
            ToolCalls"#,
    );
    turn(
        Closed,
        "<tool_call>edit<arg_key>n</arg_key><arg_value>many</arg_value><arg_key>extra</arg_key>\
         <arg_value>true</arg_value></tool_call><tool_call>unknown<arg_key>a\"</arg_key><arg_value>x y</arg_value>\
         <arg_key>b</arg_key><arg_value>{\"c\":1}</arg_value></tool_call>",
        r#"
            call 0 edit
            arguments 0 {"n":"many","extra":true}
            end 0
            call 1 unknown
            arguments 1 {"a\"":"x y","b":{"c":1}}
            end 1
            ToolCalls"#,
    );
}

#[test]
fn strings_stream_as_they_arrive() {
    let mut parser = Parser::new(Closed, schemas());
    let start = parser.push("<tool_call>edit<arg_key>text</arg_key><arg_value>");
    assert_eq!(told(&start), "call 0 edit\narguments 0 {\"text\":\"");
    assert_eq!(told(&parser.push("line\n</arg")), "arguments 0 line\\n");
    assert_eq!(told(&parser.push("s><")), "arguments 0 </args>");
    assert_eq!(told(&parser.push("/arg_value>")), "arguments 0 \"");
    assert_eq!(told(&parser.push("</tool_call>")), "arguments 0 }\nend 0");
    assert_eq!(told(&parser.finish(Ended::Token)), "ToolCalls");
}

#[test]
fn a_call_ends_open_reasoning() {
    turn(
        Open,
        "why <tool_call>edit</tool_call>\n</think>\n<tool_call>edit</tool_call>",
        r#"
            reasoning "why "
            call 0 edit
            arguments 0 {}
            end 0
            call 1 edit
            arguments 1 {}
            end 1
            ToolCalls"#,
    );
    turn(
        Open,
        "why</think>\n<tool_call>edit</tool_call>\n<think>more</think>done",
        r#"
            reasoning "why"
            call 0 edit
            arguments 0 {}
            end 0
            reasoning "more"
            content "done"
            ToolCalls"#,
    );
}

#[test]
fn the_first_of_two_equal_keys_counts() {
    turn(
        Closed,
        "<tool_call>edit<arg_key>n</arg_key><arg_value>1</arg_value><arg_key> n </arg_key><arg_value>2</arg_value>\
         <arg_key>path</arg_key><arg_value>a</arg_value><arg_key>path</arg_key><arg_value>b</arg_value></tool_call>",
        "call 0 edit \n arguments 0 {\"n\":1,\"path\":\"a\"} \n end 0 \n ToolCalls",
    );
}

#[test]
fn calls_left_open_are_closed_unless_the_budget_cut_them() {
    let parser = Parser::new(Closed, schemas());
    let head = "<tool_call>edit<arg_key>n</arg_key><arg_value>1</arg_value>";
    for (tail, closed, cut) in [
        ("", "{\"n\":1}", "{\"n\":1"),
        ("<arg_key>pa", "{\"n\":1}", "{\"n\":1"),
        ("<arg_key>path</arg_key>", "{\"n\":1}", "{\"n\":1"),
        (
            "<arg_key>path</arg_key><arg_value>a.r</arg_v",
            "{\"n\":1,\"path\":\"a.r</arg_v\"}",
            "{\"n\":1,\"path\":\"a.r",
        ),
        ("<arg_key>list</arg_key><arg_value>[1, ", "{\"n\":1,\"list\":\"[1, \"}", "{\"n\":1,\"list\":"),
    ] {
        let text = format!("{head}{tail}");
        let closed = format!("call 0 edit \n arguments 0 {closed} \n end 0 \n ToolCalls");
        check(&parser, &text, Ended::Token, &closed);
        let cut = format!("call 0 edit \n arguments 0 {cut} \n cut 0 \n");
        check(&parser, &text, Ended::Length, &(cut.clone() + "Length"));
        check(&parser, &text, Ended::StopString, &(cut + "Stop"));
    }
    check(&parser, "<tool_call>ed", Ended::Length, "Length");
    check(&parser, "<tool_call>edit", Ended::Token, "call 0 edit \n arguments 0 {} \n end 0 \n ToolCalls");
    check(&parser, "<tool_call>", Ended::Token, "Stop");
    let whole = "<tool_call>edit</tool_call>";
    check(&parser, whole, Ended::Length, "call 0 edit \n arguments 0 {} \n end 0 \n ToolCalls");
    check(
        &parser,
        &format!("{whole}<tool_call>edit\n"),
        Ended::Length,
        "call 0 edit \n arguments 0 {} \n end 0 \n call 1 edit \n cut 1 \n Length",
    );
    check(&parser, "so <", Ended::Length, "content \"so <\" \n Length");
}

#[test]
fn broken_markup_loses_nothing() {
    turn(
        Closed,
        "<tool_call><tool_call>edit<tool_call>edit<arg_key>n<arg_value>1</arg_value></tool_call>",
        "call 0 edit \n arguments 0 {} \n end 0 \n call 1 edit \n arguments 1 {\"n\":1} \n end 1 \n ToolCalls",
    );
    turn(Closed, "<tool_call></tool_call> x", "content \"<tool_call></tool_call> x\" \n Stop");
    turn(
        Closed,
        "<tool_call>edit<arg_key>n</arg_key></tool_call>.",
        "call 0 edit \n arguments 0 {} \n end 0 \n content \".\" \n ToolCalls",
    );
    turn(
        Closed,
        "<tool_call>edit\n{\"n\": 1}\n</tool_call>",
        "call 0 edit \n arguments 0 {\"n\": 1} \n end 0 \n ToolCalls",
    );
    turn(
        Closed,
        "<tool_call>\n{\"name\": \"edit\",\n\"arguments\": {\"n\": 1}}\n</tool_call>",
        "call 0 edit \n arguments 0 {\"n\":1} \n end 0 \n ToolCalls",
    );
    turn(Closed, "<tool_call>{\"nam\n</tool_call>", "content \"<tool_call>{\\\"nam\\n</tool_call>\" \n Stop");
}

#[test]
fn markup_is_text_where_calls_are_ruled_out() {
    let parser = Parser::new(Open, schemas()).without_calls();
    check(
        &parser,
        "a<tool_call>b</think><tool_call>edit</tool_call>",
        Ended::Token,
        "reasoning \"a<tool_call>b\" \n content \"<tool_call>edit</tool_call>\" \n Stop",
    );
}

#[test]
fn the_whole_reply_is_the_stream_joined() {
    let mut parser = Parser::new(Open, schemas());
    let mut reply = Reply::default();
    reply.extend(parser.push("why</think>ok<tool_call>edit<arg_key>n</arg_key><arg_value>1</arg_v"));
    reply.extend(parser.push("alue></tool_call>"));
    reply.extend(parser.finish(Ended::Token));
    let call = ReplyCall { name: "edit".to_owned(), arguments: "{\"n\":1}".to_owned(), complete: true };
    let (reasoning, content) = ("why".to_owned(), "ok".to_owned());
    assert_eq!(reply, Reply { reasoning, content, calls: vec![call], finish: Some(FinishReason::ToolCalls) });
}

#[test]
fn a_rendered_turn_is_read_back_as_it_was() {
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "reasoning_content": "two\nlines", "content": "ok", "tool_calls": [
            {"function": {"name": "edit", "arguments": {"text": "  if x:\n\t\"é\"\n", "n": 3, "deep": false}}},
            {"function": {"name": "edit", "arguments": {"list": [1, {"a": null}], "path": "</think>"}}},
        ]},
    ]);
    let said = Conversation::from_json(&messages, None).unwrap();
    let asked = Conversation { messages: said.messages[..1].to_vec(), ..Conversation::default() };
    let (tight, padded) =
        (include_str!("../template/testdata/tight.jinja"), include_str!("../template/testdata/padded.jinja"));
    for source in [tight, padded] {
        let template = Template::from_source(source, Map::new(), ControlTokens::default()).unwrap();
        let mut options = RenderOptions::default().thinking(true);
        let prompt = template.render(&asked, &options).unwrap();
        options.add_generation_prompt = false;
        let whole = template.render(&said, &options).unwrap();
        let output = whole.text.strip_prefix(&prompt.text).unwrap();

        let parser = Parser::for_prompt(&prompt, schemas());
        let events = events(&parser, &[output], Ended::Token);
        check_splits(&parser, output, Ended::Token, &events);
        let reply: Reply = events.into_iter().collect();
        let calls = reply.calls.iter().map(|call| ToolCall {
            id: None,
            name: call.name.clone(),
            arguments: serde_json::from_str(&call.arguments).unwrap(),
        });
        assert_eq!(Some(reply.reasoning.clone()), said.messages[1].reasoning);
        assert_eq!(reply.content, said.messages[1].content);
        assert_eq!(calls.collect::<Vec<_>>(), said.messages[1].tool_calls);
    }
}

/// Text in which markers, whole and broken, meet everything else.
fn any_turn() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => prop::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
            "</arg_value>", "</assistant>", "edit", "path", "n", "note", "null", "1", "{", "}", "\"", "\n", " ", "é", "<",
            "</", "{\"name\":\"edit\"}", "<arg_key>text</arg_key><arg_value>", "<arg_key>n</arg_key><arg_value>",
        ]).prop_map(str::to_owned),
        1 => "[a<>/_\\\\\u{0}-\u{1f}é🌊]{0,4}",
    ];
    prop::collection::vec(part, 0..16).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn any_text_in_any_split(
        text in any_turn(),
        thinking in prop::sample::select(vec![Open, Closed, Unstated]),
        ended in prop::sample::select(vec![Ended::Token, Ended::StopString, Ended::Length]),
        padded in any::<bool>(),
        calls in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut parser = Parser::new(thinking, schemas()).padded(padded);
        if !calls {
            parser = parser.without_calls();
        }
        let whole = events(&parser, &[&text], ended);
        check_splits(&parser, &text, ended, &whole);
        let mut bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        bounds.push(text.len());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&bounds)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        prop_assert_eq!(&events(&parser, &pieces, ended), &whole);

        let finishes = whole.iter().filter(|event| matches!(event, Event::Finish(_))).count();
        prop_assert!(finishes == 1 && matches!(whole.last(), Some(Event::Finish(_))));
        let starts = whole.iter().filter_map(|event| match event {
            Event::CallStart { index, name } => Some((*index, name)),
            _ => None,
        });
        for (expected, (index, name)) in starts.enumerate() {
            prop_assert!(index == expected && !name.trim().is_empty());
        }
        let reply: Reply = whole.into_iter().collect();
        for call in &reply.calls {
            let arguments = serde_json::from_str::<Value>(&call.arguments);
            prop_assert_eq!(arguments.is_ok_and(|value| value.is_object()), call.complete, "{:?}", call);
        }
        let cut = reply.calls.iter().any(|call| !call.complete);
        let called = reply.calls.iter().any(|call| call.complete);
        let reason = match ended {
            Ended::Length if cut || !called => FinishReason::Length,
            _ if called => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        // A call cut inside its name was never told, but was cut.
        prop_assert!(reply.finish == Some(reason) || (ended == Ended::Length && reply.finish == Some(FinishReason::Length)));
    }
}
