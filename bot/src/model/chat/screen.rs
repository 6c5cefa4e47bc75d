//! What is shown of an answer. Pure: pieces in, harmless text out.
//!
//! The model's words pass through `reply::lines`, so nothing in them moves the cursor or changes a colour. Every piece
//! that is dimmed ends its dimming itself: an answer may be stopped behind any of them.

use std::time::Duration;

use engine::{Finished, Piece, Stop};

use crate::reply;

/// Where the answer is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// To a person: reasoning is dimmed.
    Terminal,
    /// To a file or a program: reasoning stands between lines that say so.
    Plain,
}

/// What becomes of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reasoning {
    Shown,
    Hidden,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Nothing was shown yet.
    None,
    Reasoning,
    /// Reasoning that is not shown.
    Silence,
    Answer,
}

/// One answer as it is shown.
pub(super) struct Screen {
    style: Style,
    reasoning: Reasoning,
    part: Part,
    /// Whether only line ends have come of the part, which are not shown.
    is_blank: bool,
    is_line_open: bool,
    /// The words of the answer, as the model wrote them.
    answer: String,
}

impl Screen {
    pub(super) fn new(style: Style, reasoning: Reasoning) -> Self {
        let answer = String::new();
        Self { style, reasoning, part: Part::None, is_blank: true, is_line_open: false, answer }
    }

    /// What to print for a piece.
    pub(super) fn piece(&mut self, piece: Piece) -> String {
        match (piece, self.reasoning) {
            (Piece::Reasoning(text), Reasoning::Shown) => {
                let opening = self.enter(Part::Reasoning);
                opening + &self.words(&text)
            }
            (Piece::Reasoning(_), Reasoning::Hidden) => self.enter(Part::Silence),
            (Piece::Text(text), _) => {
                self.answer.push_str(&text);
                let opening = self.enter(Part::Answer);
                opening + &self.words(&text)
            }
            (Piece::Call(call), _) => {
                let opening = self.enter(Part::Answer) + self.close_line();
                let name = reply::plain(&call.name);
                opening
                    + &self.words(&format!("[a call of `{name}`, but there are no tools here]\n"))
            }
        }
    }

    /// What to print behind the last piece.
    pub(super) fn end(&mut self) -> String {
        self.close_line().to_owned()
    }

    /// The words of the answer, as the model wrote them.
    pub(super) fn into_answer(self) -> String {
        self.answer
    }

    /// Ends the part before, if another begins.
    fn enter(&mut self, part: Part) -> String {
        if self.part == part {
            return String::new();
        }
        let before = std::mem::replace(&mut self.part, part);
        self.is_blank = true;
        let line = self.close_line();
        match (self.style, part, before) {
            (Style::Terminal, Part::Silence, _) => dimmed("[thinking]\n"),
            (Style::Terminal, Part::Answer, Part::Reasoning) => format!("{line}\n"),
            (Style::Plain, Part::Reasoning, _) => format!("{line}[reasoning]\n"),
            (Style::Plain, Part::Answer, Part::Reasoning) => format!("{line}[answer]\n"),
            (Style::Terminal | Style::Plain, _, _) => line.to_owned(),
        }
    }

    fn words(&mut self, text: &str) -> String {
        let text = if self.is_blank { text.trim_start_matches('\n') } else { text };
        if text.is_empty() {
            return String::new();
        }
        self.is_blank = false;
        self.is_line_open = !text.ends_with('\n');
        let text = reply::lines(text);
        match (self.style, self.part) {
            (Style::Terminal, Part::Reasoning) => dimmed(&text),
            (Style::Terminal | Style::Plain, _) => text,
        }
    }

    fn close_line(&mut self) -> &'static str {
        if std::mem::take(&mut self.is_line_open) { "\n" } else { "" }
    }
}

/// Text in half the brightness, on terminals that have it.
pub(super) fn dimmed(text: &str) -> String {
    format!("\x1b[2m{text}\x1b[22m")
}

/// A line about a turn: what it cost, and why it is cut if it is.
pub(super) fn figures(finished: &Finished, max_tokens: u32) -> String {
    let Finished { reply, timings, .. } = finished;
    let usage = reply.usage.unwrap_or_default();
    let n_answer = usize::try_from(usage.completion_tokens).unwrap_or(usize::MAX);
    // The first token comes with the prompt.
    let answer = rate(n_answer.saturating_sub(1), timings.decode);
    let prompt = rate(timings.n_prefilled, timings.prefill);
    let cut = match reply.stop {
        Stop::End => "",
        Stop::Length if usage.completion_tokens >= u64::from(max_tokens) => {
            " · cut: --max-tokens allows no more"
        }
        Stop::Length => " · cut: the context is full; /clear starts over",
    };
    format!(
        "answer {n_answer} tokens{answer} · prompt {} tokens, {} reused, {} read{prompt}{cut}\n",
        usage.prompt_tokens, timings.n_cached, timings.n_prefilled
    )
}

