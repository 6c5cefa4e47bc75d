//! The audit record from outside: it tells who asked, what the model was given, what was refused and pushed; and no hand
//! in the database, in a transcript or in an export stays unseen.

use std::path::Path;

use bot::forge::Permission;
use bot::store::Store as _;
use serde_json::Value;
use sqlx::SqlitePool;

use crate::commands::{Ran, hyla};
use crate::storms::database;
use tests::outside::{LOOK, Outside, until};

/// `hyla audit` with these arguments.
async fn audit(outside: &Outside, arguments: &[&str]) -> Ran {
    hyla(&[&["audit"], arguments, &["--config", &outside.file]].concat()).await
}

async fn verified(outside: &Outside, arguments: &[&str]) -> Value {
    let ran = audit(outside, &[&["verify", "--json"], arguments].concat()).await;
    serde_json::from_str(&ran.stdout).expect("it is JSON")
}

async fn lines(outside: &Outside) -> Vec<Value> {
    let ran = audit(outside, &["export"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

fn named<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

/// A service that has made one draft, and refused a command of somebody who may not write.
async fn worked() -> (Outside, u64) {
    let outside = Outside::usual().await;
    outside.forge.add_user("eve", Permission::None);
    outside.forge.set_permission(&outside.repo, "eve", Permission::Read);
    let mut service = outside.serve_logged();
    outside.is_heard().await;
    let issue = outside.open_issue(&["hyla"]).await;
    let store = outside.store().await;
    until("the draft is there", || outside.forge.pulls(&outside.repo).len() == 1).await;
    outside.is_done("the draft is there").await;
    let comment = outside.forge.person("eve").comment(&outside.repo, issue, "/hyla fix").await;
    until("it is refused", || {
        outside.forge.comment_reactions(comment).iter().any(|(_, sign)| sign == "-1")
    })
    .await;
    // The command has its end after its reaction.
    let is_told = |line: &String| line.contains("\"event\":\"command\"");
    while !store.audit(0).await.expect("it answers").iter().any(is_told) {
        tokio::time::sleep(LOOK).await;
    }
    service.kill().await.expect("it runs");
    (outside, issue)
}

/// Runs SQL as somebody would who may write the file.
async fn tampered(pool: &SqlitePool, statements: &[&'static str]) -> Result<(), sqlx::Error> {
    for statement in statements {
        sqlx::query(*statement).execute(pool).await?;
    }
    Ok(())
}

#[tokio::test]
async fn it_tells_who_asked_what_was_given_refused_and_pushed() {
    let (outside, issue) = worked().await;
    let lines = lines(&outside).await;
    let about = format!("main:acme/hours#{issue}");
    assert!(lines.iter().all(|line| line["issue"] == about.as_str()), "{lines:#?}");
    assert_eq!(named(&lines, "asked")[0]["by"], "ann");
    let row = &outside.jobs().await[0];
    let given = named(&lines, "given")[0];
    assert_eq!(given["digest"].as_str(), row.digest.as_deref());
    assert_eq!(given["base"], row.base.as_ref().expect("it had one").0);
    let ready = row.job.ready.as_ref().expect("it was pushed");
    assert_eq!(named(&lines, "ready")[0]["commit"], ready.commit.0);
    assert_eq!(named(&lines, "ready")[0]["branch"], ready.branch);
    assert_eq!(named(&lines, "drafted")[0]["pull"].as_u64(), row.job.pull);
    assert_eq!(named(&lines, "ended")[0]["outcome"], "draft_pr");
    let command = named(&lines, "command")[0];
    assert_eq!(command["note"], "a command of somebody without write access");
    let order: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(order, ["asked", "given", "spoke", "ready", "drafted", "ended", "command"]);
    for line in &lines {
        assert!(!line.to_string().contains(&outside.token), "a token in {line}");
    }

    // A log that goes to another machine has the head of each job's end.
    let before: bot::audit::Head =
        format!("{}:{}", 6, lines[6]["previous"].as_str().expect("it has one"))
            .parse()
            .expect("it is one");
    let log = std::fs::read_to_string(outside.log()).expect("it is there");
    assert!(log.contains(&format!("\"audit_head\":\"{before}\"")), "{log}");

    let whole = verified(&outside, &[]).await;
    assert_eq!((&whole["whole"], &whole["records"]), (&true.into(), &7.into()));
    assert_eq!(whole["transcripts"]["whole"], 1);
    let words = audit(&outside, &["verify"]).await;
    assert!(
        words.stdout.contains(whole["head"].as_str().expect("there is one")),
        "{}",
        words.stdout
    );
}

#[tokio::test]
async fn no_hand_in_database_transcript_or_export_stays_unseen() {
    let (outside, _) = worked().await;
    let pool = database(&outside.data()).await;
    let head = verified(&outside, &[]).await["head"].as_str().expect("there is one").to_owned();
    let exported = audit(&outside, &["export"]).await.stdout;
    let file = outside.folder.path().join("audit.jsonl");
    let path = file.display().to_string();
    std::fs::write(&file, &exported).expect("the temp folder can be written");
    let read = verified(&outside, &["--file", &path, "--head", &head]).await;
    assert_eq!(read["whole"], true, "{read}");

    // The bot's own database refuses.
    for statement in ["UPDATE audit SET record = '{}'", "DELETE FROM audit WHERE number = 7"] {
        let refused = tampered(&pool, &[statement]).await.expect_err("the record stays");
        assert!(refused.to_string().contains("takes additions only"), "{refused}");
    }
    // Whoever has the file may change that, and is seen.
    tampered(&pool, &["DROP TRIGGER audit_stays", "DROP TRIGGER audit_stays_whole"])
        .await
        .expect("the file is ours");
    tampered(
        &pool,
        &["UPDATE audit SET record = replace(record, '\"ann\"', '\"eve\"') WHERE number = 1"],
    )
    .await
    .expect("the file is ours");
    let ran = audit(&outside, &["verify"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stdout.contains("record 1 was changed or replaced"), "{}", ran.stdout);
    assert!(ran.stdout.contains("compare it with a backup"), "{}", ran.stdout);
    tampered(
        &pool,
        &["UPDATE audit SET record = replace(record, '\"eve\"', '\"ann\"') WHERE number = 1"],
    )
    .await
    .expect("the file is ours");
    assert_eq!(verified(&outside, &["--head", &head]).await["whole"], true);
    let job = outside.jobs().await[0].job.id;
    // A transcript that says something else by now.
    let transcript = outside.data().join("jobs").join(job.to_string()).join("transcript.jsonl");
    changed(&transcript);
    let found = verified(&outside, &[]).await;
    assert_eq!(
        (&found["whole"], &found["transcripts"]["changed"]),
        (&false.into(), &vec![job.0].into())
    );
    std::fs::remove_file(&transcript).expect("it is there");
    let found = verified(&outside, &[]).await;
    assert_eq!((&found["whole"], &found["transcripts"]["removed"]), (&true.into(), &1.into()));

    // Its end cut off: only a head that was kept tells.
    tampered(&pool, &["DELETE FROM audit WHERE number = 7"]).await.expect("the file is ours");
    assert_eq!(verified(&outside, &[]).await["whole"], true);
    let ran = audit(&outside, &["verify", "--head", &head]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stdout.contains("cut off: it ends with record 6"), "{}", ran.stdout);
    std::fs::write(&file, exported.replacen("\"asked\"", "\"ended\"", 1)).expect("it is ours");
    let ran = audit(&outside, &["verify", "--file", &path]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    let ran = audit(&outside, &["verify", "--head", "7"]).await;
    assert!(ran.stderr.contains("a head is NUMBER:HEX"), "{}", ran.stderr);
}

fn changed(file: &Path) {
    let text = std::fs::read_to_string(file).expect("it is there");
    let other = text.replacen("hours", "years", 1);
    assert_ne!(text, other);
    std::fs::write(file, other).expect("it is ours");
}
