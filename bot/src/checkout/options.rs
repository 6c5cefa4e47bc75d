//! libgit2's process-wide settings, set before anything else of it is used: no configuration of the machine or of a
//! user is read, a server that stops answering is given up, an object is not hashed again whenever it is read, and
//! further certificate authorities are trusted.
//!
//! This is the only file of the bot with `unsafe`: libgit2 keeps these settings in C globals.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use git2::ConfigLevel;

/// How long a connection may take to be made. A forge in the same network answers in milliseconds.
const CONNECT_TIMEOUT_MS: i32 = 20_000;

/// How long a server may be silent within one answer. Packing a large repository for the first fetch takes a while
/// before the first byte, and progress messages reset this.
const SILENCE_TIMEOUT_MS: i32 = 120_000;

/// Settles the globals, once in a process; every later call returns what the first one found.
pub(crate) fn prepare() -> Result<(), git2::Error> {
    static PREPARED: OnceLock<Result<(), String>> = OnceLock::new();
    PREPARED
        .get_or_init(|| settle().map_err(|error| error.message().to_owned()))
        .clone()
        .map_err(|message| git2::Error::from_str(&message))
}

#[expect(unsafe_code, reason = "libgit2 keeps its search paths and timeouts in C globals")]
fn settle() -> Result<(), git2::Error> {
    let levels =
        [ConfigLevel::ProgramData, ConfigLevel::System, ConfigLevel::XDG, ConfigLevel::Global];
    for level in levels {
        // SAFETY: `OnceLock` lets one thread in and makes all others wait, and every use of libgit2 in this crate is
        // behind `prepare`, so nothing reads these globals while they are written.
        unsafe { git2::opts::set_search_path(level, "")? };
    }
    // SAFETY: as above.
    unsafe {
        git2::opts::set_server_connect_timeout_in_milliseconds(CONNECT_TIMEOUT_MS)?;
        git2::opts::set_server_timeout_in_milliseconds(SILENCE_TIMEOUT_MS)?;
    }
    // Otherwise libgit2 hashes each object anew whenever it reads it: a fifth of all samples in a profile of the benchmark
    // `job_overhead`, and the largest part of making a workspace. Objects are hashed where they come in: a fetched pack by libgit2's indexer, what the bot stores
    // when it is stored, and what is copied from another repository by `provide::pack`. After that only the disk can change
    // them, and zlib's checksum, which is always compared, tells. Git itself does the same.
    git2::opts::strict_hash_verification(false);
    Ok(())
}

/// Trusts the certificate authorities in a PEM file, besides the system's. libgit2 has one list for the process, so
/// the authority of one forge is trusted for all of them.
#[expect(unsafe_code, reason = "libgit2 keeps its certificate store in a C global")]
pub(crate) fn trust(ca_file: &Path) -> Result<(), git2::Error> {
    static TRUSTED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    prepare()?;
    let mut trusted = TRUSTED.lock().unwrap_or_else(PoisonError::into_inner);
    if trusted.contains(ca_file) {
        return Ok(());
    }
    // SAFETY: the mutex keeps writers apart, and OpenSSL guards the certificate store that this adds to by a lock of
    // its own, so a connection that another thread makes meanwhile sees the list before or after the addition.
    unsafe { git2::opts::set_ssl_cert_file(ca_file)? };
    trusted.insert(ca_file.to_owned());
    Ok(())
}
