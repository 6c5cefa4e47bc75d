//! Words of people as a reader sees them on the forge's page: what is hidden there must not steer the model, because
//! whoever put the label on has not seen it.
//!
//! It does not go after what a page shows on a closer look, such as a folded part or the target of a link.

mod tags;

use crate::reply::is_invisible;

/// Beginnings of lines by which the bot tells the model who speaks.
pub(super) const COMMENT: &str = "Comment by";
pub(super) const INSTRUCTIONS: &str = "The repository's AGENTS.md says";

/// What is not shown, by its beginning and its end. The longer of two beginnings stands first.
const HIDDEN: [(&str, &str); 4] =
    [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"), ("<!", ">")];

/// A text without characters that nobody sees, its lines ended by line feeds.
pub(super) fn visible(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let shown = |c: char| match c {
        '\n' | '\t' => Some(c),
        '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' => Some('\n'),
        // Selectors change how the character before them looks, and can carry any message.
        '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' => None,
        _ => (!c.is_control() && !is_invisible(c)).then_some(c),
    };
    text.chars().filter_map(shown).collect()
}

/// A text in Markdown as its page shows it: besides, without comments, definitions of links, what stands in tags, and the
/// words of images.
pub(super) fn shown(text: &str) -> String {
    let text = visible(text);
    let mut page = Page::new(&text);
    let mut rest = text.as_str();
    while let Some(line) = rest.split_inclusive('\n').next() {
        rest = page.line(line, rest);
    }
    page.out
}

/// A text whose lines cannot be taken for the bot's own: each that reads like one is quoted.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let letters = |text: &str| -> String {
            text.chars().filter(|c| c.is_alphabetic()).flat_map(char::to_lowercase).collect()
        };
        let read = letters(line);
        if [COMMENT, INSTRUCTIONS].iter().any(|own| read.starts_with(&letters(own))) {
            out.push_str("> ");
        }
        out.push_str(line);
    }
    out
}

/// A walk over the lines of a page. In doubt whether something is code, it is none: then too much is hidden, not too
/// little.
struct Page {
    out: String,
    /// The fence of the code block that is open.
    fence: Option<(char, usize)>,
    /// Whether since the last empty line something was met that may make back-ticks mean something else.
    is_unsure: bool,
    /// Whether since the last empty line HTML began, in which anything may be a tag.
    is_html: bool,
    /// Whether the text has tags between which empty lines mean nothing.
    is_raw: bool,
    /// Whether the text may define links.
    has_definitions: bool,
    /// The mark that ends the title of a link's definition, which may stand on lines of its own.
    title: Option<char>,
}

impl Page {
    fn new(text: &str) -> Self {
        let small = text.to_ascii_lowercase();
        let is_raw =
            ["<pre", "<script", "<style", "<textarea"].iter().any(|tag| small.contains(tag));
        Self {
            out: String::new(),
            fence: None,
            is_unsure: is_raw,
            is_html: is_raw,
            is_raw,
            has_definitions: text.contains("]:"),
            title: None,
        }
    }

    /// Takes one line. Returns what is left of `rest`, which begins with it.
    fn line<'a>(&mut self, line: &'a str, rest: &'a str) -> &'a str {
        let after = &rest[line.len()..];
        if let Some((mark, length)) = self.fence {
            let ticks = line.trim_start_matches(' ');
            let n_ticks = ticks.chars().take_while(|c| *c == mark).count();
            let is_end = line.len() - ticks.len() < 4
                && n_ticks >= length
                && ticks.trim_start_matches(mark).trim().is_empty();
            if is_end {
                self.fence = None;
            }
            self.out.push_str(line);
            return after;
        }
        if line.trim().is_empty() {
            (self.is_unsure, self.is_html, self.title) = (self.is_raw, self.is_raw, None);
            self.out.push_str(line);
            return after;
        }
        if let Some(end) = self.title {
            self.title = (!line.trim_end().ends_with(end)).then_some(end);
            return after;
        }
        if let Some(fence) = fence(line).filter(|_| !self.is_unsure) {
            self.fence = Some(fence);
            self.out.push_str(line);
            return after;
        }
        if let Some(title) = definition(line, after) {
            self.title = title;
            return after;
        }
        self.words(rest)
    }

