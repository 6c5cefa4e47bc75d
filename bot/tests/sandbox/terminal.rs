//! What an attacker types: into the terminal of whoever started the service.

use super::bench::{answers, probe, usual};
use super::own_process::service_says;
use std::process::Command as Process;

/// Runs its arguments in a session with a terminal of its own, as a person's shell has one.
const WITH_TERMINAL: &str = "import os, pty, sys\n\
    status = pty.spawn(sys.argv[1:], lambda fd: os.read(fd, 1024))\n\
    sys.exit(os.waitstatus_to_exitcode(status))";

/// Runs the rest, and notes in a file whether anything was typed meanwhile.
const WATCHED: &str = "\"$@\"; code=$?; \"$PROBE\" is_typed > \"$NOTE\"; exit $code";

fn watched() -> [&'static str; 7] {
    ["python3", "-c", WITH_TERMINAL, "bash", "-c", WATCHED, "bash"]
}

#[tokio::test]
async fn t13_nothing_is_typed_into_the_terminal_of_the_service() {
    let bench = usual();
    let note = bench.folder.path().join("note");
    let noted = || std::fs::read_to_string(&note).unwrap();
    let attacks = ["type", "type_with_high_bits", "paste", "open_to_read,/dev/tty"];
    let [python, flag, code, rest @ ..] = watched();
    let mut control = Process::new(python);
    control.args([flag, code]).args(rest).arg(probe()).args(attacks);
    control.env("PROBE", probe()).env("NOTE", &note);
    let control = answers(&mut control);
    assert_eq!(control.to("open_to_read,/dev/tty"), "ok", "{control:?}");
    if control.to("type") == "ok" {
        assert_eq!(noted(), "is_typed=ok\n");
    } else {
        eprintln!("no control here: the kernel lets nobody type: {}", control.to("type"));
    }
    let script = format!("{} {}; ls -l /proc/self/fd", bench.arm(), attacks.join(" "));
    let around =
        ["env", &format!("PROBE={}", probe().display()), &format!("NOTE={}", note.display())]
            .map(str::to_owned);
    let around: Vec<&str> = around.iter().map(String::as_str).chain(watched()).collect();
    let said = service_says(&bench, &around, &script);
    for (attack, answer) in attacks.iter().zip(["EPERM", "EPERM", "EPERM", "ENXIO"]) {
        assert!(said.contains(&format!("{attack}={answer}\n")), "{attack}: {said}");
    }
    assert!(!said.contains("/dev/pts"), "{said}");
    assert_eq!(noted(), "is_typed=ENODATA\n", "something was typed");
}
