//! From the tokens of a turn to its pieces: text, calls, and what of these ends it.

use crate::parse::Parser;
use crate::{Decoder, Piece, Reply, Stop, Tokenizer, Usage};

/// Takes the tokens of one turn.
pub(super) struct Output<'a> {
    decoder: Decoder<'a>,
    reader: Reader,
    watch: Watch,
}

/// How the text of a turn is read.
pub(super) enum Reader {
    /// As the answer to a conversation.
    Parsed {
        parser: Parser<'static>,
        /// Whether the turn ends with its first call.
        is_one_call: bool,
    },
    /// As it is.
    Raw(String),
}

impl Reader {
    pub(super) fn raw() -> Self {
        Self::Raw(String::new())
    }
}

impl<'a> Output<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, reader: Reader, stop_strings: Vec<String>) -> Self {
        let watch = match reader {
            Reader::Parsed { is_one_call: true, .. } => Watch::new(stop_strings, 1),
            Reader::Parsed { .. } | Reader::Raw(_) => Watch::new(stop_strings, usize::MAX),
        };
        Self { decoder: tokenizer.decoder(), reader, watch }
    }

    /// Whether it was a call that ended the turn.
    pub(super) fn is_ended_by_call(&self) -> bool {
        self.watch.n_calls == self.watch.n_calls_most
    }

    /// Takes a token and hands out what is certain. Whether a stop string or a call has ended the turn.
    pub(super) fn push(&mut self, id: u32, pieces: &mut dyn FnMut(Piece)) -> bool {
        let part = self.decoder.push(id);
        let watch = &mut self.watch;
        match &mut self.reader {
            Reader::Parsed { parser, .. } => {
                parser.text(&part.text, &mut |piece| watch.piece(piece, pieces));
                watch.look_ahead(parser.withheld(), pieces);
                if let Some(mark) = part.mark.filter(|_| !watch.has_hit) {
                    parser.mark(mark, &mut |piece| watch.piece(piece, pieces));
                }
            }
            Reader::Raw(text) => {
                let new = part.text + part.mark.map_or("", |mark| mark.text());
                text.push_str(&new);
                if !new.is_empty() {
                    watch.piece(Piece::Text(new), pieces);
                }
            }
        }
        self.watch.has_hit
    }

    /// Hands out the rest. The whole turn.
    pub(super) fn finish(self, stop: Stop, usage: Usage, pieces: &mut dyn FnMut(Piece)) -> Reply {
        let Self { decoder, reader, mut watch } = self;
        let rest = decoder.finish();
        let usage = Some(usage);
        let watched = &mut |piece| watch.piece(piece, pieces);
        let mut reply = match reader {
            Reader::Parsed { mut parser, .. } => {
                parser.text(&rest, watched);
                parser.finish(stop, usage, watched)
            }
            Reader::Raw(mut content) => {
                content.push_str(&rest);
                if !rest.is_empty() {
                    watched(Piece::Text(rest));
                }
                let (reasoning, calls) = (String::new(), Vec::new());
                Reply { content, reasoning, calls, stop, usage }
            }
        };
        watch.flush(pieces);
        if watch.has_hit {
            // Where the parser left white space out because it is all there is, it stays out.
            if !reply.content.is_empty() {
                reply.content = watch.text;
            }
            reply.calls.truncate(watch.n_calls);
            // It may have been found in what was held back until the end.
            reply.stop = Stop::End;
        }
        reply
    }
}

/// Looks for stop strings in the answer's text and holds back what may be the beginning of one. And counts calls.
struct Watch {
    stop_strings: Vec<String>,
    n_calls_most: usize,
    held: String,
    has_hit: bool,
    /// What was handed out.
    text: String,
    n_calls: usize,
}

impl Watch {
    fn new(mut stop_strings: Vec<String>, n_calls_most: usize) -> Self {
        stop_strings.retain(|each| !each.is_empty());
        let (held, text) = (String::new(), String::new());
        Self { stop_strings, n_calls_most, held, has_hit: false, text, n_calls: 0 }
    }

