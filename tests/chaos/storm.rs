//! The world, and the storm in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::model::{PATIENCE, Recording, Turn};
use tests::outside::{Outside, send};
use tokio::process::Child;

use crate::dice::{self, Act};
use crate::say;

/// The longest wait between two acts.
const PAUSE: Duration = Duration::from_millis(300);
/// Issues that people deal with, the newest ones; what happens to each is more when they are few.
const ISSUES: usize = 8;

/// The service with its forge and model, and what people did.
pub(crate) struct World {
    /// The service's surroundings.
    pub(crate) outside: Outside,
    /// The service, while it runs.
    pub(crate) service: Child,
    /// How often each issue was asked for.
    pub(crate) n_asks: BTreeMap<u64, usize>,
    /// Drafts that people have closed or merged.
    pub(crate) judged: BTreeSet<u64>,
    /// Words by which what the agent leaves behind is found.
    pub(crate) words: String,
    dice: fastrand::Rng,
    loses_hooks: bool,
    is_revoked: bool,
    n_acts: BTreeMap<String, usize>,
}

impl World {
    /// A world without issues, with the service running.
    pub(crate) async fn start(seed: u64) -> Self {
        let words = format!("sleep {}", 400_000 + u64::from(std::process::id()));
        let short = "[queue]\nlease = \"3s\"\nheartbeat = \"1s\"\nbackoff = \"200ms\"\n\
                     backoff_limit = \"1s\"\nsettle = \"100ms\"\nreconcile = \"10s\"\nworkers = 2\n";
        let outside = Outside::start(recording(&words), short).await;
        let service = outside.serve_logged();
        outside.is_heard().await;
        Self {
            outside,
            service,
            n_asks: BTreeMap::new(),
            judged: BTreeSet::new(),
            words,
            dice: fastrand::Rng::with_seed(seed),
            loses_hooks: false,
            is_revoked: false,
            n_acts: BTreeMap::new(),
        }
    }

    /// So many acts, with pauses between them.
    pub(crate) async fn storm(&mut self, n_acts: usize) {
        for _ in 0..n_acts {
            let act = dice::act(&mut self.dice);
            *self.n_acts.entry(format!("{act:?}")).or_default() += 1;
            self.happens(act).await;
            tokio::time::sleep(PAUSE.mul_f64(self.dice.f64())).await;
        }
    }

    /// The end of a storm: the forge does all that it is asked, and hooks get through.
    pub(crate) fn subsides(&mut self) {
        self.outside.forge.clear_faults();
        self.outside.forge.hold_hooks(false);
        self.outside.forge.restore(&self.outside.token);
        (self.loses_hooks, self.is_revoked) = (false, false);
    }

    /// What happened so far.
    pub(crate) fn tally(&self) -> String {
        let asks: usize = self.n_asks.values().sum();
        let pulls = self.outside.forge.pulls(&self.outside.repo).len();
        format!("{asks} asks, {pulls} drafts, {:?}", self.n_acts)
    }

    async fn happens(&mut self, act: Act) {
        match act {
            Act::Open => self.open(&[]).await,
            Act::OpenAsking => self.open(&["hyla"]).await,
            Act::Ask | Act::Withdraw | Act::AskAgain => self.label(act).await,
            Act::Comment | Act::Rewrite | Act::CloseOrReopen => self.meddle(act).await,
            Act::JudgeDraft => self.judge().await,
            Act::MoveBase => {
                let text = format!("{}\n", self.dice.u64(..));
                let ann = self.outside.forge.person("ann");
                ann.commit(&self.outside.repo, "main", [("notes.txt", text.as_str())]);
            }
            Act::LoseOrKeepHooks => {
                self.loses_hooks = !self.loses_hooks;
                self.outside.forge.hold_hooks(self.loses_hooks);
            }
            Act::Repeat => self.repeat().await,
            Act::Fail => {
                let (matcher, fault, times) = dice::fault(&mut self.dice);
                say(&format!("{matcher:?}: {fault:?}, {times} times"));
                self.outside.forge.fault(matcher, fault, times);
            }
            Act::RevokeOrRestore => {
                self.is_revoked = !self.is_revoked;
                match self.is_revoked {
                    true => self.outside.forge.revoke(&self.outside.token),
                    false => self.outside.forge.restore(&self.outside.token),
                }
            }
            Act::Kill => {
                send(&self.service, Signal::SIGKILL);
                self.service.wait().await.expect("it is ours");
                self.service = self.outside.serve_logged();
                self.outside.listens().await;
            }
            Act::Stop => {
                self.stopped().await;
                self.service = self.outside.serve_logged();
                self.outside.listens().await;
            }
        }
    }

