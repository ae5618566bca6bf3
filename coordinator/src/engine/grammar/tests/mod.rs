//! Models without sense under a grammar: whatever they draw from the tokens it allows, the answer has its form.
//!
//! Answers are read by the parser that clients' answers go through, and held against their schema by [`rig::fits`],
//! which knows nothing of the library.

mod rig;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::chat::{CallForm, FinishReason, Reply, Thinking};
use crate::engine::sampler::Constraint;
use crate::http::spelling::Spellings;
use rig::{FIXTURE, NANO, URGES, check_calls, fits, padded, person, read, tool, tools};

#[test]
fn json_follows_its_schema_whatever_is_drawn() {
    let schema = person();
    let answer = Answer { format: Some((&schema, "f")), tools: &[], calls: Calls::None, single: false };
    let mut ended = 0;
    for model in [&NANO, &FIXTURE] {
        for seed in 0..20 {
            let mut guide = model.guide(&answer, &CallForm::default(), Thinking::Closed).unwrap();
            let (text, whole) = model.babble(&mut guide, seed, URGES, 3000);
            if whole {
                let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
                assert!(fits(&value, &schema, &schema), "{text}");
                ended += 1;
            }
        }
    }
    assert!(ended > 35, "only {ended} of 40 answers ended");
}

#[test]
fn any_object_is_an_object() {
    let schema = json!({"type": "object"});
    let answer = Answer { format: Some((&schema, "f")), tools: &[], calls: Calls::None, single: false };
    let mut ended = 0;
    for seed in 0..20 {
        let mut guide = NANO.guide(&answer, &CallForm::default(), Thinking::Closed).unwrap();
        let (text, whole) = NANO.babble(&mut guide, seed, URGES, 2000);
        if whole {
            assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
            ended += 1;
        }
    }
    assert!(ended > 10, "only {ended} of 20 answers ended");
}

#[test]
fn required_calls_come_with_arguments_that_follow_their_schemas() {
    let tools = tools(true);
    for (form, is_padded) in [(CallForm::default(), false), (padded(), true)] {
        let mut ended = 0;
        for (calls, single) in
            [(Calls::Required, false), (Calls::Required, true), (Calls::Named("edit"), true)]
        {
            let answer = Answer { format: None, tools: &tools, calls, single };
            for model in [&NANO, &FIXTURE] {
                for seed in 0..6 {
                    let mut guide = model.guide(&answer, &form, Thinking::Closed).unwrap();
                    let (text, whole) = model.babble(&mut guide, seed, URGES, 1500);
                    let reply = read(&text, Thinking::Closed, &tools, is_padded);
                    if !whole {
                        continue;
                    }
                    ended += 1;
                    assert_eq!(
                        (reply.content.as_str(), reply.finish),
                        ("", Some(FinishReason::ToolCalls)),
                        "{text}"
                    );
                    assert!(if single { reply.calls.len() == 1 } else { !reply.calls.is_empty() }, "{text}");
                    if let Calls::Named(name) = calls {
                        assert!(reply.calls.iter().all(|call| call.name == name), "{text}");
                    }
                    check_calls(&reply, &tools);
                }
            }
        }
        assert!(ended > 25, "only {ended} of 36 answers ended");
    }
}

#[test]
fn strict_tools_bind_their_calls_and_leave_the_text_free() {
    let mut tools = tools(true);
    tools.push(tool("loose", false, json!({"type": "object", "properties": {"a": {"type": "integer"}}})));
    let answer = Answer { format: None, tools: &tools, calls: Calls::Free, single: false };
    let (mut called, mut ended) = (0, 0);
    for thinking in [Thinking::Open, Thinking::Closed] {
        for seed in 0..15 {
            let mut guide = NANO.guide(&answer, &CallForm::default(), thinking).unwrap();
            let (text, whole) = NANO.babble(&mut guide, seed, URGES, 1500);
            let reply = read(&text, thinking, &tools, false);
            if whole {
                ended += 1;
                called += reply.calls.len();
                let strict = reply.calls.into_iter().filter(|call| call.name != "loose").collect();
                check_calls(&Reply { calls: strict, ..Reply::default() }, &tools);
            }
        }
    }
    assert!(called > 10 && ended > 10, "{called} calls in {ended} answers");
}

