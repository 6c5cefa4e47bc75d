//! The files that one process and its children may reach, by the kernel's Landlock: the best that this kernel has, and no
//! command where it has none.
//!
//! It hides nothing: that a file is there, how large it is and when it was changed can still be seen. It keeps nobody from
//! changing mode, times and attributes of what is his own.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::sandbox::arguments::java;

/// The last one that this text was written for. What a kernel does not know of it is left out.
const KNOWN: ABI = ABI::V10;
/// What every program reads: programs, libraries, and the few files of `/etc` that bubblewrap shows too, or that programs
/// give up over when they are there and closed. `/proc` is needed whole: a process finds itself there by a number that is
/// not known yet.
const SYSTEM: [&str; 19] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/services",
    "/proc",
    "/dev/urandom",
];
/// Devices that are read and written and lead nowhere.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random"];

/// The version that this kernel has.
///
/// # Errors
/// It has none, or it is not switched on.
pub(super) fn version() -> io::Result<String> {
    // Whoever is told must be restricted, so it is a thread of its own, which ends with that.
    let asked = std::thread::Builder::new().name("landlock".into()).spawn(|| {
        let rules = Ruleset::default().handle_access(AccessFs::Execute)?.create()?;
        rules.restrict_self().map(|status| status.landlock)
    })?;
    let answer = asked.join().map_err(|_| io::Error::other("its thread ended"))?;
    match answer.map_err(io::Error::other)? {
        LandlockStatus::Available { effective_abi, kernel_abi } => Ok(match kernel_abi {
            Some(newer) => newer.to_string(),
            None => effective_abi.to_string(),
        }),
        LandlockStatus::NotEnabled => {
            Err(io::Error::other("it is not switched on; boot with `lsm=landlock,...`"))
        }
        LandlockStatus::NotImplemented => {
            Err(io::Error::other("this kernel has none, or the container forbids it"))
        }
    }
}

/// Restricts the calling thread, and what it starts, to the system's programs and to these folders.
///
/// # Errors
/// The kernel has no Landlock, or a folder that is written cannot be opened.
pub(super) fn restrict(read: &[PathBuf], written: &[PathBuf]) -> io::Result<()> {
    let reads = AccessFs::from_read(KNOWN);
    // No device ever, and no request to one.
    let writes = AccessFs::from_all(KNOWN)
        & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let mut rules = ruleset().map_err(io::Error::other)?;
    let system = SYSTEM.iter().map(PathBuf::from).chain(java().into_iter().map(PathBuf::from));
    for path in system.filter(|path| path.exists()) {
        rules = allow(rules, &path, reads)?;
    }
    for path in read {
        rules = allow(rules, path, reads)?;
    }
    for path in DEVICES {
        rules = allow(rules, Path::new(path), AccessFs::ReadFile | AccessFs::WriteFile)?;
    }
    for path in written {
        rules = allow(rules, path, writes)?;
    }
    let status = rules.restrict_self().map_err(io::Error::other)?;
    match status.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err(io::Error::other("this kernel has no Landlock")),
    }
}

/// Everything that can be forbidden, forbidden: files, ports, sockets without a path and signals to others.
fn ruleset() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()
}

fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> io::Result<RulesetCreated> {
    let opened = PathFd::new(path).map_err(io::Error::other)?;
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(KNOWN) };
    rules.add_rule(PathBeneath::new(opened, access)).map_err(io::Error::other)
}
