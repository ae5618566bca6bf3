//! The tokenizers, schemas and tools of these tests, and an independent check of what came out.

use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::super::*;
use crate::chat::{CallForm, Ended, Parser, Reply, Thinking, ToolSchemas};
use crate::engine::sampler::Constraint;
use crate::http::spelling::Spellings;
use crate::http::testing::Babble;
use crate::text::TextTokenizer;

pub(super) struct Model {
    pub(super) tokenizer: TextTokenizer,
    pub(super) vocabulary: std::sync::Arc<Vocabulary>,
    pub(super) size: usize,
}

impl Model {
    fn load(dir: &str, stop_ids: &[u32]) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests").join(dir);
        let tokenizer = TextTokenizer::load(&dir).expect("bundled");
        let spellings = Spellings::of(&tokenizer);
        let vocabulary = Vocabulary::new(spellings.iter(), tokenizer.control_tokens(), stop_ids.into());
        let size = spellings.iter().count();
        Self { tokenizer, vocabulary: std::sync::Arc::new(vocabulary.expect("a vocabulary")), size }
    }

    pub(super) fn guide(
        &self,
        answer: &Answer<'_>,
        form: &CallForm,
        thinking: Thinking,
    ) -> Result<Guide, GrammarError> {
        let stop_ids = self.vocabulary.stop_ids().into();
        Guide::new(&self.vocabulary, answer, form, thinking, stop_ids).map(|guide| guide.expect("bound"))
    }

    pub(super) fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_rendered(text).expect("encodes")
    }

    pub(super) fn text(&self, ids: &[u32]) -> String {
        self.tokenizer.inner().decode(ids, false).expect("decodes")
    }

    pub(super) fn allowed(&self, guide: &mut Guide) -> Vec<u32> {
        let mut logits = vec![0.0; self.size];
        guide.mask(&mut logits).expect("a mask");
        (0..).zip(&logits).filter(|(_, logit)| **logit == 0.0).map(|(id, _)| id).collect()
    }

    /// Draws until the answer ends, or `most` tokens are made; the text, and whether it ended.
    pub(super) fn babble(&self, guide: &mut Guide, seed: u64, urges: &[&str], most: usize) -> (String, bool) {
        let mut babble = Babble::new(seed, urges.iter().map(|urge| self.ids(urge)).collect());
        let (mut made, mut logits) = (Vec::new(), vec![0.0; self.size]);
        while made.len() < most {
            logits.fill(0.0);
            guide.mask(&mut logits).expect("a mask");
            let id = babble.next(&logits).expect("a token");
            if self.vocabulary.stop_ids().contains(&id) {
                return (self.text(&made), true);
            }
            made.push(id);
            if guide.accept(id).expect("an allowed token") {
                return (self.text(&made), true);
            }
        }
        (self.text(&made), false)
    }
}

pub(super) static NANO: LazyLock<Model> = LazyLock::new(|| Model::load("nano", &[2, 24]));
pub(super) static FIXTURE: LazyLock<Model> = LazyLock::new(|| Model::load("fixtures/tokenizer", &[2, 24]));

pub(super) fn padded() -> CallForm {
    let [lead, after_name, before_value, after_value, between, tail] = ["\n"; 6].map(str::to_owned);
    CallForm { lead, after_name, before_value, after_value, between, tail }
}

