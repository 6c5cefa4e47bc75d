//! Every request to the API is checked against what the forge's publisher says that the API takes: the operation, the
//! path's parameters, the query's names and values, the body.
//!
//! The publishers' schemas are used where they are at hand; without them our own, smaller copy in `fixtures/` is.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Dialect;

/// Our own copy, in the publishers' form: the operations that the bot uses, and `G/teams`, which the published
/// extracts leave out.
const OWN: &str = include_str!("../../fixtures/forge-requests.json");
/// The same for GitHub: the operations that the bot may use, and `G/labels/{name}`, which the published extracts leave out.
const OWN_GITHUB: &str = include_str!("../../fixtures/forge-requests-github.json");
const PUBLISHED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/forges/request-schemas");

/// Checks requests.
#[derive(Debug)]
pub struct Checker {
    operations: Vec<Operation>,
    /// Whether the publishers' schemas are in use.
    pub is_published: bool,
    /// Whether they are GitHub's.
    pub(super) is_github: bool,
}

#[derive(Debug)]
struct Operation {
    spec: Spec,
    definitions: Value,
}

#[derive(Debug, Clone, Deserialize)]
struct Spec {
    method: String,
    path: String,
    #[serde(default)]
    path_params: Map<String, Value>,
    #[serde(default)]
    query: Map<String, Value>,
    #[serde(default)]
    body: Value,
    #[serde(default)]
    body_required: bool,
}

#[derive(Deserialize)]
struct File {
    operations: Vec<Spec>,
    #[serde(rename = "$defs")]
    definitions: Value,
}

impl Checker {
    /// The publisher's schema of a dialect where it is at hand, else our own.
    pub fn new(dialect: Dialect) -> Self {
        let name = match dialect {
            Dialect::Gitea124 => "gitea-1.24.7.requests.json",
            Dialect::Gitea127 => "gitea-1.27.0.requests.json",
            Dialect::Forgejo15 => "forgejo-15.0.3.requests.json",
            Dialect::Ghes314 => "ghes-3.14.requests.json",
            Dialect::Ghes319 => "ghes-3.19.requests.json",
        };
        let left_out = match dialect.is_github() {
            true => only(OWN_GITHUB, "/labels/{name}"),
            false => only(OWN, "/teams"),
        };
        let published = std::fs::read_to_string(Path::new(PUBLISHED).join(name));
        let mut checker = match published {
            Ok(text) => Self::parse(&[&text, &left_out], true),
            Err(_) => return Self::own(dialect),
        };
        checker.is_github = dialect.is_github();
        checker
    }

    /// Our own schema. One query parameter is unknown to Forgejo before 16, another one to GitHub before 3.19.
    pub fn own(dialect: Dialect) -> Self {
        let mut own = Self::parse(&[if dialect.is_github() { OWN_GITHUB } else { OWN }], false);
        own.is_github = dialect.is_github();
        if dialect == Dialect::Ghes314 {
            for operation in &mut own.operations {
                if operation.spec.path.ends_with("/deliveries") {
                    operation.spec.query.remove("status");
                }
            }
        }
        if dialect == Dialect::Forgejo15 {
            for operation in &mut own.operations {
                operation.spec.query.remove("base_branch");
            }
        }
        own
    }

    fn parse(texts: &[&str], is_published: bool) -> Self {
        let mut operations = Vec::new();
        for text in texts {
            let file: File = serde_json::from_str(text).expect("the schema file has its form");
            let definitions = file.definitions;
            operations.extend(
                file.operations
                    .into_iter()
                    .map(|spec| Operation { spec, definitions: definitions.clone() }),
            );
        }
        Self { operations, is_published, is_github: false }
    }

    /// The operations, as `METHOD path`.
    pub fn operations(&self) -> Vec<String> {
        self.operations.iter().map(|op| format!("{} {}", op.spec.method, op.spec.path)).collect()
    }

    /// What is wrong with a request that a test writes down, as one text: empty where nothing is.
    pub fn complaints(
        &self,
        method: &str,
        path: &str,
        query: &[(&str, &str)],
        body: &str,
    ) -> String {
        let query: Vec<(String, String)> =
            query.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        self.check(method, path, &query, body.as_bytes()).join("\n")
    }