#[test]
fn reasoning_is_free_and_ends_as_the_reader_has_it() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false});
    let tools = tools(false);
    let format = Some((&schema, "f"));
    for seed in 0..20 {
        let answer = Answer { format, tools: &[], calls: Calls::None, single: false };
        let mut guide = NANO.guide(&answer, &CallForm::default(), Thinking::Open).unwrap();
        let (text, whole) = NANO.babble(&mut guide, seed, &["</think>", "1}", "hm"], 500);
        assert!(whole, "{text}");
        let reply = read(&text, Thinking::Open, &[], false);
        assert!(serde_json::from_str::<Value>(&reply.content).is_ok(), "{text}");

        let answer = Answer { format, tools: &tools, calls: Calls::Free, single: true };
        let mut guide = NANO.guide(&answer, &CallForm::default(), Thinking::Open).unwrap();
        let (text, whole) = NANO.babble(&mut guide, seed, URGES, 3000);
        let reply = read(&text, Thinking::Open, &tools, false);
        if whole && reply.calls.is_empty() {
            assert!(serde_json::from_str::<Value>(&reply.content).is_ok(), "{text}");
        } else if whole {
            assert_eq!(reply.content, "", "{text}");
        }
    }
    // Nothing is masked but the end, and what would spell a marker out of ordinary tokens.
    let answer = Answer { format, tools: &[], calls: Calls::None, single: false };
    let mut guide = NANO.guide(&answer, &CallForm::default(), Thinking::Open).unwrap();
    let all = NANO.allowed(&mut guide);
    assert_eq!(all.len(), NANO.size - 2);
    assert!(!all.contains(&2) && !all.contains(&24) && all.contains(&19));
    let mut unstated = NANO.guide(&answer, &CallForm::default(), Thinking::Unstated).unwrap();
    assert!(NANO.allowed(&mut unstated).contains(&18));
    unstated.accept(18).unwrap();
    assert!(NANO.allowed(&mut unstated).contains(&19));
}

#[test]
fn an_end_tag_inside_a_json_argument_is_never_completed() {
    let tools = tools(true);
    let answer = Answer { format: None, tools: &tools, calls: Calls::Named("edit"), single: true };
    let mut guide = NANO.guide(&answer, &CallForm::default(), Thinking::Closed).unwrap();
    let mut follow = |text: &str| {
        for id in NANO.ids(text) {
            assert!(NANO.allowed(&mut guide).contains(&id), "{text:?} at {:?}", NANO.text(&[id]));
            guide.accept(id).unwrap();
        }
        NANO.text(
            &NANO.allowed(&mut guide).into_iter().filter(|id| NANO.text(&[*id]) == ">").collect::<Vec<_>>(),
        )
    };
    let head = "<tool_call>edit<arg_key>path</arg_key><arg_value>a</arg_value><arg_key>mode</arg_key><arg_value>fa\
                </arg_value><arg_key>count</arg_key><arg_value>12";
    assert_eq!(follow(head), "");
    // Where it ends the value it may be completed, inside a string it may not.
    assert_eq!(follow("</arg_value"), ">");
    assert_eq!(follow("><arg_key>spans</arg_key><arg_value>[{\"text\": \"</arg_value"), "");
    assert_eq!(follow(" "), ">");
}