    /// Tells the service to stop, and waits until it has.
    pub(crate) async fn stopped(&mut self) {
        send(&self.service, Signal::SIGTERM);
        let ended = tokio::time::timeout(PATIENCE, self.service.wait()).await;
        let status = ended.expect("the service stops").expect("it is ours");
        assert!(status.success(), "the service ended with {status}");
    }

    async fn open(&mut self, labels: &[&str]) {
        let body = format!("{}\n\nPlease.", dice::case(&mut self.dice));
        let ann = self.outside.forge.person("ann");
        let number = ann.open_issue(&self.outside.repo, "A change", &body, labels).await;
        self.n_asks.insert(number, labels.len());
        say(&format!("#{number}: opened with {labels:?}, {}", body.lines().next().unwrap_or("")));
    }

    fn any_issue(&mut self) -> Option<u64> {
        let numbers: Vec<u64> = self.n_asks.keys().copied().collect();
        let among = numbers.len().min(ISSUES);
        let newest = &numbers[numbers.len() - among..];
        (among > 0).then(|| newest[self.dice.usize(..among)])
    }

    async fn label(&mut self, act: Act) {
        let Some(issue) = self.any_issue() else { return };
        say(&format!("#{issue}: {act:?}"));
        let (forge, repo) = (&self.outside.forge, &self.outside.repo);
        let ann = forge.person("ann");
        let has_label = || forge.labels(repo, issue).iter().any(|label| label == "hyla");
        if act != Act::Ask && has_label() {
            ann.remove_label(repo, issue, "hyla").await;
        }
        if act != Act::Withdraw && !has_label() {
            ann.add_label(repo, issue, "hyla").await;
            *self.n_asks.entry(issue).or_default() += 1;
        }
    }

    async fn meddle(&mut self, act: Act) {
        let Some(issue) = self.any_issue() else { return };
        say(&format!("#{issue}: {act:?}"));
        let (forge, repo) = (&self.outside.forge, &self.outside.repo);
        let ann = forge.person("ann");
        match act {
            Act::Comment => {
                ann.comment(repo, issue, "Any news?").await;
            }
            Act::Rewrite => {
                let body = format!("{}\n\nSoon, please.", dice::case(&mut self.dice));
                ann.rewrite(repo, issue, &body).await;
            }
            _ if forge.is_open(repo, issue) => {
                ann.close(repo, issue).await;
            }
            _ => {
                ann.reopen(repo, issue).await;
            }
        }
    }

    async fn judge(&mut self) {
        let (forge, repo) = (&self.outside.forge, &self.outside.repo);
        let open = forge.pulls(repo).into_iter().filter(|pull| pull.is_open);
        let open: Vec<u64> = open.map(|pull| pull.number).collect();
        if open.is_empty() {
            return;
        }
        let pull = open[self.dice.usize(..open.len())];
        say(&format!("#{pull}: judged"));
        let ann = forge.person("ann");
        match self.dice.bool() {
            true => ann.close(repo, pull).await,
            false => ann.merge(repo, pull).await,
        };
        self.judged.insert(pull);
    }

    async fn repeat(&mut self) {
        let all = self.outside.forge.deliveries();
        if all.is_empty() {
            return;
        }
        let newest = all.len().min(40);
        let n_copies = self.dice.usize(1..10);
        let ids = (0..n_copies).map(|_| all[all.len() - 1 - self.dice.usize(..newest)].id.as_str());
        let ids: Vec<&str> = ids.collect();
        let sent = ids.iter().map(|id| self.outside.forge.redeliver(id));
        futures_util::future::join_all(sent).await;
    }
}

/// What the model does: the same in each conversation about a case, and never twice the same change.
fn recording(words: &str) -> Recording {
    let change = "date +%s%N >> notes.txt";
    let story = |case: &str, first: Turn| (case.to_owned(), vec![first, Turn::says("Done.")]);
    let broken = tests::model::Fault::Status {
        status: 500,
        message: "out of memory".into(),
        retry_after: None,
    };
    Recording::of_stories([
        story("case fix.", Turn::bash(change)),
        story("case slow.", Turn::bash(&format!("sleep 0.7; {change}"))),
        story("case stays.", Turn::bash(&format!("setsid {words} >/dev/null 2>&1 & {change}"))),
        ("case nothing.".to_owned(), vec![Turn::says("Nothing to do.")]),
        ("case broken.".to_owned(), vec![Turn { fault: Some(broken), ..Turn::default() }]),
    ])
}
