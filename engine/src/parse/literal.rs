//! Lists and dictionaries as Python writes them, `{'a': True, 'b': (1, None)}`, read as JSON. Models write these for
//! parameters that should be JSON. Only literals: no name, no call, no operator but a sign, no prefixed text. JSON's own
//! words count too, since models mix both. Pure, and total.

use serde_json::{Map, Number, Value};

/// Deepest nesting, as serde_json reads JSON.
const DEPTH: usize = 128;

/// The value of a literal; none if it is none, or if JSON cannot hold it.
pub(super) fn parse(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text };
    let value = reader.value(0)?;
    reader.peek().is_none().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth == DEPTH {
            return None;
        }
        match self.peek()? {
            '[' => self.items(']', depth).map(|(items, _)| Value::Array(items)),
            '(' => match self.items(')', depth)? {
                // Round brackets make a list by their comma; without one they only hold a value.
                (mut items, false) if items.len() == 1 => items.pop(),
                (items, _) => Some(Value::Array(items)),
            },
            '{' => self.pairs(depth),
            '\'' | '"' => self.texts().map(Value::String),
            _ => {
                let is_part = |c: char| c.is_alphanumeric() || "_.+-".contains(c);
                word(self.take_while(is_part))
            }
        }
    }

    /// Values up to the closing bracket, and whether a comma stands behind the last.
    fn items(&mut self, close: char, depth: usize) -> Option<(Vec<Value>, bool)> {
        self.next()?;
        let mut items = Vec::new();
        let mut has_comma = false;
        while !self.take(close) {
            if !items.is_empty() && !has_comma {
                return None;
            }
            items.push(self.value(depth + 1)?);
            has_comma = self.take(',');
        }
        Some((items, has_comma))
    }

    fn pairs(&mut self, depth: usize) -> Option<Value> {
        self.next()?;
        let mut pairs = Map::new();
        let mut has_comma = true;
        while !self.take('}') {
            let key = if has_comma { key(self.value(depth + 1)?)? } else { return None };
            if !self.take(':') {
                return None;
            }
            pairs.insert(key, self.value(depth + 1)?);
            has_comma = self.take(',');
        }
        Some(Value::Object(pairs))
    }

    /// A text, or several beside each other, which are one.
    fn texts(&mut self) -> Option<String> {
        let mut text = String::new();
        while let Some(quote @ ('\'' | '"')) = self.peek() {
            let triple = String::from(quote).repeat(3);
            let end = if self.rest.starts_with(&triple) { &triple[..] } else { &triple[..1] };
            self.rest = self.rest.strip_prefix(end)?;
            loop {
                if let Some(rest) = self.rest.strip_prefix(end) {
                    self.rest = rest;
                    break;
                }
                match self.next()? {
                    '\\' => self.escape(&mut text)?,
                    '\n' if end.len() == 1 => return None,
                    c => text.push(c),
                }
            }
        }
        Some(text)
    }

    /// What stands behind a backslash. An escape that Python does not know is kept as it stands.
    fn escape(&mut self, text: &mut String) -> Option<()> {
        if self.rest.starts_with(|c: char| c.is_digit(8)) {
            let n_digits = self.rest.chars().take(3).take_while(|c| c.is_digit(8)).count();
            text.push(self.code(n_digits, 8)?);
            return Some(());
        }
        let c = match self.next()? {
            '\n' => return Some(()),
            c @ ('\\' | '\'' | '"') => c,
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'x' => self.code(2, 16)?,
            'u' => self.code(4, 16)?,
            'U' => self.code(8, 16)?,
            // A character by its name; no table of names is here.
            'N' => return None,
            c => {
                text.push('\\');
                c
            }
        };
        text.push(c);
        Some(())
    }

    /// The character of a number with so many digits.
    fn code(&mut self, n_digits: usize, radix: u32) -> Option<char> {
        let digits = self.rest.get(..n_digits)?;
        self.rest = &self.rest[n_digits..];
        let is_plain = digits.chars().all(|c| c.is_digit(radix));
        char::from_u32(u32::from_str_radix(digits, radix).ok().filter(|_| is_plain)?)
    }

    /// The next character that is not white space; it stays.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    /// Whether this character comes next, white space aside; it is taken.
    fn take(&mut self, expected: char) -> bool {
        let is_next = self.peek() == Some(expected);
        if is_next {
            self.next();
        }
        is_next
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }
}

