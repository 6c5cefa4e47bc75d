//! Signed and signed-off commits: what the real `git` says of the commit that the forge received by a push.

mod keys;

use std::path::{Path, PathBuf};
use std::process::Command;

use bot::job::{Outcome, Ready};
use bot::publish::Signer;
use chrono::DateTime;
use config::{Config, SecretRef, Signing};
use keys::{EMAIL, Keys, PASSPHRASE, done};
use tests::house::{House, Setup, hyla_binary};
use tests::outside::{Outside, files_below};

fn ssh(path: &Path) -> Signing {
    Signing { ssh_key: Some(SecretRef::File(path.into())), openpgp_key: None, passphrase: None }
}

fn openpgp(path: &Path) -> Signing {
    Signing { ssh_key: None, openpgp_key: Some(SecretRef::File(path.into())), passphrase: None }
}

fn unlocked(signing: Signing, passphrase: PathBuf) -> Signing {
    Signing { passphrase: Some(SecretRef::File(passphrase)), ..signing }
}

async fn signing_house(signing: Signing) -> House {
    House::start(Setup {
        change: Box::new(|config| {
            config.publish.author_email = Some(EMAIL.into());
            config.publish.signing = Some(signing);
            config.publish.sign_off = true;
        }),
        ..Setup::default()
    })
    .await
}