    fn piece(&mut self, piece: Piece, pieces: &mut dyn FnMut(Piece)) {
        if self.has_hit {
            return;
        }
        match piece {
            Piece::Text(text) => self.push(&text, pieces),
            Piece::Reasoning(_) => pieces(piece),
            Piece::Call(_) => {
                // No stop string goes on behind a call.
                self.flush(pieces);
                self.n_calls += 1;
                self.has_hit = self.n_calls == self.n_calls_most;
                pieces(piece);
            }
        }
    }

    /// Looks at newlines that belong to the text only if more of it comes: a stop string that they end is hit already.
    fn look_ahead(&mut self, withheld: &str, pieces: &mut dyn FnMut(Piece)) {
        if self.has_hit || withheld.is_empty() || self.stop_strings.is_empty() {
            return;
        }
        if let Some(at) = self.find(&(self.held.clone() + withheld)) {
            self.hit(at, pieces);
        }
    }

    /// Where the first stop string begins.
    fn find(&self, text: &str) -> Option<usize> {
        self.stop_strings.iter().filter_map(|each| text.find(each.as_str())).min()
    }

    fn hit(&mut self, at: usize, pieces: &mut dyn FnMut(Piece)) {
        self.held.truncate(at);
        self.flush(pieces);
        self.has_hit = true;
    }

    fn push(&mut self, text: &str, pieces: &mut dyn FnMut(Piece)) {
        self.held.push_str(text);
        if let Some(at) = self.find(&self.held) {
            self.hit(at, pieces);
            return;
        }
        let is_open = |at: &usize| {
            let end = &self.held[*at..];
            self.stop_strings.iter().any(|each| each.starts_with(end))
        };
        let mut starts = self.held.char_indices().map(|(at, _)| at);
        let n_certain = starts.find(is_open).unwrap_or(self.held.len());
        let rest = self.held.split_off(n_certain);
        self.flush(pieces);
        self.held = rest;
    }

    fn flush(&mut self, pieces: &mut dyn FnMut(Piece)) {
        let text = std::mem::take(&mut self.held);
        if !text.is_empty() {
            self.text.push_str(&text);
            pieces(Piece::Text(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that come one by one, and what is handed out for each and at the end.
    fn check(stop_strings: &[&str], texts: &[&str], expected: &[&str], has_hit: bool) {
        let mut watch = Watch::new(stop_strings.iter().map(|&each| each.into()).collect(), 9);
        let mut out: Vec<String> = Vec::new();
        for text in texts.iter().map(Some).chain([None]) {
            let mut new = String::new();
            let mut take = |piece| match piece {
                Piece::Text(text) => new.push_str(&text),
                Piece::Reasoning(_) | Piece::Call(_) => panic!("only texts were given"),
            };
            match text {
                Some(&text) => watch.piece(Piece::Text(text.into()), &mut take),
                None => watch.flush(&mut take),
            }
            out.push(new);
        }
        assert_eq!(
            (out, watch.has_hit),
            (expected.iter().map(|&each| each.into()).collect(), has_hit)
        );
    }

    #[test]
    fn stop_strings_are_found_across_borders_and_never_handed_out() {
        check(&[], &["a", "b"], &["a", "b", ""], false);
        check(&[""], &["a"], &["a", ""], false);
        check(&["END"], &["aENDb", "c"], &["a", "", ""], true);
        check(&["END"], &["aE", "N", "Db"], &["a", "", "", ""], true);
        check(&["END"], &["aE", "N", "b"], &["a", "", "ENb", ""], false);
        check(&["END"], &["aE", "N"], &["a", "", "EN"], false);
        check(&["aab"], &["aa", "ab"], &["", "a", ""], true);
        // The one that appears first, whichever is listed first.
        check(&["bc", "ab"], &["xabc"], &["x", ""], true);
        check(&["abcd", "b"], &["ab"], &["a", ""], true);
        check(&["\u{1f438}"], &["ü", "\u{1f438}ü"], &["ü", "", ""], true);
    }
}
