//! A raw value becomes JSON of the type that the tool's schema asks for. Pure, and total: what does not fit stays a string.

use serde_json::Value;

use super::literal;

/// The value of parameter `key`.
pub(super) fn typed(raw: &str, schema: Option<&Value>, key: &str) -> Value {
    let property =
        schema.and_then(|schema| schema.pointer(&format!("/properties/{}", escaped(key))));
    let kinds = property.map(kinds).unwrap_or_default();
    let word = raw.trim();
    // A string stays what it is, `null` and `123` too.
    let kind = kinds.iter().find(|kind| **kind != "null").copied().unwrap_or("string");
    if matches!(word, "null" | "None") && (kinds.contains(&"null") || kind != "string") {
        return Value::Null;
    }
    let parsed = match kind {
        "integer" => word.parse::<i64>().ok().map(Value::from),
        "number" => number(word),
        "boolean" => match word {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            _ => None,
        },
        "object" | "array" => serde_json::from_str(word).ok().or_else(|| {
            let fits = |value: &Value| {
                if kind == "object" { value.is_object() } else { value.is_array() }
            };
            literal::parse(word).filter(fits)
        }),
        _ => None,
    };
    parsed.unwrap_or_else(|| Value::String(raw.to_owned()))
}

fn number(word: &str) -> Option<Value> {
    match word.parse::<i64>() {
        Ok(whole) => Some(Value::from(whole)),
        Err(_) => word.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from),
    }
}

/// The types that a property may have, in its order.
fn kinds(property: &Value) -> Vec<&str> {
    match property.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => {
            let choices = ["anyOf", "oneOf"].iter().find_map(|key| property.get(key)?.as_array());
            choices.into_iter().flatten().flat_map(kinds).collect()
        }
    }
}

/// A key inside a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