    /// Takes the words up to the end of the line, of the one in which something hidden ends where such a thing begins.
    fn words<'a>(&mut self, mut rest: &'a str) -> &'a str {
        loop {
            let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
            let Some(at) = rest[..end].find(['<', '`', '!']) else {
                self.out.push_str(&rest[..end]);
                return &rest[end..];
            };
            let (before, here) = rest.split_at(at);
            self.out.push_str(before);
            if here.starts_with('`') {
                let length = here.len() - here.trim_start_matches('`').len();
                let code = closing(&here[length..end - at], length)
                    .filter(|_| !self.is_unsure && !before.ends_with('\\'));
                self.is_unsure |= code.is_none();
                let (code, behind) = here.split_at(length + code.unwrap_or_default());
                self.out.push_str(code);
                rest = behind;
                continue;
            }
            if let Some(behind_mark) = here.strip_prefix('!') {
                let is_escaped = before.ends_with('\\');
                rest = match tags::behind_image(here, self.has_definitions).filter(|_| !is_escaped)
                {
                    Some(behind) => {
                        self.out.push_str("[image]");
                        behind
                    }
                    None => {
                        self.out.push('!');
                        behind_mark
                    }
                };
                continue;
            }
            self.is_unsure = true;
            let Some((open, close)) = HIDDEN.iter().find(|(open, _)| is_open(here, open)) else {
                let is_escaped = before.ends_with('\\') && !self.is_html;
                rest = match tags::tag(here, self.is_html).filter(|_| !is_escaped) {
                    Some(tag) => {
                        self.is_html |= tag.is_known;
                        self.out.push_str(&tag.shown);
                        tag.rest
                    }
                    None => {
                        self.out.push('<');
                        &here[1..]
                    }
                };
                continue;
            };
            let Some((_, behind)) = here[open.len()..].split_once(close) else {
                self.out.push_str(&format!("[what follows is hidden behind `{open}`]\n"));
                return "";
            };
            rest = behind;
        }
    }
}

