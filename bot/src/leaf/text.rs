//! Text as the model sees it: cut at its limit, split into lines as Python splits them, paths by their short form.

use std::path::Path;

/// A text of a limited number of characters that counts what does not fit. Only its head is kept, because that is what
/// the model was trained on.
pub(super) struct Cut {
    text: String,
    room: usize,
    n_cut: u64,
}

impl Cut {
    pub(super) fn new(limit_chars: usize) -> Self {
        Self { text: String::new(), room: limit_chars, n_cut: 0 }
    }

    pub(super) fn push(&mut self, text: &str) {
        let mut chars = text.char_indices();
        let end = chars.by_ref().nth(self.room).map(|(at, _)| at);
        match end {
            Some(at) => {
                self.text.push_str(&text[..at]);
                self.room = 0;
                self.cut(1 + chars.count() as u64);
            }
            None => {
                self.text.push_str(text);
                self.room -= text.chars().count();
            }
        }
    }

    /// Counts what was dropped before it came here.
    pub(super) fn cut(&mut self, n_chars: u64) {
        self.n_cut = self.n_cut.saturating_add(n_chars);
    }

    pub(super) fn finish(mut self) -> String {
        if self.n_cut > 0 {
            self.text.push_str(&format!("\n[truncated {} chars]", self.n_cut));
        }
        self.text
    }
}

/// The lines of a text without their ends, as Python's `str.splitlines` has them: so many characters end a line.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find(is_line_end).unwrap_or(rest.len());
        let (line, tail) = rest.split_at(end);
        let mut tail_chars = tail.chars();
        if tail_chars.next() == Some('\r') && tail_chars.as_str().starts_with('\n') {
            tail_chars.next();
        }
        rest = tail_chars.as_str();
        Some(line)
    })
}

fn is_line_end(character: char) -> bool {
    matches!(character, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// A path beneath the workspace, as the model sees it.
pub(super) fn shown(beneath: &Path) -> String {
    match beneath.as_os_str().is_empty() {
        true => ".".to_owned(),
        false => beneath.to_string_lossy().into_owned(),
    }
}
