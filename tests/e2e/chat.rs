//! `hyla model chat` and `hyla model bench` as a person and a script use them: the real binary with a tiny model, behind a
//! pipe and at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use serde_json::Value;
use tests::house::hyla_binary;
use tests::model::PATIENCE;
use tests::tiny::{self, Script};
use tokio::io::AsyncWriteExt;

const TALKER: Script<'_> = &["Nothing is wrong.", "</think>", "All is well.", "<|im_end|>"];
/// It answers without an end.
const ENDLESS: Script<'_> = &["hm.", "</think>", "z"];
/// It thinks without an end.
const THINKER: Script<'_> = &["hm", "hm"];
/// Two of its thoughts at a terminal.
const HM: &str = "\x1b[2mhm\x1b[22m\x1b[2mhm\x1b[22m";
const PLAIN: Script<'_> = &["Yes.", "<|im_end|>"];

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn folder(thinking: Script<'_>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("the temp folder can be written");
    tiny::scripted(folder.path(), thinking, PLAIN);
    folder
}

fn command(name: &str, folder: &Path) -> std::process::Command {
    let mut command = std::process::Command::new(hyla_binary());
    command.args(["model", name]).arg(folder).args(["--threads", "1"]);
    command
}

/// Runs a command to its end, with a text on its standard input.
async fn run(command: std::process::Command, input: &[u8]) -> Ran {
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    let work = async {
        // A command that refuses its arguments may end before it has read anything.
        let _ = stdin.write_all(input).await;
        drop(stdin);
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(PATIENCE, work).await.expect("it ends").expect("it is ours");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("it is text"),
        stderr: String::from_utf8(output.stderr).expect("it is text"),
    }
}

async fn chat(folder: &Path, arguments: &[&str], input: &str) -> Ran {
    let mut command = command("chat", folder);
    command.args(arguments);
    run(command, input.as_bytes()).await
}

/// The number before a word in each line about an answer.
fn figures(told: &str, word: &str) -> Vec<usize> {
    let lines = told.lines().filter(|line| line.starts_with("answer "));
    let number = |line: &str| {
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric()).collect();
        let at = words.iter().position(|each| *each == word).expect("it is told");
        words[at - 1].parse().expect("it is a number")
    };
    lines.map(number).collect()
}

#[tokio::test]
async fn each_line_is_a_turn_and_the_second_goes_on_from_the_first() {
    let folder = folder(TALKER);
    let ran = chat(folder.path(), &[], "hello\n\n  \nand then?\n/clear\nhello").await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let turn = "[reasoning]\nNothing is wrong.\n[answer]\nAll is well.\n";
    assert_eq!(ran.stdout, turn.repeat(3));
    let line = |told: &str| -> Vec<usize> { figures(told, "reused") };
    let (reused, read) = (line(&ran.stderr), figures(&ran.stderr, "read"));
    assert_eq!((reused.len(), reused[0]), (3, 0), "{}", ran.stderr);
    // All of the first prompt but the words that begin the answer: the template leaves out earlier reasoning.
    assert!(reused[1] * 2 > read[0], "{}", ran.stderr);
    let prompts: Vec<usize> =
        reused.iter().zip(&read).map(|(reused, read)| reused + read).collect();
    assert!(prompts[1] > prompts[0] && prompts[2] == prompts[0], "{}", ran.stderr);

    let ran = chat(folder.path(), &["--no-reasoning"], "hello\n/quit\nhello\n").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "All is well.\n"), "{}", ran.stderr);
    let ran = chat(folder.path(), &["--max-tokens", "1"], "hello\n").await;
    assert_eq!(ran.stdout, "[reasoning]\nNothing is wrong.\n");
    assert!(ran.stderr.contains("cut: --max-tokens allows no more"), "{}", ran.stderr);
}

