//! Check E: whatever the agent writes into the work tree or into `.git`, the host runs nothing of it, and what is no plain
//! change of a file is refused by the gate under its name. Only the forge differs from place to place: what protects its
//! own files, and where the draft goes.

use bot::job::{Outcome, Rule};
use tests::house::{House, Place, Setup};
use tests::model::{Recording, Turn};

const FIX: &str = "sed -i 's/return opens <=/return closes < opens or opens <=/' hours.py";

async fn worked(place: Place, script: &str) -> (House, u64) {
    let turns = vec![Turn::bash(script), Turn::says("Done.")];
    let recording = Recording { turns, ..Recording::default() };
    let house = House::start(place.with(Setup { recording, ..Setup::default() })).await;
    let issue = house.labelled_and_worked().await;
    house.work_through_retries().await;
    (house, issue)
}

#[tokio::test]
async fn check_e_a_poisoned_git_folder_runs_nothing_and_the_fix_alone_is_published() {
    let marker = tempfile::tempdir().expect("the temp folder can be written");
    let trap = marker.path().join("trap");
    let evil = format!(
        "printf '#!/bin/sh\\ntouch {}\\ncat\\n' > /tmp/evil.sh; chmod +x /tmp/evil.sh",
        trap.display()
    );
    let poison = "for hook in pre-commit post-checkout pre-push reference-transaction post-index-change; do cp /tmp/evil.sh .git/hooks/$hook; done; \
        for key in core.fsmonitor core.sshCommand core.editor core.askPass diff.external credential.helper \
            filter.x.clean filter.x.smudge filter.x.process merge.x.driver gpg.program uploadpack.packObjectsHook; do \
            git config $key /tmp/evil.sh; done; \
        git config core.hooksPath /tmp; git config core.worktree /etc; git config include.path /tmp/evil.sh; \
        git config url.http://127.0.0.1:9/.insteadOf http; \
        echo '* filter=x diff=x merge=x' > .git/info/attributes; echo /etc > .git/objects/info/alternates; \
        echo http://127.0.0.1:9/ > .git/objects/info/http-alternates";
    for place in [Place::FORGEJO, Place::GITHUB_APP] {
        for (name, folder) in [
            ("poisoned", poison),
            ("a link", "rm -rf .git; ln -s /etc .git"),
            ("a file", "rm -rf .git; echo 'gitdir: /etc' > .git"),
        ] {
            let (house, _) = worked(place, &format!("{evil}; {folder}; {FIX}")).await;
            let end = house.end().await;
            assert_eq!(end.outcome, Outcome::DraftPr, "{place:?} {name}: {}", end.operator);
            let diff = house.forge.diff(&house.repo, house.forge.pulls(&house.repo)[0].number);
            assert_eq!(diff.matches("diff --git").count(), 1, "{place:?} {name}: {diff}");
            assert!(!trap.exists(), "{place:?} {name}");
            house.assert_clean().await;
        }
    }
}

#[tokio::test]
async fn check_e_the_gate_refuses_what_is_no_plain_change() {
    let place = Place::GITHUB_APP;
    for (script, rule) in [
        ("mkdir -p .github/workflows; echo x > .github/workflows/ci.yml", Rule::ProtectedPath),
        ("mkdir -p .GITHUB/Workflows; echo x > .GITHUB/Workflows/ci.yml", Rule::ProtectedPath),
        ("echo '* @eve' > CODEOWNERS", Rule::ProtectedPath),
        (
            "printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = http://127.0.0.1/x\\n' > .gitmodules",
            Rule::ProtectedPath,
        ),
        ("echo '* filter=x' > .gitattributes", Rule::ProtectedPath),
        ("ln -s /etc/passwd passwd", Rule::Symlink),
        ("ln -s ../.git/config settings", Rule::Symlink),
    ] {
        let (house, issue) = worked(place, &format!("{script}; {FIX}")).await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::Refused(rule), "{script}: {}", end.operator);
        assert!(house.forge.pulls(&house.repo).is_empty(), "{script}");
        assert_eq!(house.forge.branches(&house.repo).len(), 1, "{script}: nothing was pushed");
        assert!(house.status_comments(issue)[0].contains(&end.person), "{script}");
        house.assert_clean().await;
    }
}