    /// What is wrong with a request. `path` is below `/api/v1` or `/api/v3`, still percent-encoded.
    pub fn check(
        &self,
        method: &str,
        path: &str,
        query: &[(String, String)],
        body: &[u8],
    ) -> Vec<String> {
        let segments = segments(path);
        let fitting = self.operations.iter().filter(|op| op.spec.method == method);
        // `issues/comments/5` fits two operations; the more literal one is meant.
        let found = fitting
            .filter_map(|op| op.spec.bind(&segments).map(|(literals, bound)| (literals, op, bound)))
            .max_by_key(|(literals, _, _)| *literals);
        let Some((_, operation, bound)) = found else {
            return vec![format!("{method} {path}: the API has no such operation")];
        };
        let mut wrong = Vec::new();
        for (name, value) in bound {
            let schema = &operation.spec.path_params[name]["schema"];
            check_text(&format!("path parameter `{name}`"), schema, &value, &mut wrong);
        }
        for (name, value) in query {
            match operation.spec.query.get(name) {
                None => wrong.push(format!("query parameter `{name}` is unknown")),
                Some(parameter) => {
                    let what = format!("query parameter `{name}`");
                    check_text(&what, &parameter["schema"], value, &mut wrong);
                }
            }
        }
        // Gitea's descriptions call no body required, and its servers want one all the same.
        if !(body.is_empty() && self.is_github && !operation.spec.body_required) {
            operation.check_body(body, &mut wrong);
        }
        wrong.into_iter().map(|reason| format!("{method} {path}: {reason}")).collect()
    }
}

impl Operation {
    fn check_body(&self, body: &[u8], wrong: &mut Vec<String>) {
        if self.spec.body.is_null() {
            if !body.is_empty() {
                wrong.push("it takes no body".to_owned());
            }
            return;
        }
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return wrong.push("its body is no JSON".to_owned());
        };
        let mut schema = self.spec.body.clone();
        schema["$defs"] = self.definitions.clone();
        wrong
            .extend(complaints(&schema, &body).into_iter().map(|reason| format!("body: {reason}")));
    }
}

impl Spec {
    /// The parameters' values and the number of literal segments, if a path fits. The last parameter of some routes
    /// takes the whole rest.
    fn bind<'a>(&'a self, segments: &[String]) -> Option<(usize, Vec<(&'a str, String)>)> {
        let parts: Vec<&str> = self.path.split('/').skip(1).collect();
        let is_open = ["{branch}", "{head}", "{ref}", "{filepath}"]
            .iter()
            .any(|open| parts.last() == Some(open));
        let fits = match is_open {
            true => segments.len() >= parts.len(),
            false => segments.len() == parts.len(),
        };
        if !fits {
            return None;
        }
        let (mut literals, mut bound) = (0, Vec::new());
        for (i, part) in parts.iter().enumerate() {
            let rest = if i + 1 == parts.len() { &segments[i..] } else { &segments[i..=i] };
            match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                // Two parameters in one segment, as in `{index}.{diffType}`: no route of the bot's.
                Some(names) if names.contains('}') => return None,
                Some(name) => bound.push((name, rest.join("/"))),
                None if *part == segments[i] => literals += 1,
                None => return None,
            }
        }
        Some((literals, bound))
    }
}

/// The decoded segments of a path.
pub(super) fn segments(path: &str) -> Vec<String> {
    path.split('/').skip(1).map(decode).collect()
}

/// Percent-decoding alone: a plus sign in a path is a plus sign.
pub(super) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Checks a value that travelled as text.
fn check_text(what: &str, schema: &Value, text: &str, wrong: &mut Vec<String>) {
    let value = match schema["type"].as_str() {
        Some("integer") => text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number)),
        Some("boolean") => text.parse::<bool>().map_or_else(|_| json!(text), |truth| json!(truth)),
        Some("array") => text.split(',').map(|item| json!(item)).collect(),
        _ => json!(text),
    };
    wrong.extend(complaints(schema, &value).into_iter().map(|reason| format!("{what}: {reason}")));
}

fn complaints(schema: &Value, value: &Value) -> Vec<String> {
    if schema.is_null() {
        return vec![];
    }
    let validator = jsonschema::validator_for(schema).expect("the schema file holds schemas");
    validator.iter_errors(value).map(|error| error.to_string()).collect()
}

/// The part of our own schema that the published extracts leave out.
fn only(own: &str, end: &str) -> String {
    let mut own: Value = serde_json::from_str(own).expect("our own schema is JSON");
    let operations = own["operations"].as_array_mut().expect("our own schema has operations");
    operations.retain(|op| op["path"].as_str().is_some_and(|path| path.ends_with(end)));
    own.to_string()
}
