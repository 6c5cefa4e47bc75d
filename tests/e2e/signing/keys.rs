//! Keys as people make them, with the real `ssh-keygen` and `gpg`, and the real `git` that judges what they signed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What encrypted keys are locked with.
pub(super) const PASSPHRASE: &str = "a-passphrase-of-tests";
/// The committer of the bot's commits in these tests.
pub(super) const EMAIL: &str = "hyla@example.org";
const OWNER: &str = "Hyla <hyla@example.org>";
/// Keys are older than any commit, and looked at later than any: the clock of tests is not the machine's.
const MADE: &str = "--faked-system-time=1700000000!";
const LOOKED_AT: &str = "--faked-system-time=1900000000!";

/// A folder for keys.
pub(super) struct Keys {
    folder: tempfile::TempDir,
}

impl Drop for Keys {
    fn drop(&mut self) {
        let mut stop = Command::new("gpgconf");
        let _ = stop.args(["--kill", "all"]).env("GNUPGHOME", self.home()).output();
    }
}

impl Keys {
    pub(super) fn new() -> Self {
        let keys = Self { folder: tempfile::tempdir().expect("the temp folder can be written") };
        std::fs::create_dir(keys.home()).expect("the folder is fresh");
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(keys.home(), mode).expect("the folder is ours");
        keys
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("gnupg")
    }

    /// A file with a text that its owner alone may read.
    pub(super) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("the temp folder can be written");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("the file is ours");
        path
    }

    /// An SSH key; its public half lies beside it, with `.pub`. An empty passphrase leaves it plain.
    pub(super) fn ssh(&self, name: &str, kind: &[&str], passphrase: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        let mut make = Command::new("ssh-keygen");
        make.args(["-q", "-N", passphrase, "-C", "a comment", "-t"])
            .args(kind)
            .arg("-f")
            .arg(&path);
        done(make.output());
        path
    }

    /// Runs `gpg` in a home folder of its own, at the time that keys are made at.
    pub(super) fn gpg(&self, passphrase: &str, arguments: &[&str]) -> Output {
        let mut gpg = Command::new("gpg");
        gpg.env("GNUPGHOME", self.home());
        gpg.args(["--batch", "--quiet", MADE, "--pinentry-mode", "loopback"]);
        gpg.args(["--passphrase", passphrase]).args(arguments);
        done(gpg.output())
    }

    /// An OpenPGP key of the bot, exported to a file. An empty passphrase leaves it plain.
    pub(super) fn openpgp(&self, algorithm: &str, passphrase: &str) -> PathBuf {
        self.gpg(passphrase, &["--quick-generate-key", OWNER, algorithm, "sign", "never"]);
        self.export(passphrase, "--export-secret-keys")
    }

    /// The same with a primary key that stays at home and a subkey that signs.
    pub(super) fn openpgp_subkey(&self) -> PathBuf {
        self.gpg("", &["--quick-generate-key", OWNER, "ed25519", "cert", "never"]);
        let print = self.fingerprint();
        self.gpg("", &["--quick-add-key", &print, "ed25519", "sign", "never"]);
        self.export("", "--export-secret-subkeys")
    }

    pub(super) fn export(&self, passphrase: &str, how: &str) -> PathBuf {
        let output = self.gpg(passphrase, &["--armor", how, EMAIL]);
        self.file("openpgp.asc", &String::from_utf8_lossy(&output.stdout))
    }

    /// The primary key's fingerprint.
    pub(super) fn fingerprint(&self) -> String {
        let output = self.gpg("", &["--with-colons", "--list-keys", EMAIL]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with("fpr")).expect("there is a key");
        line.split(':').nth(9).expect("the tenth field is the fingerprint").to_owned()
    }

    /// `git` with what it needs to judge signatures. Of SSH keys it trusts the one in `trusted.pub` alone.
    pub(super) fn git(&self, repository: &Path, trusted: &str) -> Command {
        let public = std::fs::read_to_string(self.folder.path().join(format!("{trusted}.pub")));
        let signers = public.map(|public| format!("{EMAIL} {public}")).unwrap_or_default();
        let signers = self.file("allowed-signers", &signers);
        let gpg = self.file("gpg.sh", &format!("#!/bin/sh\nexec gpg {LOOKED_AT} \"$@\"\n"));
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&gpg, mode).expect("the file is ours");
        let mut git = Command::new("git");
        git.arg("-C").arg(repository).env("GNUPGHOME", self.home());
        git.args(["-c", "safe.directory=*", "-c"]).arg(format!("gpg.program={}", gpg.display()));
        git.arg("-c").arg(format!("gpg.ssh.allowedSignersFile={}", signers.display()));
        git
    }
}

/// What a program printed that must do what it is asked.
pub(super) fn done(output: std::io::Result<Output>) -> Output {
    let output = output.expect("it is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}