fn word(word: &str) -> Option<Value> {
    match word {
        "True" | "true" => Some(Value::Bool(true)),
        "False" | "false" => Some(Value::Bool(false)),
        "None" | "null" => Some(Value::Null),
        _ => number(&word.replace('_', "")).map(Value::Number),
    }
}

/// An integer that fits 64 bits, or a finite float. An integer that does not fit is none: as a float it would be another.
fn number(word: &str) -> Option<Number> {
    let digits = word.trim_start_matches(['+', '-']);
    if let Some(hexadecimal) = digits.strip_prefix("0x") {
        let signed = word.strip_suffix(digits)?.to_owned() + hexadecimal;
        return i64::from_str_radix(&signed, 16).ok().map(Number::from);
    }
    let is_whole = digits.chars().all(|c| c.is_ascii_digit());
    if is_whole {
        let signed = word.parse::<i64>().ok().map(Number::from);
        return signed.or_else(|| word.parse::<u64>().ok().map(Number::from));
    }
    let is_plain = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    word.parse::<f64>().ok().filter(|_| is_plain).and_then(Number::from_f64)
}

/// A key as Python's `json.dumps` writes it.
fn key(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn literals_are_read_as_python_reads_them() {
        for (text, expected) in [
            ("[]", json!([])),
            ("()", json!([])),
            ("{}", json!({})),
            ("[1, 2,]", json!([1, 2])),
            ("(1,)", json!([1])),
            ("((1), [2])", json!([1, [2]])),
            ("{'a': True, \"b\": None, 'c': False,}", json!({ "a": true, "b": null, "c": false })),
            ("{'a': true, 'b': null}", json!({ "a": true, "b": null })),
            ("{1: 'x', True: 'y', None: 'z'}", json!({ "1": "x", "true": "y", "null": "z" })),
            (" [ 'it\\'s' , \"say \\\"x\\\"\" ] ", json!(["it's", "say \"x\""])),
            (r"['a\n\t\\\x41\u00e9\U0001f438\101\q']", json!(["a\n\t\\A\u{e9}\u{1f438}A\\q"])),
            ("['a' \"b\"\n 'c']", json!(["abc"])),
            ("['''a'\nb''']", json!(["a'\nb"])),
            ("['', \"\"]", json!(["", ""])),
            ("['line \\\ngoes on']", json!(["line goes on"])),
            ("[-1, +2, 1_000, 0x1f, -0x1f]", json!([-1, 2, 1000, 31, -31])),
            ("[1.5, .5, -2e3, 18446744073709551615]", json!([1.5, 0.5, -2000.0, u64::MAX])),
            ("['\u{fc} \u{65e5}']", json!(["\u{fc} \u{65e5}"])),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_literal_is_refused() {
        for text in [
            "",
            "[",
            "[1",
            "[1 2]",
            "[,]",
            "{'a'}",
            "{'a': 1 'b': 2}",
            "{[1]: 2}",
            "[a]",
            "f(1)",
            "[1] x",
            "['a]",
            "['a\nb']",
            "[1 + 2]",
            "[--1]",
            "[1-2]",
            "[inf]",
            "[nan]",
            "[1e999]",
            "[99999999999999999999]",
            "[-]",
            "['\\x4']",
            "['\\ud800']",
            "['\\N{DASH}']",
            "[r'a']",
            "[0x]",
            "['\\x+1']",
            "(",
            "{1, 2}",
            "[\\]",
            "['\\",
            "[+]",
            "['\\xé']",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_none());
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(parse(&deep(DEPTH)).is_some());
        assert!(parse(&deep(DEPTH + 1)).is_none());
    }
}