/// Nothing where there is nothing to measure.
fn rate(n: usize, time: Duration) -> String {
    if n == 0 || time.is_zero() {
        return String::new();
    }
    format!(" at {:.1}/s", engine::measure::per_second(n, time))
}

#[cfg(test)]
mod tests {
    use engine::{Reply, Timings, ToolCall, Usage};

    use super::*;

    fn thought(text: &str) -> Piece {
        Piece::Reasoning(text.into())
    }

    fn said(text: &str) -> Piece {
        Piece::Text(text.into())
    }

    fn check(style: Style, reasoning: Reasoning, pieces: &[Piece], expected: &str) {
        let mut screen = Screen::new(style, reasoning);
        let mut shown: String = pieces.iter().map(|piece| screen.piece(piece.clone())).collect();
        shown.push_str(&screen.end());
        assert_eq!(shown, expected, "{style:?} {reasoning:?} {pieces:?}");
    }

    #[test]
    fn reasoning_is_told_apart_and_every_answer_ends_its_line() {
        let pieces =
            [thought("\n"), thought("Hm"), thought("m.\n"), said("\n\n"), said("Yes\n\n no")];
        let plain = "[reasoning]\nHmm.\n[answer]\nYes\n\n no\n";
        check(Style::Plain, Reasoning::Shown, &pieces, plain);
        check(Style::Plain, Reasoning::Hidden, &pieces, "Yes\n\n no\n");
        let terminal = "\x1b[2mHm\x1b[22m\x1b[2mm.\n\x1b[22m\nYes\n\n no\n";
        check(Style::Terminal, Reasoning::Shown, &pieces, terminal);
        let hidden = "\x1b[2m[thinking]\n\x1b[22mYes\n\n no\n";
        check(Style::Terminal, Reasoning::Hidden, &pieces, hidden);
        check(Style::Plain, Reasoning::Shown, &[], "");
        check(Style::Plain, Reasoning::Shown, &[said("a\n")], "a\n");
        check(Style::Plain, Reasoning::Shown, &[thought("a")], "[reasoning]\na\n");
    }

    #[test]
    fn what_a_model_says_steers_no_terminal() {
        let bad = "\x1b[2J\u{9b}1m\r\u{202e}\u{7}";
        let call =
            Piece::Call(ToolCall { id: "1".into(), name: bad.into(), arguments: bad.into() });
        for style in [Style::Terminal, Style::Plain] {
            let mut screen = Screen::new(style, Reasoning::Shown);
            for piece in [thought(bad), said(bad), call.clone()] {
                let shown = screen.piece(piece).replace("\x1b[2m", "").replace("\x1b[22m", "");
                let is_bad = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
                assert!(!shown.contains(is_bad), "{shown:?}");
            }
            assert_eq!(screen.into_answer(), bad);
        }
    }

    #[test]
    fn a_line_says_what_a_turn_cost_and_why_it_is_cut() {
        let finished = |stop, completion_tokens| Finished {
            reply: Reply {
                content: String::new(),
                reasoning: String::new(),
                calls: Vec::new(),
                stop,
                usage: Some(Usage { prompt_tokens: 120, completion_tokens }),
            },
            seed: 0,
            timings: Timings {
                prefill: Duration::from_millis(500),
                decode: Duration::from_secs(2),
                n_cached: 100,
                n_prefilled: 20,
                ..Timings::default()
            },
        };
        for (stop, n, expected) in [
            (
                Stop::End,
                21,
                "answer 21 tokens at 10.0/s · prompt 120 tokens, 100 reused, 20 read at 40.0/s\n",
            ),
            (Stop::End, 1, "answer 1 tokens · prompt 120 tokens, 100 reused, 20 read at 40.0/s\n"),
            (
                Stop::Length,
                50,
                "answer 50 tokens at 24.5/s · prompt 120 tokens, 100 reused, 20 read at 40.0/s · cut: --max-tokens allows no more\n",
            ),
            (
                Stop::Length,
                21,
                "answer 21 tokens at 10.0/s · prompt 120 tokens, 100 reused, 20 read at 40.0/s · cut: the context is full; /clear starts over\n",
            ),
        ] {
            assert_eq!(figures(&finished(stop, n), 50), expected);
        }
    }
}