#[test]
fn what_cannot_be_enforced_is_named_with_its_place() {
    let form = CallForm::default();
    let refused = |schema: Value| {
        let answer =
            Answer { format: Some((&schema, "rf.schema")), tools: &[], calls: Calls::None, single: false };
        NANO.guide(&answer, &form, Thinking::Closed).err().expect("refused").to_string()
    };
    for (schema, says) in [
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "if": {}, "then": {}}), "\"if\", \"then\""),
        (json!({"type": "string", "format": "zodiac"}), "zodiac"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "can't be enforced"),
        (json!({"$ref": "https://example.com/x.json"}), "example.com"),
        (json!({"oneOf": [{"type": "object"}, {"type": "object"}]}), "oneOf"),
        (json!({"type": "strin"}), "strin"),
        (json!(false), "allows nothing"),
        (json!([1]), "expected a JSON schema"),
        (json!({"type": "integer", "minimum": 3, "maximum": 1}), "minimum"),
        (json!({"type": "object", "x-guidance": {"lenient": true}, "not": {}}), "not"),
        (json!({"enum": ["x".repeat(600_000)]}), "bytes"),
    ] {
        let said = refused(schema.clone());
        assert!(said.starts_with("rf.schema: ") && said.contains(says), "{schema}: {said}");
    }
    let with = |strict: bool, schema: Value| {
        let tools = [tool("f", strict, json!({"type": "object", "properties": {"a": schema}}))];
        let answer = Answer { format: None, tools: &tools, calls: Calls::Required, single: false };
        NANO.guide(&answer, &form, Thinking::Closed).map(|_| ()).map_err(|error| error.to_string())
    };
    for (schema, says) in [
        (json!({"type": "string", "format": "zodiac"}), "zodiac"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "can't be enforced"),
        (json!({"type": "string", "not": {"const": "a"}}), "not"),
        (json!({"type": ["string", "integer"]}), "string or something else"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"$ref": "#/$defs/none"}), ""),
    ] {
        // Without strict, calls are forced and their arguments follow as far as they can.
        assert_eq!(with(false, schema.clone()), Ok(()));
        let said = with(true, schema.clone()).expect_err("refused");
        assert!(said.starts_with("f.parameters.properties.a: ") && said.contains(says), "{schema}: {said}");
    }
    let tools = [tool("f\ng", false, Value::Null)];
    let answer = Answer { format: None, tools: &tools, calls: Calls::Required, single: false };
    assert!(NANO.guide(&answer, &form, Thinking::Closed).is_err());
    let tools = [tool("f", true, json!({"type": "object", "anyOf": [{}]}))];
    let answer = Answer { format: None, tools: &tools, calls: Calls::Free, single: false };
    assert!(NANO.guide(&answer, &form, Thinking::Closed).err().unwrap().to_string().contains("anyOf"));
}

#[test]
fn bare_strings_follow_their_schemas() {
    let form = |name: &str| json!({"type": "string", "format": name});
    let pattern = |text: &str| json!({"type": "string", "pattern": text});
    let cases: &[(Value, &[&str], &[&str])] = &[
        (json!({"type": "string"}), &["", "a\n<b> \"c\" </arg_valu ü🌊"], &[]),
        (json!({"type": "string", "minLength": 2, "maxLength": 3}), &["aü", "a🌊b"], &["a", "abcd"]),
        (json!({"enum": ["a", "ab", "null", ""]}), &["a", "ab", "null", ""], &["b", "abc"]),
        (json!({"enum": ["a", null]}), &["a", "null"], &["nul"]),
        (json!({"type": "string", "enum": ["a", null, 3]}), &["a"], &["null", "3"]),
        (json!({"const": "x </y>"}), &["x </y>"], &["x"]),
        (json!({"type": ["string", "null"], "maxLength": 2}), &["ab", "null"], &["abc", "nul"]),
        (json!({"anyOf": [{"$ref": "#/$defs/ab"}, {"type": "null"}]}), &["ab", "null"], &["a"]),
        (json!({"allOf": [{"$ref": "#/$defs/ab"}, {"type": "string"}]}), &["ab"], &["null"]),
        (pattern("b+"), &["b", "abbc\n"], &["", "ac"]),
        (pattern("^a|z$"), &["ab", "bz", "a"], &["ba", "zb"]),
        (pattern("^(a|b)$"), &["a", "b"], &["ab"]),
        (pattern("^[|$]{2}\\$$"), &["||$", "$|$"], &["||", "||\\"]),
        (pattern("a\\$"), &["xa$y"], &["xa"]),
        (pattern("^/\\d+\\\\$"), &["/12\\"], &["/12", "/٣\\"]),
        (form("date"), &["2024-02-29", "1999-12-31"], &["2024-13-01", "2024-04-31", "24-1-1"]),
        (form("time"), &["23:59:59Z", "01:02:03.5+02:00"], &["24:00:00Z", "12:00:00"]),
        (form("date-time"), &["2024-02-29T23:59:59.123Z"], &["2024-02-29", "2024-02-29 23:59:59Z"]),
        (form("uuid"), &["123e4567-e89b-12d3-a456-426614174000"], &["123e4567e89b12d3a456426614174000"]),
        (form("ipv4"), &["0.0.0.0", "255.1.99.10"], &["256.1.1.1", "1.2.3", "01.2.3.4"]),
        (form("hostname"), &["a", "studio-b.local"], &["-a", "a..b", ""]),
        (form("email"), &["a.b+c@example.org", "x@y"], &["a", "a@", ".a@b", "a b@c"]),
        (form("uri"), &["https://a.b:80/c/d?e=f#g", "ftp://x"], &["a", "http://", "http://a b"]),
    ];
    for (schema, good, bad) in cases {
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"],
            "$defs": {"ab": {"type": "string", "const": "ab"}}});
        let tools = [tool("f", true, parameters)];
        let answer = Answer { format: None, tools: &tools, calls: Calls::Required, single: true };
        let follows = |value: &str| {
            let text = format!("<tool_call>f<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>");
            let mut guide = NANO.guide(&answer, &CallForm::default(), Thinking::Closed).unwrap();
            let mut whole = false;
            for id in NANO.ids(&text) {
                if !NANO.allowed(&mut guide).contains(&id) {
                    return false;
                }
                whole = guide.accept(id).unwrap();
            }
            whole
        };
        good.iter().for_each(|value| assert!(follows(value), "{schema}: {value:?} is refused"));
        bad.iter().for_each(|value| assert!(!follows(value), "{schema}: {value:?} is taken"));
    }
}