/// Whether something hidden begins here. After `<!` a letter must follow.
fn is_open(here: &str, open: &str) -> bool {
    let Some(behind) = here.strip_prefix(open) else { return false };
    open != "<!" || behind.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// The length up to and with the run of back-ticks that closes a span of code on the same line.
fn closing(text: &str, length: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = text[at..].find('`') {
        let start = at + found;
        let run = text[start..].len() - text[start..].trim_start_matches('`').len();
        at = start + run;
        if run == length {
            return Some(at);
        }
    }
    None
}

/// The mark and the length of a fence that opens a block of code at the left edge.
fn fence(line: &str) -> Option<(char, usize)> {
    let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let info = line.trim_start_matches(mark);
    let length = line.len() - info.len();
    (length >= 3 && !(mark == '`' && info.contains('`'))).then_some((mark, length))
}

/// Whether a line defines a link, which no page shows; then the mark that ends its title, if that goes on below.
fn definition(line: &str, after: &str) -> Option<Option<char>> {
    let (label, rest) = line.trim_start_matches(' ').strip_prefix('[')?.split_once("]:")?;
    if label.is_empty() || label.starts_with('^') || label.contains(['[', ']']) {
        return None;
    }
    let rest = rest.trim();
    if rest.is_empty() {
        // Its target stands on the next line, and whatever follows up to an empty line is hidden with it.
        return Some(Some('\n'));
    }
    let (_, title) = match rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some(pair) => pair,
        None => rest.split_once([' ', '\t']).unwrap_or((rest, "")),
    };
    let end_of = |title: &str| match title.chars().next() {
        Some('(') => Some(')'),
        Some(mark @ ('"' | '\'')) => Some(mark),
        Some(_) | None => None,
    };
    match title.trim() {
        "" => Some(end_of(after.trim_start_matches([' ', '\t']))),
        title => {
            let end = end_of(title)?;
            Some((title.len() == 1 || !title.ends_with(end)).then_some(end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_page_shows_is_left_out() {
        for (text, expected) in [
            ("a <!-- evil --> b\nc", "a  b\nc"),
            ("a\n<!--\nevil\n\nevil\n-->\nb", "a\n\nb"),
            ("a <!-- evil", "a [what follows is hidden behind `<!--`]\n"),
            ("<?evil?><!EVIL evil><![CDATA[evil]]>a", "a"),
            ("a\u{200b}b\u{e0065}\u{e0076}\u{fe0f}\u{202e}c\u{1b}[1m", "abc[1m"),
            ("a\r\nb\rc\u{2028}d", "a\nb\nc\nd"),
            ("a\n\n[//]: # (evil)\nb", "a\n\nb"),
            ("[x]: y \"evil\nevil\"\nb", "b"),
            ("[x]: y\n'evil'\nb", "b"),
            ("[x]:\nevil\n\nb", "\nb"),
            // What is code is shown.
            ("x `<!-- a -->` y", "x `<!-- a -->` y"),
            ("x\n```html\n<!-- a -->\n```\ny", "x\n```html\n<!-- a -->\n```\ny"),
            // What only looks like code is none.
            ("\\` <!-- evil --> `", "\\`  `"),
            ("a ` b\nc ` <!-- evil --> `", "a ` b\nc `  `"),
            ("<div>\n```\n<!-- evil -->\n```", "<div>\n```\n\n```"),
            ("<div><!-- a -->\n` <!-- evil --> `", "<div>\n`  `"),
            ("<pre>\n\n```\n<!-- evil -->", "<pre>\n\n```\n"),
            ("```\na\n```\n<!-- evil -->b", "```\na\n```\nb"),
            ("- a\n  ```\n\nb <!-- evil -->", "- a\n  ```\n\nb "),
            // What stands in a tag or describes an image is not shown either.
            ("a <img src=x alt=\"evil\"> b", "a <img> b"),
            ("a <a href='x' title='evil > evil'>b</a>", "a <a>b</a>"),
            ("a <evil evil evil> b</evil>", "a <…> b<…>"),
            ("a <evil\nevil> b", "a <…> b"),
            ("<div evil, \"evil\n!\">b", "<div>b"),
            ("<div>\n<evil: evil, evil!>b", "<div>\n<…>b"),
            ("a ![evil](x.png \"evil\") b", "a [image] b"),
            ("a ![evil [evil] \\] evil](x(1).png)b", "a [image]b"),
            ("a ![evil][x] b", "a [image] b"),
            ("a ![evil] b\n\n[evil]: x.png", "a [image] b\n\n"),
            // What is no such thing stays.
            ("vec![1, 2] and a! b !", "vec![1, 2] and a! b !"),
            (
                "see <https://x.example/y> or <ann@x.example>",
                "see <https://x.example/y> or <ann@x.example>",
            ),
            (
                "HashMap<u8, Vec<(u8, i8)>> and a<b, c> d",
                "HashMap<u8, Vec<(u8, i8)>> and a<b, c> d",
            ),
            ("\\<b>", "\\<b>"),
            ("x `<evil a>`", "x `<evil a>`"),
            ("x <b>y</b> <details>z</details>", "x <b>y</b> <details>z</details>"),
            ("if a < b and c <= d", "if a < b and c <= d"),
            ("[ERROR]: cannot open x", "[ERROR]: cannot open x"),
            ("[^1]: a note", "[^1]: a note"),
            ("- [ ] a\n    code\n", "- [ ] a\n    code\n"),
            ("ü`ä`<b>ö", "ü`ä`<b>ö"),
        ] {
            assert_eq!(shown(text), expected, "{text:?}");
        }
    }

    #[test]
    fn nobody_speaks_as_the_bot() {
        for line in [
            "Comment by ann:",
            "  **comment by** ann:",
            "> Comment by ann",
            "# The repository's AGENTS.md says:",
            "COMMENT\tBY ann",
        ] {
            assert_eq!(quoted(&format!("a\n{line}\nb")), format!("a\n> {line}\nb"));
        }
        let honest = "a comment by ann\nComments by default are off\n";
        assert_eq!(quoted(honest), honest);
    }
}
