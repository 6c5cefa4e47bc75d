//! The filter `tojson`: JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it, up to a size and a depth. What a
//! template makes may hold itself, or one thing any number of times.

use std::io::{self, Write};

use minijinja::{ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::Formatter;

/// Bytes at most: some times what a server takes as a request.
const BYTES: usize = 64 << 20;
/// Lists and objects within each other at most. Those of a request are within 128.
const DEPTH: usize = 256;

/// A value as JSON.
pub(super) fn tojson(value: Value) -> Result<Value, minijinja::Error> {
    let mut text = Text(Vec::new());
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Spaced { depth: 0 });
    let written = value.serialize(&mut serializer);
    let failed = |error: String| minijinja::Error::new(ErrorKind::BadSerialization, error);
    written.map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8(text.0).map_err(|error| failed(error.to_string()))?;
    Ok(Value::from_safe_string(text))
}

/// Takes a limited number of bytes.
struct Text(Vec<u8>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > BYTES {
            return Err(io::Error::other(format!("the JSON has more than {BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Spaced {
    depth: usize,
}

impl Spaced {
    fn enter(&mut self) -> io::Result<()> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(io::Error::other(format!("the JSON is nested more than {DEPTH} deep")));
        }
        Ok(())
    }
}

impl Formatter for Spaced {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.enter()?;
        writer.write_all(b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        writer.write_all(b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.enter()?;
        writer.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        writer.write_all(b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
