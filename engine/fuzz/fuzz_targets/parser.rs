//! Writes turns that no model should write.

#![no_main]

#[path = "../bodies/parser.rs"]
mod parser;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| parser::run(bytes));
