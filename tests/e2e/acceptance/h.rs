//! Check H: files as they are. Whole jobs through the forge; what was pushed is compared by git itself, byte by byte and
//! mode by mode, with what was there, and what is refused is refused by its rule, with the patch kept.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use bot::job::{End, Outcome, Rule, State};
use serde_json::json;
use tests::house::{House, Setup};
use tests::model::{Recording, Turn};

/// The letters of a text in Latin-1.
const LATIN: &[u8] = b"caf\xe9 cr\xe8me\nth\xe9\n";
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4665a5ea423c2713d436b5ee50593a9640e0018c1550b5a0002f74190d6caea8\nsize 12345\n";

fn git(dir: &Path, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("git")
        .args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"])
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_DIR", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("git runs");
    child.stdin.take().expect("it is a pipe").write_all(input).expect("git reads");
    let output = child.wait_with_output().expect("git ends");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    output.stdout
}

/// A file of the repository: mode, path and content, which of a submodule is a commit.
type File<'f> = (&'f str, &'f [u8], &'f [u8]);

/// Puts a commit with these files, and no others, on `main`.
fn commit(house: &House, files: &[File<'_>]) {
    let mut stream = b"commit refs/heads/main\ncommitter Ada <ada@example.org> 1767603600 +0000\ndata 5\nFiles\nfrom refs/heads/main^0\ndeleteall\n".to_vec();
    for (mode, path, content) in files {
        let quoted: String = path.iter().map(|byte| format!("\\{byte:03o}")).collect();
        if *mode == "160000" {
            let id = String::from_utf8_lossy(content);
            stream.extend(format!("M {mode} {id} \"{quoted}\"\n").bytes());
            continue;
        }
        stream.extend(format!("M {mode} inline \"{quoted}\"\ndata {}\n", content.len()).bytes());
        stream.extend_from_slice(content);
        stream.push(b'\n');
    }
    git(&house.forge.git_dir(&house.repo), &["fast-import", "--quiet"], &stream);
}

/// Every path of a commit with its mode and object.
fn listing(house: &House, commit: &str) -> BTreeMap<Vec<u8>, String> {
    let dir = house.forge.git_dir(&house.repo);
    let lines = git(&dir, &["ls-tree", "-r", "-z", "--full-tree", commit], b"");
    let entries = lines.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
    let pair = |entry: &[u8]| {
        let at =
            entry.iter().position(|byte| *byte == b'\t').expect("a tab stands before the path");
        (entry[at + 1..].to_vec(), String::from_utf8_lossy(&entry[..at]).into_owned())
    };
    entries.map(pair).collect()
}

/// A house whose repository holds these files, and one story for each case.
async fn house<'c>(
    files: &[File<'_>],
    cases: impl IntoIterator<Item = (&'c str, Vec<Turn>)>,
) -> House {
    let stories = cases.into_iter().map(|(about, mut turns)| {
        turns.push(Turn::says("Done."));
        (format!("case {about}."), turns)
    });
    let house =
        House::start(Setup { recording: Recording::of_stories(stories), ..Setup::default() }).await;
    commit(&house, files);
    house
}

/// Asks for a case and works it to its end. Returns the end and the draft's branch, if there is one.
async fn worked(house: &House, about: &str) -> (End, Option<String>) {
    let ann = house.forge.person("ann");
    let issue = ann.open_issue(&house.repo, "A change", &format!("case {about}."), &[]).await;
    ann.add_label(&house.repo, issue, "hyla").await;
    house.work_through_retries().await;
    let row = house.jobs().await.into_iter().find(|row| row.job.subject.issue == issue);
    let State::Ended { end } = row.expect("there is a job").job.state else { panic!("{about}") };
    let pull = house
        .forge
        .pulls(&house.repo)
        .into_iter()
        .find(|pull| pull.body.starts_with(&format!("Closes #{issue}\n")));
    (end, pull.map(|pull| pull.head))
}

/// The only path that differs between `main` and a branch, with its new mode and content.
fn changed(house: &House, head: &str) -> BTreeMap<String, (String, Vec<u8>)> {
    let (before, after) = (listing(house, "main"), listing(house, head));
    for path in before.keys() {
        assert!(after.contains_key(path), "{} is gone", String::from_utf8_lossy(path));
    }
    let dir = house.forge.git_dir(&house.repo);
    let mut changed = BTreeMap::new();
    for (path, entry) in after.iter().filter(|(path, entry)| before.get(*path) != Some(entry)) {
        let (mode, id) = (entry[..6].to_owned(), entry[12..].to_owned());
        let path = String::from_utf8_lossy(path).into_owned();
        changed.insert(path, (mode, git(&dir, &["cat-file", "blob", &id], b"")));
    }
    changed
}

fn edit(path: &str, old: &str, new: &str) -> Turn {
    Turn::call("Edit", &json!({ "file_path": path, "old_string": old, "new_string": new }))
}

fn write(path: &str, content: &str) -> Turn {
    Turn::call("Write", &json!({ "file_path": path, "content": content }))
}

fn seen(house: &House, about: &str) -> Vec<String> {
    house.model.observations(&format!("case {about}."))
}

fn kept_patch(house: &House, job: i64) -> String {
    let folder = house.bot.folder(bot::job::JobId(job));
    std::fs::read_to_string(folder.patch()).expect("the patch is kept")
}

/// Everything that a repository may hold and no tool expects.
fn odd_files(binary: &[u8]) -> Vec<File<'_>> {
    let files: [File<'_>; 20] = [
        ("100644", b"a.txt", b"one\ntwo\nthree\n"),
        ("100644", b"crlf.txt", b"one\r\ntwo\r\nthree\r\n"),
        ("100644", b"bom.txt", b"\xef\xbb\xbfone\r\ntwo\r\n"),
        ("100644", b"latin.txt", LATIN),
        ("100644", b"open.txt", b"one\ntwo"),
        ("100644", b"mixed.txt", b"one\r\ntwo\nthree\rfour\n"),
        ("100755", b"run.sh", b"#!/bin/sh\necho one\n"),
        ("100755", b"tool", b"\x7fELF\0\0\xff\xfe"),
        ("120000", b"link", b"a.txt"),
        ("120000", b"out", b"../../etc/passwd"),
        (
            "100644",
            b".gitattributes",
            b"*.psd filter=lfs diff=lfs merge=lfs -text\n* text=auto eol=crlf\n",
        ),
        ("100644", b"art.psd", POINTER.as_bytes()),
        (
            "100644",
            b".gitmodules",
            b"[submodule \"module\"]\n\tpath = module\n\turl = https://example.org/module\n",
        ),
        ("160000", b"module", b"0123456789abcdef0123456789abcdef01234567"),
        ("100644", b"large.bin", binary),
        ("100644", b"caf\xe9/\xff\xfe", b"not UTF-8\n"),
        ("100644", b"README", b"upper\n"),
        ("100644", b"readme", b"lower\n"),
        ("100644", "n\u{308}ame \"quoted\"\t".as_bytes(), b"x\n"),
        ("100644", b"empty", b""),
    ];
    files.to_vec()
}

#[tokio::test]
#[expect(clippy::too_many_lines, clippy::type_complexity, reason = "a table of cases")]
async fn check_h_an_edit_keeps_line_ends_mark_encoding_last_line_and_mode() {
    let binary: Vec<u8> =
        (0..5_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let cases: [(&str, Vec<Turn>, &str, &str, &[u8]); 14] = [
        (
            "crlf",
            vec![edit("crlf.txt", "two", "2\nmore")],
            "crlf.txt",
            "100644",
            b"one\r\n2\r\nmore\r\nthree\r\n",
        ),
        ("crlf whole", vec![write("crlf.txt", "one\n2\n")], "crlf.txt", "100644", b"one\r\n2\r\n"),
        (
            "mark",
            vec![edit("bom.txt", "one\ntwo", "1\ntwo")],
            "bom.txt",
            "100644",
            b"\xef\xbb\xbf1\r\ntwo\r\n",
        ),
        (
            "mark whole",
            vec![write("bom.txt", "1\ntwo\n")],
            "bom.txt",
            "100644",
            b"\xef\xbb\xbf1\r\ntwo\r\n",
        ),
        (
            "latin",
            vec![edit("latin.txt", "cr", "CR")],
            "latin.txt",
            "100644",
            b"caf\xe9 CR\xe8me\nth\xe9\n",
        ),
        (
            "latin whole",
            vec![
                write("latin.txt", "caf\u{fffd} CR\u{fffd}me\nth\u{fffd}\n"),
                edit("latin.txt", "me\nth", "ME\nth"),
            ],
            "latin.txt",
            "100644",
            b"caf\xe9 cr\xe8ME\nth\xe9\n",
        ),
        ("open", vec![edit("open.txt", "one", "1")], "open.txt", "100644", b"1\ntwo"),
        (
            "mixed",
            vec![edit("mixed.txt", "two", "2")],
            "mixed.txt",
            "100644",
            b"one\r\n2\nthree\rfour\n",
        ),
        ("mode", vec![edit("run.sh", "one", "two")], "run.sh", "100755", b"#!/bin/sh\necho two\n"),
        (
            "mode whole",
            vec![write("run.sh", "#!/bin/sh\necho 3\n")],
            "run.sh",
            "100755",
            b"#!/bin/sh\necho 3\n",
        ),
        ("case", vec![edit("readme", "lower", "LOWER")], "readme", "100644", b"LOWER\n"),
        (
            "umlaut",
            vec![edit("n\u{308}ame \"quoted\"\t", "x", "y")],
            "n\u{308}ame \"quoted\"\t",
            "100644",
            b"y\n",
        ),
        (
            "script",
            vec![Turn::bash("sed -i 's/two/2/' a.txt; touch *; git status --short >&2")],
            "a.txt",
            "100644",
            b"one\n2\nthree\n",
        ),
        (
            "link",
            vec![Turn::bash(
                "ln -s a.txt new; rm link; ln -s README link; git checkout -q link; git add -A",
            )],
            "new",
            "120000",
            b"a.txt",
        ),
    ];
    let stories = cases.iter().map(|(about, turns, ..)| (*about, turns.clone()));
    let house = house(&odd_files(&binary), stories).await;
    for (about, _, path, mode, content) in &cases {
        let (end, head) = worked(&house, about).await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{about}: {}", end.operator);
        let changed = changed(&house, &head.expect("there is a draft"));
        let expected =
            BTreeMap::from([((*path).to_owned(), ((*mode).to_owned(), content.to_vec()))]);
        assert_eq!(changed, expected, "{about}: {:?}", seen(&house, about));
    }
    git(&house.forge.git_dir(&house.repo), &["fsck", "--no-dangling", "--connectivity-only"], b"");
    house.assert_clean().await;
}

#[tokio::test]
async fn check_h_what_may_not_cross_is_refused_by_its_rule_and_kept() {
    let binary = vec![0xa5; 5 << 20];
    let lines = "seq 34000 > lines";
    let cases: [(&str, &str, Rule, &str); 19] = [
        ("ends", "sed -i 's/\\r$//' crlf.txt", Rule::LineEndings, "+one"),
        ("other ends", "sed -i 's/$/\\r/' a.txt", Rule::LineEndings, "a.txt"),
        ("mark gone", "sed -i '1s/^\\xef\\xbb\\xbf//' bom.txt", Rule::Encoding, "bom.txt"),
        (
            "letters lost",
            "python3 -c 'p=\"latin.txt\"; t=open(p,errors=\"replace\").read(); open(p,\"w\").write(t)'",
            Rule::Encoding,
            "latin.txt",
        ),
        (
            "recoded",
            "iconv -f latin1 -t utf-8 latin.txt > x && cat x > latin.txt; rm x",
            Rule::Encoding,
            "latin.txt",
        ),
        ("exec on", "chmod +x a.txt", Rule::FileMode, "new mode 100755"),
        ("exec off", "chmod -x run.sh", Rule::FileMode, "new mode 100644"),
        ("link leaves", "ln -s ../../etc/passwd new", Rule::Symlink, "passwd"),
        ("link to file", "rm link; cp a.txt link", Rule::FileMode, "link"),
        ("file to link", "rm a.txt; ln -s README a.txt", Rule::FileMode, "a.txt"),
        ("pointer", "sed -i 's/12345/12346/' art.psd", Rule::LfsPointer, "12346"),
        ("pointer filled", "echo picture > art.psd", Rule::LfsPointer, "picture"),
        ("tracked by lfs", "echo picture > new.psd", Rule::LfsPointer, "picture"),
        ("attributes", "echo '* -text' > .gitattributes", Rule::ProtectedPath, "-text"),
        ("submodule", "rmdir module; echo x > module", Rule::Submodule, "module"),
        ("binary", "printf 'a\\0b' > new.bin", Rule::Binary, "GIT binary patch"),
        (
            "large binary",
            "printf x | dd of=large.bin conv=notrunc status=none",
            Rule::TooLarge,
            "large.bin",
        ),
        ("odd name", "printf x > \"$(printf 'caf\\351/\\377\\376')\"", Rule::PathName, "caf"),
        ("other case", "echo x > A.txt", Rule::PathName, "A.txt"),
    ];
    let mut stories: Vec<_> = cases.iter().map(|case| (case.0, vec![Turn::bash(case.1)])).collect();
    stories.push(("lines", vec![Turn::bash(&format!("{lines}1; {lines}2; {lines}3"))]));
    let house = house(&odd_files(&binary), stories).await;
    for (about, _, rule, words) in
        cases.iter().copied().chain([("lines", "", Rule::TooLarge, "+34000\n")])
    {
        let (end, head) = worked(&house, about).await;
        assert_eq!(
            end.outcome,
            Outcome::Refused(rule),
            "{about}: {} {:?}",
            end.operator,
            seen(&house, about)
        );
        assert_eq!(head, None, "{about}");
        let job = house.jobs().await[0].job.id;
        let patch = kept_patch(&house, job.0);
        assert!(patch.contains(words), "{about}: {}", &patch[..patch.len().min(3000)]);
        if about == "lines" {
            assert_eq!(patch.matches("\n+34000\n").count(), 3, "nothing of it is lost");
        }
    }
    assert_eq!(house.forge.branches(&house.repo).len(), 1, "nothing was pushed");
    house.assert_clean().await;
}

#[tokio::test]
async fn check_h_fifty_thousand_files_are_left_as_they_are() {
    let names: Vec<String> =
        (0..50_000).map(|n| format!("d{}/e{}/f{n}.txt", n % 50, n % 1000)).collect();
    let mut files: Vec<File<'_>> =
        names.iter().map(|name| ("100644", name.as_bytes(), name.as_bytes())).collect();
    files.push(("100644", b"a.txt", b"one\n"));
    let all = "find . -name '*.txt' -not -path './.git/*' | wc -l";
    let cases = [
        (
            "edit",
            vec![
                Turn::bash(all),
                edit("a.txt", "one", "two"),
                Turn::bash("touch d1/e1/*; mv d1/e1/f1.txt x; mv x d1/e1/f1.txt"),
            ],
        ),
        ("all", vec![Turn::bash("sed -i 's/$/x/' d1/*/*.txt")]),
    ];
    let house = house(&files, cases).await;
    let (end, head) = worked(&house, "edit").await;
    assert_eq!(end.outcome, Outcome::DraftPr, "{}", end.operator);
    assert!(seen(&house, "edit")[0].contains("50001"));
    let changed = changed(&house, &head.expect("there is a draft"));
    assert_eq!(
        changed,
        BTreeMap::from([("a.txt".to_owned(), ("100644".to_owned(), b"two\n".to_vec()))])
    );
    let (end, _) = worked(&house, "all").await;
    assert_eq!(end.outcome, Outcome::Refused(Rule::TooLarge), "{}", end.operator);
    house.assert_clean().await;
}