#[tokio::test]
async fn the_same_seed_answers_alike_and_a_system_message_is_read() {
    let folder = tempfile::tempdir().expect("the temp folder can be written");
    tiny::random(folder.path());
    let more = ["--seed", "3", "--max-tokens", "20", "--temperature", "1.5", "--top-k", "0"];
    let first = chat(folder.path(), &more, "hello\n").await;
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert_eq!(chat(folder.path(), &more, "hello\n").await.stdout, first.stdout);

    let file = folder.path().join("system.md");
    std::fs::write(&file, "Be kind.").expect("the folder is ours");
    let file = file.display().to_string();
    let told =
        chat(folder.path(), &[&more[..], &["--system", "Be kind."]].concat(), "hello\n").await;
    let from_file =
        chat(folder.path(), &[&more[..], &["--system-file", &file]].concat(), "hello\n").await;
    assert_ne!(told.stdout, first.stdout);
    assert_eq!(told.stdout, from_file.stdout, "{}", from_file.stderr);
}

#[tokio::test]
async fn what_a_model_says_steers_no_terminal() {
    let hostile: Script<'_> =
        &["\x1b[2J\r", "</think>", "\x1b]0;owned\x07", "\x1b[31mred\x08", "<|im_end|>"];
    let folder = folder(hostile);
    let ran = chat(folder.path(), &[], "hello\n").await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let is_bad = |c: char| c.is_control() && c != '\n';
    assert!(!ran.stdout.contains(is_bad), "{:?}", ran.stdout);
    assert!(ran.stdout.contains("\\u{1b}]0;owned\\u{7}"), "{:?}", ran.stdout);
    assert!(ran.stdout.contains("\\u{1b}[31mred"), "{:?}", ran.stdout);

    let mut terminal = Terminal::chat(folder.path(), &[]);
    terminal.type_in("hello\r");
    terminal.until("· prompt");
    assert!(terminal.seen.contains("\\u{1b}]0;owned\\u{7}"), "{:?}", terminal.seen);
    for own in ["\x1b[2J", "\x1b]0", "\x1b[31m", "\x07", "\x08"] {
        assert!(!terminal.seen.contains(own), "{own:?}: {:?}", terminal.seen);
    }
}

#[tokio::test]
async fn what_is_wrong_is_said_and_what_to_do() {
    let good = folder(TALKER);
    let nowhere = Path::new("/no/such/folder");
    for (folder, arguments, input, code, words) in [
        (good.path(), &[][..], "", 0, ""),
        (nowhere, &[], "hello\n", 1, "cannot read `/no/such/folder/"),
        (
            good.path(),
            &["--context", "40"],
            &"hello ".repeat(50),
            1,
            "leaves no room in a context of 40; ask less, start over with /clear, or give --context more",
        ),
        (good.path(), &["--system-file", "/no/file"], "hello\n", 1, "--system-file `/no/file`"),
        (good.path(), &["--system", "a", "--system-file", "b"], "", 2, "cannot be used with"),
        (good.path(), &["--temperature", "2.5"], "", 2, "from 0 to 2"),
        (good.path(), &["--temperature", "NaN"], "", 2, "from 0 to 2"),
        (good.path(), &["--top-p", "0"], "", 2, "above 0"),
        (good.path(), &["--max-tokens", "0"], "", 2, "--max-tokens"),
        (good.path(), &["--dtype", "int2"], "", 2, "use f32, bf16, int8 or int4"),
    ] {
        let ran = chat(folder, arguments, input).await;
        assert_eq!(ran.code, Some(code), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{words}");
    }
    let ran = run(command("chat", good.path()), b"hello\n\xff\xfe\n").await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("cannot ask line 2: it is no text in UTF-8"), "{}", ran.stderr);
}

/// A command at a terminal of its own.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// What had appeared when the last text that was waited for did, from the one before on.
    seen: String,
    /// What has appeared behind it.
    unread: Vec<u8>,
    /// The other side of the terminal.
    line: OwnedFd,
}

