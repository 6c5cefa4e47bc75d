//! Words that are not the bot's own, made harmless: they ping nobody, close nothing, hide nothing and end no block.

const ZERO_WIDTH_SPACE: char = '\u{200b}';
/// Characters of a code span at most.
const SPAN_CHARS: usize = 200;
/// Folders of a forge's addresses that a number follows: with it, an address is a reference.
const NUMBERED: [&str; 5] = ["issues", "pulls", "pull", "merge_requests", "work_items"];

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

/// A code span of the bot's or an operator's words: a branch, a command, at most 200 characters. It can be copied as it is.
/// Inside a table, `|` must be escaped besides.
pub fn code_span(text: &str) -> String {
    span(text.chars().filter_map(visible_or_space).collect())
}

/// A code span of a path that somebody else chose: the same, and nothing in it is a mention or a reference even for a forge
/// that looks into code.
pub fn path_span(text: &str) -> String {
    let visible: String = text.chars().filter_map(visible_or_space).collect();
    span(unlinked(&visible))
}

fn span(text: String) -> String {
    let text = cut(&text, SPAN_CHARS);
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

/// Bidirectional controls, zero-width characters and tags can make a text read differently from what it says. These are
/// the characters that Unicode calls ignorable, but for the selectors that make a sign an emoji, and the marks of
/// interlinear notes.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Breaks what a forge would turn into a mention or a reference, even where it looks into code: `@name`, `#1` with or
/// without a repository before it, `!1`, `GH-1`, and the address of an issue or a pull request.
fn unlinked(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        out.push(c);
        let is_number = rest.peek().is_some_and(char::is_ascii_digit);
        let links = match c {
            // Logins may begin with a sign, and marks may stand before them.
            '@' => rest.peek().is_some_and(|next| !next.is_whitespace()),
            '#' | '!' => is_number,
            '-' => is_number && ends_with(&out, "gh-"),
            '/' => {
                is_number && NUMBERED.iter().any(|folder| ends_with(&out, &format!("/{folder}/")))
            }
            _ => false,
        };
        if links {
            out.push(ZERO_WIDTH_SPACE);
        }
    }
    out
}

/// Whether a text ends like this, in upper or lower case.
fn ends_with(text: &str, end: &str) -> bool {
    let start = text.len().saturating_sub(end.len());
    text.get(start..).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
}

/// Breaks addresses, markup and the names of characters as well, for words that stand outside of code.
fn unmarked(text: &str) -> String {
    let text = text.replace("://", &format!(":{ZERO_WIDTH_SPACE}//"));
    let text = text.replace('<', &format!("<{ZERO_WIDTH_SPACE}"));
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        out.push(c);
        if c == '&' && rest.peek().is_some_and(|next| *next == '#' || next.is_ascii_alphabetic()) {
            out.push(ZERO_WIDTH_SPACE);
        }
    }
    out
}

fn cut(text: &str, limit: usize) -> String {
    let n_chars = text.chars().count();
    if n_chars <= limit {
        return text.to_owned();
    }
    let Some(n_kept) = limit.checked_sub(1) else { return String::new() };
    let kept: String = text.chars().take(n_kept).collect();
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
