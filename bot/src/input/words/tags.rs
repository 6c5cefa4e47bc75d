//! Tags of HTML and images in a page's text: what stands in them no reader sees. Of a tag that pages know, its name is
//! kept; any other tag, which a page drops whole, is shown as `<…>`, and an image as `[image]`.
//!
//! It does not parse HTML: in doubt whether a page would show something, it is taken for hidden.

/// Names of tags that say how a text looks, and nothing else.
const KNOWN: [&str; 62] = [
    "a",
    "abbr",
    "b",
    "blockquote",
    "br",
    "caption",
    "center",
    "cite",
    "code",
    "col",
    "colgroup",
    "dd",
    "del",
    "details",
    "dfn",
    "div",
    "dl",
    "dt",
    "em",
    "figcaption",
    "figure",
    "font",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "i",
    "img",
    "ins",
    "kbd",
    "li",
    "mark",
    "ol",
    "p",
    "picture",
    "pre",
    "q",
    "s",
    "samp",
    "script",
    "small",
    "span",
    "strike",
    "strong",
    "style",
    "sub",
    "summary",
    "sup",
    "table",
    "tbody",
    "td",
    "textarea",
    "tfoot",
    "th",
    "thead",
    "tr",
    "tt",
    "u",
    "ul",
];

/// A tag at the beginning of a text.
pub(super) struct Tag<'t> {
    /// What is shown of it.
    pub(super) shown: String,
    /// What follows it.
    pub(super) rest: &'t str,
    /// Whether a page takes it for HTML whatever it holds.
    pub(super) is_known: bool,
}

/// Reads a tag. `is_html` tells whether HTML has begun in this paragraph, where anything between `<` and `>` is a tag.
pub(super) fn tag(text: &str, is_html: bool) -> Option<Tag<'_>> {
    let inner = text.strip_prefix('<')?;
    let (slash, inner) = inner.strip_prefix('/').map_or(("", inner), |inner| ("/", inner));
    let is_name = |c: char| match is_html {
        true => !c.is_ascii_whitespace() && !matches!(c, '/' | '>'),
        false => c.is_ascii_alphanumeric() || c == '-',
    };
    let (name, attributes) = inner.split_at(inner.find(|c| !is_name(c)).unwrap_or(inner.len()));
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    // An address between these marks is shown: `<https://x>`, `<ann@example.org>`.
    if attributes.starts_with([':', '@', '.', '+', '_']) && !is_html {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let is_known = KNOWN.contains(&name.as_str());
    let length =
        if is_known || is_html { end_of_any(attributes) } else { end_of_strict(attributes) }?;
    let shown = if is_known { format!("<{slash}{name}>") } else { "<…>".to_owned() };
    Some(Tag { shown, rest: &attributes[length..], is_known })
}

/// The length up to and with the next `>` outside of quotes, in the same paragraph; failing that, up to its next `>`.
fn end_of_any(text: &str) -> Option<usize> {
    if !text.starts_with(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>')) {
        return None;
    }
    let text = &text[..text.find("\n\n").unwrap_or(text.len())];
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '>') => return Some(at + 1),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (Some(_) | None, _) => {}
        }
    }
    text.find('>').map(|at| at + 1)
}

/// The length of attributes that CommonMark allows, with the `>` behind them.
fn end_of_strict(text: &str) -> Option<usize> {
    let mut rest = text;
    loop {
        let trimmed = rest.trim_start_matches([' ', '\t', '\n']);
        if let Some(behind) = trimmed.strip_prefix("/>").or(trimmed.strip_prefix('>')) {
            return Some(text.len() - behind.len());
        }
        let is_first = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | ':');
        let space = &rest[..rest.len() - trimmed.len()];
        if space.is_empty() || space.contains("\n\n") || !trimmed.starts_with(is_first) {
            return None;
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '-');
        rest = trimmed.trim_start_matches(is_name);
        if let Some(value) = rest.trim_start().strip_prefix('=') {
            let value = value.trim_start();
            rest = match value.chars().next()? {
                quote @ ('"' | '\'') => value[1..].split_once(quote)?.1,
                _ => {
                    value.trim_start_matches(|c: char| !c.is_whitespace() && !"\"'=<>`".contains(c))
                }
            };
        }
    }
}

/// What follows an image that a text begins with. `has_definitions` tells whether the page defines links, by whose name
/// alone an image may be meant.
pub(super) fn behind_image(text: &str, has_definitions: bool) -> Option<&str> {
    let inner = text.strip_prefix("![")?;
    let inner = &inner[..inner.find("\n\n").unwrap_or(inner.len())];
    let behind = &text[2 + closing(inner, '[', ']')?..];
    if let Some(target) = behind.strip_prefix('(') {
        let target = &target[..target.find("\n\n").unwrap_or(target.len())];
        return closing(target, '(', ')').map(|length| &behind[1 + length..]);
    }
    if let Some(label) = behind.strip_prefix('[') {
        return label.split_once(']').map(|(_, behind)| behind);
    }
    has_definitions.then_some(behind)
}

/// The length up to and with the mark that closes what is open before the text.
fn closing(text: &str, open: char, close: char) -> Option<usize> {
    let (mut depth, mut is_escaped) = (1, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == open => depth += 1,
            _ if c == close => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + c.len_utf8());
                }
            }
            _ => {}
        }
    }
    None
}
