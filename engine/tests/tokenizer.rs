//! The published vocabulary. It is too large for the repository: `tests/run.sh` fetches it and builds the folder that these
//! tests look into; without it they say that they were skipped.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::LazyLock;

use engine::parse::Mark;
use engine::{Span, Tokenizer};

fn published() -> Option<&'static Tokenizer> {
    static PUBLISHED: LazyLock<Option<Tokenizer>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vocabulary");
        let is_there = folder.join("tokenizer.json").exists();
        is_there.then(|| Tokenizer::load(&folder).unwrap())
    });
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    if PUBLISHED.is_none() {
        eprintln!("skipped: the published vocabulary is not here; `tests/run.sh` fetches it");
    }
    PUBLISHED.as_ref()
}

/// Texts and their ids, by the tokenizers library for Python from the published files.
fn cases() -> Vec<(String, Vec<u32>)> {
    serde_json::from_str(include_str!("fixtures/tokenizer/published_cases.json")).unwrap()
}

#[test]
fn every_published_case_has_its_ids() {
    let Some(tokenizer) = published() else { return };
    let cases = cases();
    assert_eq!(cases.len(), 64);
    for (text, ids) in &cases {
        assert_eq!(&tokenizer.encode(&[Span::Trusted(text)]).unwrap(), ids, "{text:?}");
    }
}

#[test]
fn the_text_of_every_published_case_comes_back() {
    let Some(tokenizer) = published() else { return };
    for (text, _) in cases() {
        // Special tokens are left out of texts, so here they are ordinary text.
        let ids = tokenizer.encode(&[Span::Untrusted(&text)]).unwrap();
        let is_control = |id: &u32| (248_044..248_077).contains(id);
        assert!(!ids.iter().any(is_control), "{text:?}");
        let is_composed = !text.contains(|c: char| ('\u{300}'..'\u{370}').contains(&c));
        assert!(!is_composed || tokenizer.decode(&ids) == text, "{text:?}");
    }
}

#[test]
fn the_published_tokens_are_where_the_specification_says() {
    let Some(tokenizer) = published() else { return };
    assert_eq!(tokenizer.n_ids(), 248_077);
    let marks = [
        (248_058, Mark::CallOpen),
        (248_059, Mark::CallClose),
        (248_068, Mark::ThinkOpen),
        (248_069, Mark::ThinkClose),
    ];
    for (id, mark) in marks {
        assert_eq!(tokenizer.mark(id), Some(mark));
    }
    assert_eq!(tokenizer.mark(248_046), None);
    assert_eq!(tokenizer.id("<|endoftext|>"), Some(248_044));
    assert_eq!(tokenizer.id("<|im_end|>"), Some(248_046));
}

/// With the template's words around it and without its control tokens, whatever it says.
#[test]
fn a_prompt_has_the_published_ids() {
    let Some(tokenizer) = published() else { return };
    let prompt = |text| {
        let (before, after) =
            ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n");
        let spans = [Span::Trusted(before), Span::Untrusted(text), Span::Trusted(after)];
        tokenizer.encode(&spans).unwrap()
    };
    let after = [248_046, 198, 248_045, 74_455, 198, 248_068, 198];
    assert_eq!(prompt("hello"), [&[248_045, 846, 198, 14_556], &after[..]].concat());
    let spelled = [27, 91, 316, 4747, 91];
    assert_eq!(prompt("<|im_start|"), [&[248_045, 846, 198], &spelled[..], &after].concat());
}

/// Such a run is one piece for the joining of pairs; a cost that grows with the square of its length would show here.
#[test]
fn long_runs_are_encoded_whole_and_in_time() {
    let Some(tokenizer) = published() else { return };
    let n_bytes = 30_000;
    for run in [" ", "\n", " \n", "\t", "a", "日", "=", "\u{301}", "🐸", "<", "<|im_end|"] {
        let text = run.repeat(n_bytes / run.len());
        let ids = tokenizer.encode(&[Span::Untrusted(&text)]).unwrap();
        assert!(tokenizer.decode(&ids) == text, "{run:?}");
    }
}