#[test]
fn markers_are_tokens_where_the_tokenizer_has_them() {
    let spellings = Spellings::of(&NANO.tokenizer);
    let vocabulary = |change: &dyn Fn(&mut BTreeMap<String, u32>)| {
        let mut control = NANO.tokenizer.control_tokens();
        change(&mut control);
        Arc::new(Vocabulary::new(spellings.iter(), control, [2, 24].into()).unwrap())
    };
    let guide = |vocabulary: &Arc<Vocabulary>, answer: &Answer<'_>, thinking| {
        Guide::new(vocabulary, answer, &CallForm::default(), thinking, [2, 24].into())
    };
    let tools = tools(true);
    let forced = Answer { format: None, tools: &tools, calls: Calls::Named("edit"), single: true };

    // `</arg_value>` is a token: text that spells it is payload, and only the token ends a value.
    let with_end = vocabulary(&|control| {
        control.retain(|_, id| *id != 27);
        control.insert("</arg_value>".to_owned(), 27);
    });
    let mut bound = guide(&with_end, &forced, Thinking::Closed).unwrap().unwrap();
    let pieces = [
        "<tool_call>edit<arg_key>path</arg_key><arg_value>a",
        "<arg_key>mode</arg_key><arg_value>fa",
        "<arg_key>count</arg_key><arg_value>12",
        "<arg_key>spans</arg_key><arg_value>[]",
    ];
    for id in pieces.iter().flat_map(|piece| NANO.ids(piece).into_iter().chain([27])) {
        assert!(NANO.allowed(&mut bound).contains(&id), "{id}");
        assert!(!bound.accept(id).unwrap());
    }
    assert_eq!(NANO.allowed(&mut bound), [26]);
    assert!(bound.accept(26).unwrap());

    // What begins or ends something must be a token.
    let without = |marker: &'static str| vocabulary(&move |control| control.retain(|word, _| word != marker));
    let said = guide(&without("<tool_call>"), &forced, Thinking::Closed).err().unwrap().to_string();
    assert!(said.contains("<tool_call> is no token"), "{said}");
    let schema = json!({"type": "object"});
    let format = Answer { format: Some((&schema, "f")), tools: &[], calls: Calls::None, single: false };
    assert!(guide(&without("</think>"), &format, Thinking::Open).is_err());
    assert!(guide(&without("</think>"), &format, Thinking::Closed).is_ok());
    let none = BTreeMap::new();
    assert!(Vocabulary::new(spellings.iter(), none, [9_999].into()).unwrap_err().contains("9999"));
}

