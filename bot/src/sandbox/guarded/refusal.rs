//! When neither backend is used, each with the sentence that says what to do. Pure.

use std::io;

use crate::sandbox::{Confinement, SetupError};

/// The version of Landlock, where commands may be confined by it.
pub(super) fn of_degraded(
    settings: &config::Sandbox,
    is_root: bool,
    landlock: io::Result<String>,
) -> Result<String, SetupError> {
    let unusable = |reason: String, remedy: String| Err(SetupError::Unusable { reason, remedy });
    if !settings.allow_degraded {
        return unusable(
            "`sandbox.backend` is \"landlock-degraded\", which keeps commands in less than bubblewrap does".into(),
            "use bubblewrap, or read in the README what is missing and set `sandbox.allow_degraded = true`".into(),
        );
    }
    if !is_root {
        return unusable(
            "the backend `landlock-degraded` must switch to a user of its own for commands, and only root can".into(),
            format!(
                "start the service as root; commands then run as `sandbox.uid` ({}) and `sandbox.gid` ({}), which nothing else may use",
                settings.uid, settings.gid
            ),
        );
    }
    landlock.or_else(|error| {
        unusable(
            format!("Landlock cannot be used: {error}"),
            "use Linux 5.13 or later with Landlock switched on, or bubblewrap".into(),
        )
    })
}

/// Whether commands may run without a sandbox.
pub(super) fn of_none(is_accepted: bool, is_root: bool) -> Result<(), SetupError> {
    let unusable = |reason: String, remedy: String| Err(SetupError::Unusable { reason, remedy });
    if !is_accepted {
        return unusable(
            "`sandbox.backend` is \"none\", so that a model's commands could do all that the service's user can".into(),
            format!(
                "use bubblewrap, or start the service with `{}=1` in its environment",
                config::ACCEPTS_UNSANDBOXED
            ),
        );
    }
    if is_root {
        return unusable(
            "commands without a sandbox never run as root".into(),
            "start the service as a user of its own".into(),
        );
    }
    Ok(())
}

/// Why a command is not given what only a mount can show, or only a network can use.
pub(super) fn of_extras(confinement: Confinement) -> SetupError {
    let backend = match confinement {
        Confinement::Sealed => "auto",
        Confinement::Degraded => "landlock-degraded",
        Confinement::None => "none",
    };
    SetupError::Unusable {
        reason: format!(
            "the backend `{backend}` can give a command neither folders nor downloads of its own"
        ),
        remedy: "take the hosts out of `[egress]`, or use bubblewrap".into(),
    }
}
