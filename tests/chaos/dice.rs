//! What may happen next, and how often.

use tests::forge::{Fault, Matcher};

const API: &str = "/api/v1/repos/acme/hours";

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Somebody opens an issue, without the label.
    Open,
    /// Somebody opens an issue with the label.
    OpenAsking,
    /// Somebody puts the label on an issue.
    Ask,
    /// Somebody takes it off.
    Withdraw,
    /// Somebody takes it off and puts it on again.
    AskAgain,
    /// Somebody writes a comment.
    Comment,
    /// Somebody writes the issue anew.
    Rewrite,
    /// Somebody closes an issue, or opens a closed one again.
    CloseOrReopen,
    /// Somebody closes or merges one of the bot's drafts.
    JudgeDraft,
    /// Somebody pushes to the default branch.
    MoveBase,
    /// Webhooks get lost from now on, or get through again.
    LoseOrKeepHooks,
    /// Some webhooks come once more, at once.
    Repeat,
    /// The forge will do something wrong.
    Fail,
    /// The bot's token stops being good, or is good again.
    RevokeOrRestore,
    /// The service is killed and started again.
    Kill,
    /// The service is told to stop, and started again.
    Stop,
}

/// Each with how often it happens beside the others.
const WEIGHTS: [(Act, usize); 16] = [
    (Act::Open, 4),
    (Act::OpenAsking, 8),
    (Act::Ask, 12),
    (Act::Withdraw, 4),
    (Act::AskAgain, 6),
    (Act::Comment, 4),
    (Act::Rewrite, 4),
    (Act::CloseOrReopen, 5),
    (Act::JudgeDraft, 6),
    (Act::MoveBase, 3),
    (Act::LoseOrKeepHooks, 5),
    (Act::Repeat, 8),
    (Act::Fail, 18),
    (Act::RevokeOrRestore, 1),
    (Act::Kill, 10),
    (Act::Stop, 3),
];

/// The next act.
pub(crate) fn act(dice: &mut fastrand::Rng) -> Act {
    let total: usize = WEIGHTS.iter().map(|(_, weight)| weight).sum();
    let mut at = dice.usize(..total);
    for (act, weight) in WEIGHTS {
        if at < weight {
            return act;
        }
        at -= weight;
    }
    unreachable!("the dice stay below the sum of the weights")
}

/// What the model does about an issue: the words that its text holds, by which the recording knows it.
pub(crate) fn case(dice: &mut fastrand::Rng) -> &'static str {
    const CASES: [&str; 6] =
        ["case fix.", "case fix.", "case slow.", "case stays.", "case nothing.", "case broken."];
    CASES[dice.usize(..CASES.len())]
}

/// A fault of the forge, and how often it comes.
pub(crate) fn fault(dice: &mut fastrand::Rng) -> (Matcher, Fault, usize) {
    let requests = [
        ("GET", format!("{API}/issues/*")),
        ("GET", format!("{API}/issues")),
        ("GET", format!("{API}/issues/*/timeline")),
        ("GET", API.to_owned()),
        ("GET", "*".to_owned()),
        ("*", "*".to_owned()),
        ("POST", format!("{API}/issues/*/comments")),
        ("PATCH", format!("{API}/issues/comments/*")),
        ("POST", format!("{API}/issues/*/reactions")),
        ("POST", format!("{API}/pulls")),
        ("GET", format!("{API}/pulls*")),
        ("GET", "/acme/hours.git/info/refs".to_owned()),
        ("POST", "/acme/hours.git/git-upload-pack".to_owned()),
        ("POST", "/acme/hours.git/git-receive-pack".to_owned()),
    ];
    let (method, path) = &requests[dice.usize(..requests.len())];
    let fault = match dice.usize(..8) {
        0 => Fault::status(500, "the disk of the forge is full"),
        1 => Fault::status(502, "bad gateway"),
        2 => Fault::status(429, "slow down"),
        3 => Fault::Hang,
        4 => Fault::HangAfterEffect,
        5 => Fault::CloseConnection,
        6 => Fault::Garbage,
        _ => Fault::AfterEffect(500),
    };
    (Matcher::new(method, path), fault, dice.usize(1..4))
}