#[test]
fn hostile_schemas_end_in_bounded_time() {
    let nested = (0..60).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    let wide: Value =
        (0..400).map(|i| (format!("p{i}"), json!({"type": "string", "pattern": "a.*b"}))).collect();
    for schema in [
        nested,
        json!({"type": "object", "properties": wide}),
        json!({"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"}),
        json!({"type": "string", "pattern": "(a|b)*a(a|b){400}"}),
        json!({"type": "array", "items": {"type": "string", "maxLength": 100_000_000}, "maxItems": 100_000_000}),
        json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"enum": (0..20_000).map(|i| format!("choice {i}")).collect::<Vec<_>>()}),
    ] {
        let answer = Answer { format: Some((&schema, "f")), tools: &[], calls: Calls::None, single: false };
        // Taken or refused; if taken, tokens can be drawn, or the request fails with a word.
        let Ok(mut guide) = NANO.guide(&answer, &CallForm::default(), Thinking::Closed) else { continue };
        let mut logits = vec![0.0; NANO.size];
        for _ in 0..50 {
            logits.fill(0.0);
            if guide.mask(&mut logits).is_err() {
                break;
            }
            let id = logits.iter().position(|&logit| logit == 0.0).unwrap();
            if guide.accept(u32::try_from(id).unwrap()).unwrap_or(true) {
                break;
            }
        }
    }
}

/// The nano model itself, greedy: it was never taught JSON, and keeps to it.
#[test]
fn a_greedy_model_keeps_to_the_form() {
    use crate::chat::{Conversation, Message, RenderOptions, Role, Template};
    use crate::engine::request::{FinishReason, Submission};
    use crate::engine::tests::{finish, greedy, settings, with_model};

    let schema = person();
    let mut tools = tools(true);
    // What a greedy model without sense would go on with for ever is bounded.
    tools[0].parameters["properties"]["path"] = json!({"type": "string", "maxLength": 20});
    tools[0].parameters["$defs"]["span"]["properties"]["text"] = json!({"type": "string", "maxLength": 8});
    tools[0].parameters["$defs"]["span"]["properties"]["at"] =
        json!({"type": "integer", "maximum": 99, "minimum": 0});
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano");
    let template = Template::load(&dir).expect("bundled");
    let form = CallForm::of(&template);
    with_model(dir, settings(), |engine| {
        for on in [true, false] {
            let messages = vec![Message::text(Role::User, "Write a function that adds two numbers.")];
            let conversation = Conversation { messages, ..Conversation::default() };
            let prompt = template.render(&conversation, &RenderOptions::default().thinking(on)).unwrap();
            let ids = NANO.tokenizer.encode_prompt(&prompt).unwrap();
            let format =
                Answer { format: Some((&schema, "f")), tools: &[], calls: Calls::None, single: false };
            let call = Answer { format: None, tools: &tools, calls: Calls::Named("edit"), single: true };
            for answer in [format, call] {
                let guide = NANO.guide(&answer, &form, prompt.thinking()).unwrap();
                // Reasoning is free, and this model may never end it by itself: a bias helps.
                let mut submission = greedy(&ids, 1500);
                submission.sampling.logit_bias = vec![(19, if on { 12.0 } else { 0.0 })];
                let constraint: Option<Box<dyn Constraint>> = Some(Box::new(guide));
                let submission =
                    Submission { stop_ids: NANO.vocabulary.stop_ids().into(), constraint, ..submission };
                let (made, end) = finish(engine.submit(submission).unwrap());
                let text = NANO.text(&made);
                assert!(matches!(end.unwrap().reason, FinishReason::Stop(_)), "{text}");
                let reply = read(&text, prompt.thinking(), answer.tools, false);
                if answer.tools.is_empty() {
                    let value: Value = serde_json::from_str(&reply.content).unwrap();
                    assert!(fits(&value, &schema, &schema), "{text}");
                } else {
                    assert_eq!(reply.calls.len(), 1, "{text}");
                    check_calls(&reply, &tools);
                }
            }
        }
    });
}
