//! A call that a turn must make, or that it must not make: then it never draws the mark of one. Pure.
//!
//! Behind the reasoning come the tokens that open a call; where the names of the tools part, the model chooses one of the
//! tokens that go on with a name. Each opening is the tokens of its whole text, as the model was trained to see them, and
//! not any tokens that spell it. What the model writes behind the name is its own, but it does not end the turn before the
//! call is closed. Behind that it may go on; every other call names one of these tools too.

use std::collections::BTreeSet;

use crate::parse::{Mark, Start, opening};
use crate::query::{Refused, ToolChoice};
use crate::sampler::Among;
use crate::{Span, Tokenizer, Tool};

/// What the template puts between reasoning and a call.
const BEFORE: &str = "\n\n";

/// Follows a turn, token by token.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    /// The tokens of each opening, from behind the reasoning up to and with the end of the name's line. None is the
    /// beginning of another.
    openings: Vec<Vec<u32>>,
    /// Where in each of them the mark is.
    mark_at: usize,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// No call comes. These tokens open one.
    Never(BTreeSet<u32>),
    Reasoning,
    /// What is left of the openings that go on like the turn.
    Opening(Vec<Vec<u32>>),
    Call,
    /// Behind a call.
    Free,
}

impl Demand {
    /// What a choice demands of a turn that begins like this; none if the model decides.
    pub(crate) fn new(
        choice: &ToolChoice,
        tools: &[Tool],
        start: Start,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, Refused> {
        match choice {
            ToolChoice::Auto => return Ok(None),
            ToolChoice::None => {
                let marks = tokenizer.id(Mark::CallOpen.text()).into_iter().collect();
                let (openings, mark_at, state) = (Vec::new(), 0, State::Never(marks));
                return Ok(Some(Self { openings, mark_at, state }));
            }
            ToolChoice::Required | ToolChoice::Named(_) => {}
        }
        let mut openings = Vec::new();
        for tool in tools.iter().filter(|tool| choice.allows(tool)) {
            openings.extend(ids(&tool.name, tokenizer)?);
        }
        let is_mark = |id: &u32| tokenizer.mark(*id) == Some(Mark::CallOpen);
        let first = openings.first().ok_or(Refused::NoTool)?;
        let mark_at = first.iter().position(is_mark).ok_or(Refused::NoTool)?;
        let mut demand = Self { openings, mark_at, state: State::Reasoning };
        demand.state = match start {
            Start::Reasoning => State::Reasoning,
            Start::Content => demand.opened(mark_at),
        };
        Ok(Some(demand))
    }

    /// The tokens that may come next.
    pub(crate) fn among<'a>(&'a self, stop_ids: &'a BTreeSet<u32>) -> Among<'a> {
        match &self.state {
            State::Never(marks) => Among::AllBut(marks),
            State::Reasoning | State::Call => Among::AllBut(stop_ids),
            State::Opening(rests) => {
                Among::Only(rests.iter().filter_map(|rest| rest.first().copied()).collect())
            }
            State::Free => Among::All,
        }
    }

    /// The tokens that come next whatever the model would say.
    pub(crate) fn certain(&self) -> &[u32] {
        let State::Opening(rests) = &self.state else { return &[] };
        let [first, others @ ..] = rests.as_slice() else { return &[] };
        let n_same = |other: &Vec<u32>| first.iter().zip(other).take_while(|(a, b)| a == b).count();
        &first[..others.iter().map(n_same).min().unwrap_or(first.len())]
    }

    /// Takes the next token of the turn.
    pub(crate) fn advance(&mut self, id: u32, mark: Option<Mark>) {
        match (&mut self.state, mark) {
            (State::Reasoning, Some(Mark::ThinkClose)) => self.state = self.opened(0),
            // Some models call without closing their reasoning.
            (State::Reasoning | State::Free, Some(Mark::CallOpen)) => {
                self.state = self.opened(self.mark_at + 1);
            }
            (State::Call, Some(Mark::CallClose)) => self.state = State::Free,
            (State::Opening(rests), _) => {
                rests.retain_mut(|rest| {
                    let is_next = rest.first() == Some(&id);
                    rest.drain(..usize::from(is_next));
                    is_next
                });
                if rests.iter().any(Vec::is_empty) {
                    self.state = State::Call;
                }
            }
            (State::Never(_) | State::Reasoning | State::Call | State::Free, _) => {}
        }
    }

    /// With so many tokens of an opening there.
    fn opened(&self, n_tokens: usize) -> State {
        State::Opening(self.openings.iter().map(|ids| ids[n_tokens..].to_vec()).collect())
    }
}

/// The tokens that open a call of a tool; none if no call can name it.
fn ids(name: &str, tokenizer: &Tokenizer) -> Result<Option<Vec<u32>>, Refused> {
    let Some(text) = opening(name) else { return Ok(None) };
    let before = BEFORE.to_owned() + Mark::CallOpen.text();
    let ids = tokenizer.encode(&[Span::Trusted(&before), Span::Untrusted(&text)]);
    let ids = ids.map_err(|error| Refused::Encode(error.into()))?;
    // A tokenizer may write a name in another way, such as with composed letters.
    Ok((tokenizer.decode(&ids) == before + &text).then_some(ids))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn tokenizer() -> Tokenizer {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        Tokenizer::load(&folder).unwrap()
    }

    fn tools(names: &[&str]) -> Vec<Tool> {
        let tool = |name: &&str| Tool {
            name: (*name).into(),
            description: String::new(),
            parameters: serde_json::json!({}),
        };
        names.iter().map(tool).collect()
    }

    fn demand(
        choice: &ToolChoice,
        names: &[&str],
        start: Start,
    ) -> Result<Option<Demand>, Refused> {
        Demand::new(choice, &tools(names), start, &tokenizer())
    }

    /// The texts of the tokens that may come next, if not all may.
    fn next(tokenizer: &Tokenizer, demand: &Demand) -> Vec<String> {
        let mut ids = match demand.among(&BTreeSet::new()) {
            Among::Only(ids) => ids,
            Among::All => return vec!["anything".into()],
            Among::AllBut(_) => return vec!["no end".into()],
        };
        ids.sort_unstable();
        ids.dedup();
        ids.iter().map(|id| tokenizer.decode(&[*id])).collect()
    }

    #[test]
    fn behind_the_reasoning_comes_a_call_of_one_of_the_tools() {
        let tokenizer = tokenizer();
        let required = ToolChoice::Required;
        let mut demand =
            demand(&required, &["read", "read_all", "grep"], Start::Reasoning).unwrap().unwrap();
        let say = |demand: &mut Demand, text: &str| {
            for id in tokenizer.encode(&[Span::Trusted(text)]).unwrap() {
                demand.advance(id, tokenizer.mark(id));
            }
        };
        say(&mut demand, "Hm. <think> </tool_call>");
        assert_eq!(next(&tokenizer, &demand), ["no end"]);
        assert!(demand.certain().is_empty());
        say(&mut demand, "</think>");
        let certain = demand.certain().to_vec();
        assert_eq!(tokenizer.decode(&certain), "\n\n<tool_call>\n<function=");
        certain.iter().for_each(|id| demand.advance(*id, tokenizer.mark(*id)));
        let choices = next(&tokenizer, &demand);
        assert!(choices.len() == 2 && choices.iter().all(|text| "read grep".contains(text)));
        let Among::Only(ids) = demand.among(&BTreeSet::new()) else { panic!("{demand:?}") };
        let is_r = |id: &&u32| tokenizer.decode(&[**id]).starts_with('r');
        demand.advance(*ids.iter().find(is_r).unwrap(), None);
        while let Some(id) = demand.certain().first().copied() {
            demand.advance(id, None);
        }
        // The shorter name ends where the longer goes on.
        assert_eq!(next(&tokenizer, &demand).len(), 2, "{demand:?}");
    }

    #[test]
    fn every_way_through_an_opening_names_a_tool() {
        let tokenizer = tokenizer();
        let names = ["read", "read_all", "re", "Grep", "a.b-c"];
        for start in [Start::Content, Start::Reasoning] {
            for seed in 0..40 {
                let mut demand = demand(&ToolChoice::Required, &names, start).unwrap().unwrap();
                let mut ids = Vec::new();
                if start == Start::Reasoning {
                    // Without an end of the reasoning.
                    let id = tokenizer.id("<tool_call>").unwrap();
                    ids.push(id);
                    demand.advance(id, Some(Mark::CallOpen));
                }
                while let Among::Only(all) = demand.among(&BTreeSet::new()) {
                    let id = all[(seed * 7 + ids.len()) % all.len()];
                    ids.push(id);
                    demand.advance(id, tokenizer.mark(id));
                }
                let text = tokenizer.decode(&ids);
                let name = text.strip_prefix("<tool_call>\n<function=").unwrap();
                assert!(names.contains(&name.strip_suffix(">\n").unwrap()), "{text}");
            }
        }
    }

    #[test]
    fn a_call_is_closed_before_the_turn_ends_and_the_next_one_names_a_tool_too() {
        let tokenizer = tokenizer();
        let named = ToolChoice::Named("grep".into());
        let mut demand = demand(&named, &["read", "grep"], Start::Content).unwrap().unwrap();
        let certain = demand.certain().to_vec();
        assert_eq!(tokenizer.decode(&certain), "<tool_call>\n<function=grep>\n");
        certain.iter().for_each(|id| demand.advance(*id, tokenizer.mark(*id)));
        assert_eq!(next(&tokenizer, &demand), ["no end"]);
        for mark in [Mark::ThinkOpen, Mark::ThinkClose, Mark::CallOpen] {
            demand.advance(0, Some(mark));
            assert_eq!(next(&tokenizer, &demand), ["no end"]);
        }
        demand.advance(0, Some(Mark::CallClose));
        assert_eq!(next(&tokenizer, &demand), ["anything"]);
        demand.advance(0, Some(Mark::CallOpen));
        assert_eq!(tokenizer.decode(demand.certain()), "\n<function=grep>\n");
    }

    #[test]
    fn a_turn_that_may_call_nothing_opens_no_call() {
        let tokenizer = tokenizer();
        let (open, stops) = (tokenizer.id("<tool_call>").unwrap(), BTreeSet::new());
        for start in [Start::Content, Start::Reasoning] {
            let mut demand = demand(&ToolChoice::None, &["look"], start).unwrap().unwrap();
            for id in tokenizer.encode(&[Span::Trusted("Hm.</think>\n\n</tool_call>")]).unwrap() {
                assert_eq!(demand.among(&stops), Among::AllBut(&BTreeSet::from([open])));
                assert!(demand.certain().is_empty());
                demand.advance(id, tokenizer.mark(id));
            }
        }
    }

    #[test]
    fn what_no_call_can_name_is_refused() {
        let ok = |choice: &ToolChoice, names: &[&str]| match demand(choice, names, Start::Content) {
            Ok(demand) => demand.is_some(),
            Err(Refused::NoTool) => false,
            Err(other) => panic!("{other}"),
        };
        let (auto, required) = (ToolChoice::Auto, ToolChoice::Required);
        let named = |name: &str| ToolChoice::Named(name.into());
        assert!(demand(&auto, &["a"], Start::Content).unwrap().is_none());
        assert!(demand(&auto, &[], Start::Content).unwrap().is_none());
        assert!(
            ok(&required, &["a"]) && ok(&required, &["a>", "b"]) && ok(&named("a"), &["b", "a"])
        );
        assert!(!ok(&required, &[]) && !ok(&named("a"), &["b"]));
        for name in ["", "a>", " a", "a\n", "e\u{301}"] {
            assert!(!ok(&named(name), &[name]), "{name:?}");
        }
        // What steers the model is only text in a name.
        assert!(ok(&named("<think>"), &["<think>"]) == opening("<think>").is_some());
    }
}