/// Whether `value` follows `schema`, as far as these tests' schemas go.
pub(super) fn fits(value: &Value, schema: &Value, root: &Value) -> bool {
    let Value::Object(fields) = schema else { return schema == &json!(true) };
    fields.iter().all(|(keyword, rule)| match (keyword.as_str(), value) {
        ("type", _) => {
            let is = |name: &Value| match name.as_str().unwrap() {
                "null" => value.is_null(),
                "boolean" => value.is_boolean(),
                "integer" => value.as_f64().is_some_and(|x| x.fract() == 0.0),
                "number" => value.is_number(),
                "string" => value.is_string(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("{other}"),
            };
            rule.as_array().map_or_else(|| is(rule), |names| names.iter().any(is))
        }
        ("enum", _) => rule.as_array().unwrap().contains(value),
        ("const", _) => rule == value,
        ("anyOf", _) => rule.as_array().unwrap().iter().any(|choice| fits(value, choice, root)),
        ("$ref", _) => {
            let target = root.pointer(rule.as_str().unwrap().trim_start_matches('#'));
            fits(value, target.unwrap(), root)
        }
        ("minimum", Value::Number(x)) => x.as_f64() >= rule.as_f64(),
        ("maximum", Value::Number(x)) => x.as_f64() <= rule.as_f64(),
        ("minLength", Value::String(text)) => text.chars().count() as u64 >= rule.as_u64().unwrap(),
        ("maxLength", Value::String(text)) => text.chars().count() as u64 <= rule.as_u64().unwrap(),
        ("minItems", Value::Array(items)) => items.len() as u64 >= rule.as_u64().unwrap(),
        ("maxItems", Value::Array(items)) => items.len() as u64 <= rule.as_u64().unwrap(),
        ("items", Value::Array(items)) => items.iter().all(|item| fits(item, rule, root)),
        ("required", Value::Object(map)) => {
            rule.as_array().unwrap().iter().all(|name| map.contains_key(name.as_str().unwrap()))
        }
        ("properties", Value::Object(map)) => {
            let named = map.iter().filter_map(|(name, value)| Some((value, rule.get(name)?)));
            named.into_iter().all(|(value, schema)| fits(value, schema, root))
        }
        ("additionalProperties", Value::Object(map)) if rule == &json!(false) => {
            map.keys().all(|name| fields["properties"].get(name).is_some())
        }
        ("pattern", Value::String(text)) => {
            // The one pattern of these tests.
            assert_eq!(rule, "^[A-Z]{2}\\d+$");
            let (letters, digits) = text.split_at_checked(2).unwrap_or_default();
            letters.bytes().all(|b| b.is_ascii_uppercase())
                && !digits.is_empty()
                && digits.bytes().all(|b| b.is_ascii_digit())
        }
        _ => true,
    })
}

pub(super) fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "mood": {"enum": ["fine", "so \"so\"", "<tool_call>", null, 3]},
            "code": {"type": "string", "pattern": "^[A-Z]{2}\\d+$"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
            "home": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
        },
        "required": ["name", "age", "tags", "home"],
        "additionalProperties": false,
        "$defs": {"place": {
            "type": "object",
            "properties": {"zip": {"type": "string", "maxLength": 6}, "in": {"$ref": "#/$defs/place"}},
            "required": ["zip"], "additionalProperties": false,
        }},
    })
}

pub(super) fn tool(name: &str, strict: bool, parameters: Value) -> Tool {
    Tool { name: name.to_owned(), parameters, path: format!("{name}.parameters"), strict }
}

pub(super) fn tools(strict: bool) -> Vec<Tool> {
    let edit = json!({
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "mode": {"type": "string", "enum": ["fast", "fa", "so so"]},
            "note": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]},
            "code": {"type": "string", "pattern": "^[A-Z]{2}\\d+$"},
            "count": {"type": "integer", "minimum": 1, "maximum": 99},
            "deep": {"type": "boolean"},
            "spans": {"type": "array", "items": {"$ref": "#/$defs/span"}, "maxItems": 3},
        },
        "required": ["path", "mode", "count", "spans"],
        "additionalProperties": false,
        "$defs": {"span": {
            "type": "object", "properties": {"text": {"type": "string"}, "at": {"type": "number"}},
            "required": ["text"], "additionalProperties": false,
        }},
    });
    let empty = json!({"type": "object", "properties": {}, "additionalProperties": false});
    vec![tool("edit", strict, edit), tool("edit_all", strict, empty)]
}

/// What the model may feel like writing: mostly what ends things, and what would break them.
pub(super) const URGES: &[&str] = &[
    "</arg_value>",
    "</arg_value>",
    "</arg_value>",
    "\"",
    "\"}",
    "]",
    "}",
    "[]",
    "1",
    "</tool_call>",
    "</think>",
    "<tool_call>",
    "</assistant>",
    "[{\"text\":\"</arg_value>\"}]",
    "\n",
];

pub(super) fn read(text: &str, thinking: Thinking, tools: &[Tool], padded: bool) -> Reply {
    let definitions: Vec<Value> =
        tools.iter().map(|tool| json!({"name": tool.name, "parameters": tool.parameters})).collect();
    let mut parser = Parser::new(thinking, ToolSchemas::from_tools(&definitions)).padded(padded);
    if tools.is_empty() {
        parser = parser.without_calls();
    }
    let mut reply: Reply = parser.push(text).into_iter().collect();
    reply.extend(parser.finish(Ended::Token));
    reply
}

pub(super) fn check_calls(reply: &Reply, tools: &[Tool]) {
    for call in &reply.calls {
        assert!(call.complete);
        let tool = tools.iter().find(|tool| tool.name == call.name).expect("a tool there is");
        let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
        assert!(fits(&arguments, &tool.parameters, &tool.parameters), "{arguments}");
    }
}
