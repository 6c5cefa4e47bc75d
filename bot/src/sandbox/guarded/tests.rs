//! Each refusal, with the sentence that says what to do. What the two backends do is in `bot/tests/sandbox`.

use std::io;

use super::refusal;
use crate::sandbox::{Confinement, SetupError};

fn words(error: SetupError) -> (String, String) {
    let SetupError::Unusable { reason, remedy } = error else { panic!("{error:?}") };
    (reason, remedy)
}

fn seven() -> io::Result<String> {
    Ok("7".into())
}

#[test]
fn a_degraded_sandbox_needs_a_word_a_user_and_a_kernel() {
    let accepted = config::Sandbox { allow_degraded: true, ..config::Sandbox::default() };
    let lacking = || Err(io::Error::other("this kernel has none"));
    assert_eq!(refusal::of_degraded(&accepted, true, seven()).unwrap(), "7");
    for (settings, is_root, landlock, reason, remedy) in [
        (
            config::Sandbox::default(),
            true,
            seven(),
            "less than bubblewrap",
            "allow_degraded = true",
        ),
        (accepted.clone(), false, seven(), "only root can", "start the service as root"),
        (accepted, true, lacking(), "this kernel has none", "Linux 5.13 or later"),
    ] {
        let (why, what) = words(refusal::of_degraded(&settings, is_root, landlock).unwrap_err());
        assert!(why.contains(reason) && what.contains(remedy), "{why}; {what}");
    }
}

#[test]
fn no_sandbox_at_all_needs_a_word_in_the_environment_and_never_root() {
    refusal::of_none(true, false).unwrap();
    for (is_accepted, is_root, reason, remedy) in [
        (false, false, "all that the service's user can", "HYLA_I_ACCEPT_UNSANDBOXED_AGENT=1"),
        (false, true, "all that the service's user can", "HYLA_I_ACCEPT_UNSANDBOXED_AGENT=1"),
        (true, true, "never run as root", "a user of its own"),
    ] {
        let (why, what) = words(refusal::of_none(is_accepted, is_root).unwrap_err());
        assert!(why.contains(reason) && what.contains(remedy), "{why}; {what}");
    }
}

#[test]
fn what_only_a_mount_can_show_is_refused_by_the_backends_name() {
    for (confinement, name) in
        [(Confinement::Degraded, "`landlock-degraded`"), (Confinement::None, "`none`")]
    {
        let (why, what) = words(refusal::of_extras(confinement));
        assert!(why.contains(name) && what.contains("[egress]"), "{why}; {what}");
    }
}
