//! At which tokens of a sequence its states are kept. Pure.

/// Tokens between two marks at messages, at least: to compute some hundred again costs little more than a mark.
const APART: usize = 1024;
/// Tokens between two marks, at most.
const RING: usize = 4096;
/// Tokens that a generation prompt has at most. A mark before it serves whoever asks the same again, and whoever goes on
/// with a turn that begins differently.
const GENERATION_PROMPT: usize = 16;
/// The last marks of a sequence are where its next turn goes on.
const N_LAST: usize = 4;

/// The places for marks in a prompt whose first `n_known` tokens are there, in order: where its first message ends, which is
/// often the same in many conversations; where the last one ends, or just before the prompt's end if it has no messages;
/// and in between at messages, not too near and not too far apart. `message` is the token that begins a message.
pub(crate) fn places(prompt: &[u32], n_known: usize, message: Option<u32>) -> Vec<usize> {
    let end = prompt.len().saturating_sub(1);
    let begins = |at: &usize| Some(prompt[*at]) == message;
    let all: Vec<usize> = (1..=end).filter(begins).collect();
    let last = match all.last() {
        Some(last) if end - last < GENERATION_PROMPT => *last,
        Some(_) | None => end,
    };
    let mut places = Vec::new();
    let mut before = n_known;
    for (number, at) in all.iter().copied().chain([last]).enumerate() {
        if at <= before || at > last {
            continue;
        }
        while at - before > RING {
            before += RING;
            places.push(before);
        }
        if number == 0 || at == last || at - before >= APART {
            places.push(at);
            before = at;
        }
    }
    places
}

/// The mark that is missed least: of all but the first and the last ones, that which is nearest to the one before it.
/// `tokens` are where the marks are, at least one.
pub(crate) fn least_needed(tokens: &[usize]) -> usize {
    let last = tokens.len().saturating_sub(N_LAST);
    let gap = |at: &usize| tokens[*at] - tokens[at - 1];
    (1..last).min_by_key(gap).unwrap_or_else(|| tokens.len().saturating_sub(1).min(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prompt of so many tokens whose messages begin at these places.
    fn check(n_tokens: usize, messages: &[usize], n_known: usize, expected: &[usize]) {
        let mut prompt = vec![0; n_tokens];
        messages.iter().for_each(|at| prompt[*at] = 9);
        assert_eq!(places(&prompt, n_known, Some(9)), expected, "{messages:?} {n_known}");
    }

    #[test]
    fn marks_are_at_the_first_and_last_message_and_apart_in_between() {
        check(100, &[0, 40, 60, 95], 0, &[40, 95]);
        check(100, &[0, 40, 60, 95], 40, &[95]);
        check(100, &[0, 40, 60, 95], 95, &[]);
        check(100, &[0, 95], 0, &[95]);
        // Without a generation prompt, and without messages at all.
        check(100, &[0, 40], 0, &[40, 99]);
        check(100, &[], 0, &[99]);
        check(1, &[0], 0, &[]);
        check(0, &[], 0, &[]);
        // Some messages of a long conversation.
        check(3000, &[0, 500, 1000, 1600, 2900, 2995], 0, &[500, 1600, 2900, 2995]);
        check(3000, &[0, 500, 1000, 1600, 2900, 2995], 1000, &[2900, 2995]);
        // A long message.
        check(9000, &[0, 8995], 0, &[4096, 8192, 8995]);
        check(9000, &[0, 100, 8995], 100, &[4196, 8292, 8995]);
        assert_eq!(places(&[1, 2, 3], 0, None), [2]);
    }

    #[test]
    fn marks_that_are_near_to_others_go_first() {
        assert_eq!(least_needed(&[10, 20, 500, 510, 600, 700, 800, 900]), 1);
        assert_eq!(least_needed(&[10, 300, 500, 510, 520, 700, 800, 900, 910]), 3);
        assert_eq!(least_needed(&[10, 20, 30]), 1);
        assert_eq!(least_needed(&[10]), 0);
    }
}