/// What `git verify-commit` prints of the head of the bot's first branch, if it is content.
fn verified(keys: &Keys, house: &House, trusted: &str) -> Result<String, String> {
    let dir = house.forge.git_dir(&house.repo);
    let mut verify = keys.git(&dir, trusted);
    let output = verify.args(["verify-commit", "hyla/issue-1-1"]).output().expect("git runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// What git shows of that commit.
fn shown(keys: &Keys, house: &House, trusted: &str, format: &str) -> String {
    let dir = house.forge.git_dir(&house.repo);
    let mut log = keys.git(&dir, trusted);
    let log = log.args(["log", "-1", &format!("--format={format}"), "hyla/issue-1-1"]);
    String::from_utf8_lossy(&done(log.output()).stdout).trim().to_owned()
}

/// The draft's commit is signed by the committer, and the key is nowhere that it does not belong.
async fn signs(keys: &Keys, signing: Signing, trusted: &str) {
    let file = signing.ssh_key.clone().or(signing.openpgp_key.clone());
    let Some(SecretRef::File(file)) = file else { panic!("the key is in a file") };
    let house = signing_house(signing).await;
    house.labelled_and_worked().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    let said = verified(keys, &house, trusted).expect("git is content");
    assert!(said.contains("Good") && said.contains(EMAIL), "{said}");
    assert_eq!(shown(keys, &house, trusted, "%ce"), EMAIL);
    assert!(shown(keys, &house, trusted, "%GS").contains(EMAIL), "the signer is the committer");
    assert_eq!(
        shown(keys, &house, trusted, "%(trailers:only)"),
        format!("Signed-off-by: Hyla <{EMAIL}>")
    );
    house.assert_clean().await;
    let dir = house.forge.git_dir(&house.repo);
    done(keys.git(&dir, trusted).args(["fsck", "--strict"]).output());

    let text = std::fs::read_to_string(file).expect("the key is there");
    let secret = text.lines().rev().nth(2).expect("a key has several lines").as_bytes();
    for path in files_below(&house.bot.config.data_dir) {
        let content = std::fs::read(&path).unwrap_or_default();
        let is_there = content.windows(secret.len()).any(|window| window == secret);
        assert!(!is_there, "the key is in {}", path.display());
    }
}

#[tokio::test]
async fn git_verifies_a_commit_that_was_signed_with_a_plain_ed25519_ssh_key() {
    let keys = Keys::new();
    let file = keys.ssh("key", &["ed25519"], "");
    signs(&keys, ssh(&file), "key").await;
}

#[tokio::test]
async fn git_verifies_a_commit_that_was_signed_with_an_encrypted_ed25519_ssh_key() {
    let keys = Keys::new();
    let file = keys.ssh("key", &["ed25519"], PASSPHRASE);
    let passphrase = keys.file("passphrase", &format!("{PASSPHRASE}\n"));
    signs(&keys, unlocked(ssh(&file), passphrase), "key").await;
}

#[tokio::test]
async fn git_verifies_a_commit_that_was_signed_with_a_plain_rsa_ssh_key() {
    let keys = Keys::new();
    let file = keys.ssh("key", &["rsa", "-b", "3072"], "");
    signs(&keys, ssh(&file), "key").await;
}

#[tokio::test]
async fn git_verifies_a_commit_that_was_signed_with_an_encrypted_rsa_ssh_key() {
    let keys = Keys::new();
    let file = keys.ssh("key", &["rsa", "-b", "3072"], PASSPHRASE);
    let passphrase = keys.file("passphrase", &format!("{PASSPHRASE}\n"));
    signs(&keys, unlocked(ssh(&file), passphrase), "key").await;
}

#[tokio::test]
async fn git_verifies_a_commit_that_was_signed_with_an_ecdsa_ssh_key_and_trusts_no_other() {
    let keys = Keys::new();
    let file = keys.ssh("key", &["ecdsa", "-b", "256"], "");
    keys.ssh("other", &["ed25519"], "");
    let house = signing_house(ssh(&file)).await;
    house.labelled_and_worked().await;
    verified(&keys, &house, "key").expect("git is content");
    verified(&keys, &house, "other").expect_err("the key is not trusted");
}

#[tokio::test]
async fn git_verifies_a_commit_that_was_signed_with_a_plain_rsa_openpgp_key() {
    let keys = Keys::new();
    let file = keys.openpgp("rsa3072", "");
    signs(&keys, openpgp(&file), "").await;
}

#[tokio::test]
async fn git_verifies_a_commit_that_was_signed_with_an_encrypted_rsa_openpgp_key() {
    let keys = Keys::new();
    let file = keys.openpgp("rsa3072", PASSPHRASE);
    let passphrase = keys.file("passphrase", PASSPHRASE);
    signs(&keys, unlocked(openpgp(&file), passphrase), "").await;
}

#[tokio::test]
async fn git_verifies_a_commit_that_was_signed_with_an_encrypted_ed25519_openpgp_key() {
    let keys = Keys::new();
    let file = keys.openpgp("ed25519", PASSPHRASE);
    let passphrase = keys.file("passphrase", PASSPHRASE);
    signs(&keys, unlocked(openpgp(&file), passphrase), "").await;
}

#[tokio::test]
async fn git_verifies_a_commit_that_was_signed_with_an_openpgp_subkey_alone() {
    let keys = Keys::new();
    let file = keys.openpgp_subkey();
    signs(&keys, openpgp(&file), "").await;
}

/// Works until the commit is written down, and then drops the work as a kill would.
async fn killed_before_the_push(house: &House) -> Ready {
    house.clock.advance(house.bot.config.queue.settle);
    let ready = async {
        loop {
            if let Some(ready) = house.jobs().await.first().and_then(|row| row.job.ready.clone()) {
                return ready;
            }
            tokio::task::yield_now().await;
        }
    };
    let ready = tokio::select! {
        biased;
        ready = ready => ready,
        _ = house.step() => panic!("the job ended before it was killed"),
    };
    assert_eq!(house.forge.branch_head(&house.repo, &ready.branch), None, "nothing was pushed");
    house.clock.advance(house.bot.config.queue.lease);
    ready
}

#[tokio::test]
async fn a_kill_between_commit_and_push_leads_to_the_one_signed_commit() {
    for kind in ["ssh", "openpgp"] {
        let keys = Keys::new();
        let signing = match kind {
            "ssh" => ssh(&keys.ssh("key", &["ecdsa", "-b", "384"], "")),
            _ => openpgp(&keys.openpgp("ed25519", "")),
        };
        let house = signing_house(signing).await;
        let issue = house.open_issue().await;
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        let ready = killed_before_the_push(&house).await;
        let asked = house.model.requests().len();
        house.work_through_retries().await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{kind}");
        assert_eq!(house.model.requests().len(), asked, "{kind}: no second session");
        let pushed = house.forge.branch_head(&house.repo, &ready.branch);
        assert_eq!(pushed, Some(ready.commit.0), "{kind}: the commit is the one written down");
        verified(&keys, &house, "key").expect("git is content");
        house.assert_one_of_each(issue, kind).await;
        house.assert_clean().await;
    }
}

/// Why the bot would not start with this key.
fn flaw(signing: Signing) -> String {
    let mut config = Config::default();
    config.publish.signing = Some(signing);
    let secrets = config.secrets(Path::new("hyla.toml"));
    let key = match secrets {
        Ok(secrets) => secrets.signing.expect("a key is configured"),
        Err(error) => return error.to_string(),
    };
    let now = DateTime::from_timestamp(1_800_000_000, 0).expect("that is an instant");
    match Signer::open(&key, EMAIL, now) {
        Ok(signer) => format!("opened: {signer:?}"),
        Err(error) => bot::halt::chain(&error),
    }
}

#[test]
fn a_key_that_cannot_sign_is_told_with_its_file_and_what_to_do() {
    let keys = Keys::new();
    let locked = keys.ssh("locked", &["ed25519"], PASSPHRASE);
    let wrong = keys.file("wrong", "another-passphrase");
    let pem = keys.ssh("pem", &["rsa", "-b", "2048", "-m", "PEM"], "");
    let short = keys.ssh("short", &["rsa", "-b", "1024"], "");
    let open = keys.ssh("open", &["ed25519"], "");
    let public = keys.file("public", &std::fs::read_to_string(open.with_extension("pub")).unwrap());
    let word = keys.file("word", "hunter2 hunter2");
    let cut = std::fs::read_to_string(&open).unwrap();
    let cut = keys.file("cut", &cut.replacen("b3BlbnNzaC1rZXk", "b3BlbnNzaC1rZXX", 1));
    let lent = keys.ssh("lent", &["ed25519"], "");
    std::fs::set_permissions(&lent, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let cases = [
        (ssh(&locked), &locked, "is encrypted; set `publish.signing.passphrase`"),
        (unlocked(ssh(&locked), wrong.clone()), &locked, "does not unlock it"),
        (ssh(&pem), &pem, "convert a copy with `ssh-keygen -p -f COPY`"),
        (ssh(&short), &short, "RSA key of 1024 bits is too short"),
        (ssh(&public), &public, "is a public key; name the private one"),
        (ssh(&word), &word, "no private SSH key; make one with `ssh-keygen"),
        (ssh(&cut), &cut, "no private SSH key"),
        (ssh(&lent), &lent, "every user of this machine (mode 644); run `chmod 600"),
        (openpgp(&word), &word, "no private OpenPGP key; export one with `gpg"),
        (openpgp(&open), &open, "no private OpenPGP key"),
    ];
    for (signing, file, expected) in cases {
        let told = flaw(signing);
        let named = told.contains(&file.display().to_string());
        assert!(named && told.contains(expected), "{}: {told}", file.display());
        for secret in ["hunter2", "another-passphrase", "b3BlbnNzaC1rZXX"] {
            assert!(!told.contains(secret), "{told}");
        }
    }
}

#[test]
fn an_openpgp_key_that_cannot_sign_for_the_committer_is_told() {
    let check = |keys: &Keys, file: &Path, expected: &str| {
        let told = flaw(openpgp(file));
        let named = told.contains(&file.display().to_string());
        assert!(named && told.contains(expected), "{expected}: {told}");
        drop(keys.fingerprint());
    };
    let keys = Keys::new();
    let locked = keys.openpgp("ed25519", PASSPHRASE);
    check(&keys, &locked, "is encrypted; set `publish.signing.passphrase`");
    let wrong = keys.file("wrong", "another-passphrase");
    assert!(flaw(unlocked(openpgp(&locked), wrong)).contains("does not unlock it"));
    let public = keys.gpg("", &["--armor", "--export", EMAIL]).stdout;
    let public = keys.file("public", &String::from_utf8_lossy(&public));
    check(&keys, &public, "is a public key; export the private one");

    let keys = Keys::new();
    keys.gpg("", &["--quick-generate-key", "Eve <eve@example.org>", "ed25519", "sign", "never"]);
    let eve = keys.gpg("", &["--armor", "--export-secret-keys", "eve@example.org"]).stdout;
    let eve = keys.file("eve", &String::from_utf8_lossy(&eve));
    let told = flaw(openpgp(&eve));
    assert!(told.contains("the key is of `Eve <eve@example.org>`; set the address"), "{told}");

    let keys = Keys::new();
    let owner = format!("Hyla <{EMAIL}>");
    keys.gpg("", &["--quick-generate-key", &owner, "ed25519", "sign", "1y"]);
    check(&keys, &keys.export("", "--export-secret-keys"), "has expired; prolong it");

    let keys = Keys::new();
    keys.gpg("", &["--quick-generate-key", &owner, "ed25519", "cert", "never"]);
    check(&keys, &keys.export("", "--export-secret-keys"), "no key that may sign");
}

#[tokio::test]
async fn the_doctor_tells_the_key_and_the_service_does_not_start_with_a_bad_one() {
    let keys = Keys::new();
    let file = keys.ssh("key", &["ed25519"], "");
    let lines = |file: &Path| {
        format!(
            "[publish]\nsign_off = true\nsigning = {{ ssh_key = {{ file = \"{}\" }} }}\n",
            file.display()
        )
    };
    let outside = Outside::start(tests::house::demo_recording(), &lines(&file)).await;
    let hyla = |command: &str, file: &str| {
        let output = Command::new(hyla_binary()).args([command, "--config", file]).output();
        let output = output.expect("the binary runs");
        let [out, err] =
            [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        (output.status.code(), out, err)
    };
    let print = Command::new("ssh-keygen").arg("-lf").arg(&file).output();
    let print = String::from_utf8_lossy(&done(print).stdout).into_owned();
    let print = print.split(' ').nth(1).expect("the fingerprint comes second").to_owned();
    let (config, text) = (&outside.file, std::fs::read_to_string(&outside.file).unwrap());
    // The forge answers on this thread.
    let doctor = tokio::task::spawn_blocking({
        let config = config.clone();
        move || hyla("doctor", &config)
    });
    let (_, out, err) = doctor.await.expect("it does not panic");
    assert!(out.contains(&format!("signed with SSH key {print}")), "{out}{err}");
    assert!(out.contains("signed off"), "{out}");

    let locked = keys.ssh("locked", &["ed25519"], PASSPHRASE);
    std::fs::write(config, text.replace(&lines(&file), &lines(&locked))).unwrap();
    for command in ["doctor", "serve"] {
        let (code, out, err) = hyla(command, config);
        assert_eq!(code, Some(1), "{command}: {out}{err}");
        let expected = format!("cannot sign commits with the file `{}`", locked.display());
        assert!(err.contains(&expected) && err.contains("is encrypted"), "{command}: {err}");
    }
}