impl Terminal {
    fn start(mut command: std::process::Command) -> Self {
        let sides = openpty(None, None).expect("there are terminals");
        let side = || Stdio::from(sides.slave.try_clone().expect("it can be shared"));
        let child = command
            .env("TERM", "xterm")
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .expect("it starts");
        let keyboard = File::from(sides.master);
        let mut reader = keyboard.try_clone().expect("it can be shared");
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n) = reader.read(&mut buffer) {
                if n == 0 || sender.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard, screen, seen: String::new(), unread: Vec::new(), line: sides.slave }
    }

    /// A conversation, at its first prompt.
    fn chat(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = command("chat", folder);
        command.args(arguments);
        let mut terminal = Self::start(command);
        terminal.until("> ");
        terminal
    }

    fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("somebody holds the other side");
    }

    /// Waits until a text appears behind all that was waited for before.
    fn until(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            let shown = String::from_utf8_lossy(&self.unread).into_owned();
            if let Some(at) = shown.find(text) {
                let end = at + text.len();
                self.seen = shown[..end].to_owned();
                self.unread = shown.as_bytes()[end..].to_vec();
                return;
            }
            let left = PATIENCE.saturating_sub(begun.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(more) => self.unread.extend(more),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let last: String = shown.chars().rev().take(1000).collect();
                    let last: String = last.chars().rev().collect();
                    panic!("`{text}` does not appear: {last:?}")
                }
            }
        }
    }

    fn send(&self, signal: Signal) {
        let number = i32::try_from(self.child.id()).expect("it is a pid");
        kill(Pid::from_raw(number), signal).expect("it is ours");
    }

    /// Whether the terminal shows what is typed and gives out whole lines, as it did before.
    fn is_restored(&self) -> bool {
        let flags = tcgetattr(&self.line).expect("it is a terminal").local_flags;
        flags.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG)
    }

    fn ended(mut self) -> ExitStatus {
        let (sender, ended) = channel();
        let number = self.child.id();
        // Whatever it still writes is read by the other thread.
        let status = std::thread::scope(|scope| {
            scope.spawn(|| sender.send(self.child.wait()));
            let status = ended.recv_timeout(PATIENCE);
            if status.is_err() {
                let number = i32::try_from(number).expect("it is a pid");
                let _ = kill(Pid::from_raw(number), Signal::SIGKILL);
            }
            status
        });
        let status = status.expect("it ends").expect("it is ours");
        assert!(self.is_restored(), "the terminal is not as it was");
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_person_sees_reasoning_dimmed_and_may_paste_several_lines() {
    let folder = folder(TALKER);
    let mut terminal = Terminal::chat(folder.path(), &[]);
    assert!(terminal.seen.contains("/clear starts over"), "{:?}", terminal.seen);
    // Pasted as a terminal says it: one question of two lines.
    terminal.type_in("\x1b[200~one\ntwo\x1b[201~\r");
    terminal.until("reused");
    let dimmed = "\x1b[2mNothing is wrong.\x1b[22m";
    assert!(terminal.seen.contains(dimmed), "{:?}", terminal.seen);
    assert!(terminal.seen.contains("All is well.\r\n\x1b[2manswer"), "{:?}", terminal.seen);
    terminal.until("> ");
    // The last question again, by the editor's memory.
    terminal.type_in("\x1b[A\r");
    terminal.until("reused");
    assert!(terminal.seen.contains("two"), "{:?}", terminal.seen);
    terminal.until("> ");
    terminal.type_in("/clear\r");
    terminal.until("the conversation starts over");
    terminal.until("> ");
    terminal.type_in("\x04");
    assert!(terminal.ended().success());
}

#[test]
fn a_question_that_is_refused_ends_nothing() {
    let folder = folder(TALKER);
    let mut terminal = Terminal::chat(folder.path(), &["--context", "60"]);
    terminal.type_in(&format!("{}\r", "hello ".repeat(30)));
    terminal.until("leaves no room in a context of 60");
    terminal.until("> ");
    terminal.type_in("hello\r");
    terminal.until("All is well.");
    terminal.until("> ");
    terminal.type_in("/quit\r");
    assert!(terminal.ended().success());
}

#[test]
fn ctrl_c_ends_an_answer_and_only_the_next_one_the_command() {
    for (script, words, kept) in [
        (ENDLESS, "zzz", "stopped; what was said so far stays"),
        (THINKER, HM, "stopped; the question is forgotten"),
    ] {
        let folder = folder(script);
        let mut terminal = Terminal::chat(folder.path(), &["--max-tokens", "100000000"]);
        for _ in 0..2 {
            terminal.type_in("hello\r");
            terminal.until(words);
            terminal.send(Signal::SIGINT);
            terminal.until(kept);
            terminal.until("> ");
        }
        terminal.type_in("\x03");
        assert!(terminal.ended().success());
    }
}

#[test]
fn ctrl_c_at_the_prompt_asks_once() {
    let folder = folder(TALKER);
    let mut terminal = Terminal::chat(folder.path(), &[]);
    terminal.type_in("never mind\x03");
    terminal.until("Ctrl-C once more, or Ctrl-D, ends");
    terminal.until("> ");
    // A question in between takes it back.
    terminal.type_in("hello\r");
    terminal.until("All is well.");
    terminal.until("> ");
    terminal.type_in("\x03");
    terminal.until("Ctrl-C once more, or Ctrl-D, ends");
    terminal.until("> ");
    terminal.type_in("\x03");
    assert!(terminal.ended().success());
}

#[test]
fn whoever_stops_the_command_gets_the_terminal_back() {
    for (script, keys, words) in [(TALKER, "hel", "hel"), (THINKER, "hello\r", HM)] {
        let folder = folder(script);
        let mut terminal = Terminal::chat(folder.path(), &["--max-tokens", "100000000"]);
        terminal.type_in(keys);
        terminal.until(words);
        terminal.send(Signal::SIGTERM);
        terminal.until("hyla: stopped before the end of the conversation");
        assert_eq!(terminal.ended().code(), Some(1));
    }
}

#[tokio::test]
async fn a_bench_tells_a_person_and_a_program_how_fast_a_model_is() {
    let folder = folder(TALKER);
    let mut shown = command("bench", folder.path());
    shown.args(["--depths", "600,0,600", "--dtype", "bf16,int4"]);
    let ran = run(shown, b"").await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for word in ["MEMORY", "PROMPT", "AT 0", "AT 600", "TURN", "bf16 ", "int4 ", "1 thread", "GB/s"]
    {
        assert!(ran.stdout.contains(word), "{word}: {}", ran.stdout);
    }
    assert!(ran.stderr.contains("int4: answering behind 600 tokens"), "{}", ran.stderr);

    let mut json = command("bench", folder.path());
    json.args(["--depths", "0,100", "--dtype", "int8", "--json"]);
    let ran = run(json, b"").await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    let row = &report["results"][0];
    assert_eq!((&row["dtype"], &report["threads"]), (&"int8".into(), &1.into()), "{report}");
    assert_eq!(row["decode"][1]["depth"], 100);
    for (value, least) in [
        (&report["bandwidth_bytes_per_second"], 1e6),
        (&row["ready_seconds"], 1e-6),
        (&row["running_peak_bytes"], 1e6),
        (&row["prefill_tokens_per_second"], 1.0),
        (&row["decode"][1]["tokens_per_second"], 1.0),
        (&row["decode"][1]["bound_tokens_per_second"], 1.0),
        (&row["turn_seconds"], 1e-6),
    ] {
        assert!(value.as_f64().is_some_and(|value| value > least), "{least}: {report}");
    }
    let bound = |at: usize| row["decode"][at]["bound_tokens_per_second"].as_f64();
    assert!(bound(0) > bound(1), "a longer conversation is more to read: {report}");
    // What the measurement of the bandwidth held is not counted as the model's.
    assert!(row["running_peak_bytes"].as_f64().is_some_and(|bytes| bytes < 1e9), "{report}");
}

#[tokio::test]
async fn a_bench_that_cannot_be_says_so_and_ctrl_c_ends_one() {
    let folder = folder(TALKER);
    for (folder, depth, code, words) in [
        (Path::new("/no/such/folder"), "0", 1, "cannot read `/no/such/folder/"),
        (folder.path(), "2000000", 1, "was trained for 1048576; use at most 1048560"),
        (folder.path(), "many", 2, "--depths"),
    ] {
        let mut bench = command("bench", folder);
        bench.args(["--depths", depth]);
        let ran = run(bench, b"").await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    let mut long = command("bench", folder.path());
    long.args(["--depths", "1000000"]);
    let mut terminal = Terminal::start(long);
    terminal.until("bf16: answering behind 1000000 tokens");
    terminal.send(Signal::SIGINT);
    terminal.until("hyla: stopped before everything was measured");
    assert_eq!(terminal.ended().code(), Some(1));
}
