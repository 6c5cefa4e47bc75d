//! Words that are not the bot's own, made harmless: they ping nobody, close nothing, hide nothing and end no block.

const ZERO_WIDTH_SPACE: char = '\u{200b}';

/// One line of plain text, at most `limit` characters. Control and invisible characters go, white space becomes single
/// spaces, and mentions and references are broken by a zero-width space.
pub fn line(text: &str, limit: usize) -> String {
    let visible: String = text.chars().filter_map(visible_or_space).collect();
    let words: Vec<&str> = visible.split_whitespace().collect();
    cut(&unmarked(&unlinked(&words.join(" "))), limit)
}

/// One line for a terminal: no control or invisible characters.
pub fn plain(text: &str) -> String {
    text.chars().filter_map(visible_or_space).collect()
}

/// Lines for a terminal: nothing in them moves the cursor, changes a colour or turns the text around. What would is shown
/// by its number.
pub fn lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            _ if c.is_control() || is_invisible(c) => out.extend(c.escape_unicode()),
            _ => out.push(c),
        }
    }
    out
}

/// A fenced block, at most `limit` characters of text, whose fence is longer than any run of back-ticks inside.
pub fn fence(text: &str, limit: usize) -> String {
    let visible: String = text
        .chars()
        .filter(|&c| c == '\n' || c == '\t' || visible_or_space(c) == Some(c))
        .collect();
    let text = cut(&unlinked(visible.trim_matches('\n').trim_end()), limit);
    let ticks = "`".repeat(longest_run(&text, '`').max(2) + 1);
    format!("{ticks}text\n{text}\n{ticks}")
}

/// A code span: a path, a name or a command, at most 200 characters. Inside a table, `|` must be escaped besides.
pub fn code_span(text: &str) -> String {
    let visible: String = text.chars().filter_map(visible_or_space).collect();
    let text = cut(&visible, 200);
    let ticks = "`".repeat(longest_run(&text, '`') + 1);
    let pad = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{ticks}{pad}{text}{pad}{ticks}")
}

fn visible_or_space(c: char) -> Option<char> {
    if c.is_whitespace() {
        return Some(' ');
    }
    (!c.is_control() && !is_invisible(c)).then_some(c)
}

/// Bidirectional controls, zero-width characters and tags can make a text read differently from what it says.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Breaks what a forge would turn into a mention or a reference, even where it looks into code.
fn unlinked(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        out.push(c);
        let next = rest.peek();
        let links = match c {
            '@' => next.is_some_and(|c| c.is_alphanumeric()),
            '#' | '!' => next.is_some_and(char::is_ascii_digit),
            _ => false,
        };
        if links {
            out.push(ZERO_WIDTH_SPACE);
        }
    }
    out
}

/// Breaks addresses and markup as well, for words that stand outside of code.
fn unmarked(text: &str) -> String {
    let text = text.replace("://", &format!(":{ZERO_WIDTH_SPACE}//"));
    text.replace('<', &format!("<{ZERO_WIDTH_SPACE}"))
}

fn cut(text: &str, limit: usize) -> String {
    let n_chars = text.chars().count();
    if n_chars <= limit {
        return text.to_owned();
    }
    let kept: String = text.chars().take(limit.saturating_sub(1)).collect();
    format!("{kept}…")
}

fn longest_run(text: &str, wanted: char) -> usize {
    let (mut longest, mut run) = (0, 0);
    for c in text.chars() {
        run = if c == wanted { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}
