//! The whole tree: defaults, errors, secrets.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use secrecy::ExposeSecret;

use crate::{Backend, Config, Credential, SecretRef, parse, parse_repo_file};

const FORGE: &str = "[forge.main]\nkind = \"gitea\"\nurl = \"https://git.example\"\ntoken = { env = \"T\" }\n\
     webhook_secrets = [{ env = \"W\" }]\nrepositories = [\"acme/app\"]\n";

fn error(text: &str) -> String {
    match parse(Path::new("hyla.toml"), text) {
        Ok(_) => format!("accepted: {text}"),
        Err(error) => error.to_string(),
    }
}

const APP: &str = "app = { id = 7, private_key = { env = \"K\" } }";

#[test]
fn a_github_is_reached_with_a_token_or_as_an_app() {
    let github = FORGE.replace("\"gitea\"", "\"github\"");
    let token = "token = { env = \"T\" }";
    let both = github.replace(token, &format!("{token}\n{APP}"));
    assert!(error(&both).contains("there is no `token`"), "{}", error(&both));
    assert!(error(&github.replace(token, "")).contains("an `app` with `id` and `private_key`"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.pem");
    std::fs::write(&file, "-----BEGIN KEY-----\nhush\n-----END KEY-----\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = format!("{{ file = \"{}\" }}", file.display());
    let app = github.replace(token, APP).replace("{ env = \"K\" }", &file);
    let app = app.replace("{ env = \"W\" }", &file.replace("app.pem", "hook"));
    std::fs::write(folder.path().join("hook"), "secret").unwrap();
    std::fs::set_permissions(folder.path().join("hook"), std::fs::Permissions::from_mode(0o600))
        .unwrap();
    let config = parse("hyla.toml".as_ref(), &app).unwrap();
    let secrets = config.secrets("hyla.toml".as_ref()).unwrap();
    let Credential::App { id, private_key } = &secrets.forges["main"].credential else { panic!() };
    assert_eq!(*id, 7);
    assert!(private_key.expose_secret().contains("\nhush\n"), "a key has several lines");
    assert!(!format!("{secrets:?}").contains("hush"));
    assert_eq!(secrets.all().len(), 2);
}

#[test]
fn a_forge_without_a_name_is_told_to_have_one_and_its_secrets_stay_untold() {
    let nameless = FORGE.replace("[forge.main]", "[forge]");
    let secret = "[forge]\ntoken = \"s3cr3t\"\n";
    for text in [nameless.as_str(), secret, "[[forge]]\nkind = \"gitea\"\n", "forge = \"s3cr3t\"\n"]
    {
        let error = error(text);
        assert!(error.contains("write `[forge.NAME]`, such as `[forge.main]`"), "{error}");
        assert!(!error.contains("s3cr3t"), "{error}");
    }
    assert!(!error(&format!("{FORGE}colour = 1\n")).contains("[forge.NAME]"));
}

#[test]
fn a_file_that_cannot_be_read_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let told = |path: &Path| crate::load(path).unwrap_err().to_string();
    let missing = told(&folder.path().join("hyla.toml"));
    assert!(missing.contains("`config/example.toml`") && missing.contains("--config"), "{missing}");
    let is_folder = told(folder.path());
    assert!(is_folder.contains("name the file in it with --config"), "{is_folder}");
    let secret = SecretRef::File(folder.path().join("token")).read().unwrap_err();
    assert!(secret.contains("make the file, as with `sudo install -m 600"), "{secret}");
}

#[test]
fn the_words_of_a_container_engine_are_words() {
    let own = "[sandbox]\nbackend = \"oci\"\noci = ";
    for (text, key, reason) in [
        ("{}", "`sandbox.oci.image`", "an image"),
        ("{image = \"--privileged\"}", "`sandbox.oci.image`", "an image"),
        ("{image = \"a b\"}", "`sandbox.oci.image`", "an image"),
        ("{image = \"a\", engine = \"podman\"}", "`sandbox.oci.engine`", "absolute"),
        ("{image = \"a\", runtime = \"-x\"}", "`sandbox.oci.runtime`", "a runtime"),
        ("{image = \"a\", pull = true}", "`sandbox", "unknown field `pull`"),
    ] {
        let error = error(&format!("{own}{text}"));
        assert!(error.contains(key) && error.contains(reason), "{text} gave {error:?}");
    }
    let text = format!("{own}{{image = \"localhost/a:1\", runtime = \"/usr/bin/runsc\"}}");
    let sandbox = parse(Path::new("hyla.toml"), &text).unwrap().sandbox;
    assert_eq!((sandbox.backend, sandbox.oci.engine), (Backend::Oci, "/usr/bin/podman".into()));
}

#[test]
fn no_folder_is_shown_that_holds_more_than_a_toolchain() {
    let whole = "more than a toolchain";
    for (folder, besides, reason) in [
        ("/var/lib/hyla/x", "", "own data"),
        ("/", "", whole),
        ("/home/ann", "", whole),
        ("/opt/../etc", "", "without `..`"),
        (
            "/opt/keys",
            "[publish.signing]\nssh_key = { file = \"/opt/keys/ssh\" }",
            "the secret in `/opt/keys/ssh`",
        ),
    ] {
        let error = error(&format!("[sandbox]\nread_only = [\"{folder}\"]\n{besides}"));
        let is_said = error.contains("`sandbox.read_only`") && error.contains(reason);
        assert!(is_said, "{folder} gave {error:?}");
    }
}

#[test]
fn an_error_names_file_key_and_reason() {
    let forge = |line: &str| format!("{FORGE}{line}\n");
    let cases = [
        ("colour = 1", "`hyla.toml`", "unknown field `colour`"),
        ("[queue]\nworkerz = 1", "`queue", "unknown field `workerz`"),
        ("[queue]\nworkers = \"two\"", "`queue.workers`", "invalid type"),
        ("[queue]\nworkers = 0", "`queue.workers`", "from 1 to 64"),
        ("[queue]\nheartbeat = \"30s\"", "`queue.heartbeat`", "third"),
        ("[queue]\nreconcile = \"1s\"", "`queue.reconcile`", "at least 10s"),
        ("[queue]\nsettle = \"9000years\"", "`queue.settle`", "a year"),
        ("[session]\nwall_time = \"500years\"", "`session.wall_time`", "a year"),
        ("[queue]\nlease = \"soon\"", "`queue.lease`", "expected a duration"),
        ("[server]\nlisten = \"here\"", "`server.listen`", "line 2"),
        ("data_dir = \"data\"", "`data_dir`", "absolute"),
        ("[model]\nendpoint = \"ftp://x/v1\"", "`model.endpoint`", "http"),
        ("[model]\nendpoint = \"http://a:b@x/v1\"", "`model.endpoint`", "no user"),
        ("[model]\nkind = \"cloud\"", "`model.kind`", "unknown variant"),
        ("[model]\nkind = \"local\"", "`model.local.folder`", "needs its folder"),
        ("[model.local]\nfolder = \"m\"", "`model.local.folder`", "absolute"),
        ("[model.local]\ndtype = \"int3\"", "`model.local.dtype`", "int4"),
        ("[model.local]\nsessions = 0", "`model.local.sessions`", "from 1 to 256"),
        ("[session]\nturn_tokens = 131072", "`session.turn_tokens`", "context_tokens"),
        ("[session]\ntop_p = 0.0", "`session.top_p`", "above 0"),
        ("[sandbox]\nram_bytes = 1000000", "`sandbox", "unknown field `ram_bytes`"),
        ("[sandbox]\nuid = 0", "`sandbox.uid`", "root"),
        ("[sandbox]\npath = [\"/opt/bin\"]", "`sandbox.path`", "neither"),
        ("[sandbox.env]\nLD_PRELOAD = \"x\"", "`sandbox.env.LD_PRELOAD`", "own"),
        ("[sandbox.env]\nMY_TOKEN = \"x\"", "`sandbox.env.MY_TOKEN`", "secret"),
        ("[gate]\nprotected_paths = [\"a[\"]", "`gate.protected_paths`", "unclosed"),
        ("[clean_up]\njobs = \"1h\"", "`clean_up.jobs`", "a day"),
        ("[publish]\nbranch_prefix = \"\"", "`publish.branch_prefix`", "plain start"),
        ("[publish]\nauthor_email = \"a <b>\"", "`publish.author_email`", "without `<`"),
        ("[publish.signing]", "`publish.signing`", "name one key"),
        ("[publish.signing]\nkey = \"x\"", "`publish.signing", "unknown field `key`"),
        ("[publish.signing]\nssh_key = \"x\"", "`publish.signing.ssh_key`", "does not belong"),
        (
            "[publish.signing]\nssh_key = { file = \"/a\" }\nopenpgp_key = { file = \"/b\" }",
            "`publish.signing`",
            "name one key",
        ),
        (
            "[publish.signing]\nopenpgp_key = { file = \"/b\" }",
            "`publish.author_email`",
            "set an address that stands in",
        ),
        ("[publish]\nbody_chars = 70000", "`publish.body_chars`", "65536"),
        (
            "[evidence]\ntest_commands = { app = \"x\" }",
            "`evidence.test_commands.app`",
            "owner/name",
        ),
        ("x = ", "`hyla.toml`", "line 1"),
    ];
    for (text, key, reason) in cases {
        let error = error(text);
        assert!(error.contains(key) && error.contains(reason), "{text:?} gave {error:?}");
    }
    let cases = [
        ("label = \"\"", "`forge.main.label`", "empty"),
        ("bots = [\"\"]", "`forge.main.bots`", "empty"),
        ("draft_prefix = \" \"", "`forge.main.draft_prefix`", "prefix"),
        ("ca_file = \"ca.pem\"", "`forge.main.ca_file`", "absolute"),
        ("proxy = \"socks5://p:1080\"", "`forge.main.proxy`", "http://"),
        ("proxy = \"http://a:b@p:3128\"", "`forge.main.proxy`", "no user"),
        ("colour = 1", "`forge.main", "unknown field"),
    ];
    for (line, key, reason) in cases {
        let error = error(&forge(line));
        assert!(error.contains(key) && error.contains(reason), "{line:?} gave {error:?}");
    }
}

#[test]
fn a_forge_that_cannot_be_reached_or_trusted_is_refused() {
    let cases = [
        ("\"gitea\"", "\"gitlab\"", "`gitea`, `forgejo` or `github`"),
        ("token = { env = \"T\" }\n", "", "the access token of its user"),
        ("token = { env = \"T\" }", APP, "only GitHub has apps"),
        ("https://git.example", "https://git.example/?a=b", "no user"),
        ("[{ env = \"W\" }]", "[]", "one secret"),
        ("git.example\"", "git.example/git/api/v1/\"", "drop that"),
        ("acme/app\"", "acme/app\", \"Acme/App\"", "twice"),
        ("acme/app", "acme", "owner/name"),
        ("forge.main", "forge.\"a b\"", "small letters"),
        ("https://git.example\"", "http://git.example\"\nproxy = \"http://p:3128\"", "https only"),
    ];
    for (from, to, reason) in cases {
        let error = error(&FORGE.replace(from, to));
        assert!(error.contains(reason), "{to:?} gave {error:?}");
    }
}

#[test]
fn a_backend_without_namespaces_has_one_job_no_downloads_and_alone_one_repository() {
    let two = FORGE.replace("acme/app\"", "acme/app\", \"acme/other\"");
    let more = FORGE.replace("forge.main", "forge.other");
    for backend in ["none", "landlock-degraded"] {
        let sandbox = format!("[sandbox]\nbackend = \"{backend}\"\n");
        let accepted = |text: &str| parse(Path::new("hyla.toml"), &format!("{text}{sandbox}"));
        assert!(accepted(FORGE).is_ok(), "{backend}");
        assert_eq!(accepted(&two).is_ok(), backend != "none");
        assert_eq!(accepted(&format!("{FORGE}{more}")).is_ok(), backend != "none");
        for (lines, key) in [
            ("[queue]\nworkers = 2\n", "`queue.workers`"),
            ("[egress]\nhosts = [\"example.org\"]\n", "`egress.hosts`"),
        ] {
            let error = error(&format!("{FORGE}{sandbox}{lines}"));
            assert!(error.contains(key) && error.contains(backend), "{error}");
        }
    }
    let error = error(&format!("{two}[sandbox]\nbackend = \"none\"\n"));
    assert!(error.contains("`sandbox.backend`") && error.contains("one repository"), "{error}");
}

#[test]
fn an_error_shows_the_value_and_a_right_form() {
    let cases = [
        ("[server]\nlisten = \"localhost:8474\"", "`localhost:8474`", "\"127.0.0.1:8474\""),
        ("[server]\nlisten = 8474", "`8474`", "\"127.0.0.1:8474\""),
        ("[queue]\nlease = 60", "`60`", "\"90s\""),
        ("[queue]\nlease = \"soon\"", "\"soon\"", "\"90s\""),
        ("[queue]\nlease = \"1s\"", "`1s`", "at least 3s"),
        ("[queue]\nworkers = \"two\"", "\"two\"", "a whole number"),
        ("[queue]\nworkers = -1", "`-1`", "a whole number"),
        ("[queue]\nworkers = 65", "`65`", "from 1 to 64"),
        ("[session]\ntop_p = \"high\"", "\"high\"", "such as 0.6"),
        ("[session]\nthinking = \"yes\"", "\"yes\"", "true or false"),
        ("[session]\nprofile = 7", "`7`", "in quotes"),
        ("[sandbox]\nread_only = \"/opt\"", "\"/opt\"", "write a list"),
        ("[sandbox]\nbackend = \"docker\"", "`docker`", "`auto`"),
        ("[sandbox]\nenv = 1", "`1`", "write a table"),
        ("[publish]\nauthor_name = 1", "`1`", "text in quotes"),
        ("[model]\nendpoint = \"localhost:8000/v1\"", "`localhost:8000/v1`", "http"),
        ("[model]\nendpoint = \"127.0.0.1:8000/v1\"", "`127.0.0.1:8000/v1`", "http://127"),
        ("data_dir = \"data\"", "`data`", "absolute"),
    ];
    for (text, value, form) in cases {
        let error = error(text);
        assert!(error.contains(value) && error.contains(form), "{text:?} gave {error:?}");
    }
    for text in [
        "[model]\nendpoint = \"http://a:hush@x/v1\"",
        "[model]\nendpoint = \"a:hush@x/v1\"",
        "[model]\nendpoint = \"//a:hush@x/v1\"",
        "[sandbox.env]\nMY_TOKEN = \"hush\"",
        "[model]\nkey = true",
    ] {
        let error = error(text);
        assert!(!error.contains("hush") && !error.contains("`true`:"), "{text:?} gave {error:?}");
    }
}

#[test]
fn a_secret_in_the_file_is_refused_and_not_repeated() {
    for written in [
        "\"s3cr3t-value\"",
        "{ value = \"s3cr3t-value\" }",
        "{ file = \"/a\", env = \"s3cr3t-value\" }",
        "[\"s3cr3t-value\"]",
    ] {
        let error = error(&FORGE.replace("{ env = \"T\" }", written));
        assert!(error.contains("forge.main.token"), "{error}");
        assert!(!error.contains("s3cr3t"), "{error}");
    }
}

#[test]
fn a_malformed_address_is_not_repeated() {
    for written in
        ["http://bot:hunter2@[host/v1", "http://bot:hunter2@host:port/v1", "bot:hunter2@"]
    {
        let in_model = format!("[model]\nendpoint = \"{written}\"\n");
        let in_forge = FORGE.replace("https://git.example", written);
        let public = format!("{FORGE}public_url = \"{written}\"\n");
        for (text, key) in [
            (in_model, "model.endpoint"),
            (in_forge, "forge.main.url"),
            (public, "forge.main.public_url"),
        ] {
            let error = error(&text);
            assert!(error.contains(key) && !error.contains("hunter2"), "{error}");
        }
        assert!(!crate::endpoint(written).unwrap_err().contains("hunter2"));
    }
}

#[test]
fn the_repository_file_names_its_key() {
    assert!(parse_repo_file("enabled = false").unwrap().enabled.is_some());
    for (text, expected) in [
        ("label = \"x\"", "unknown field"),
        ("test_command = \" \"", "test_command"),
        ("protected_paths = [\"[\"]", "protected_paths"),
        // The final slash goes, and what is left ends in an escape.
        ("protected_paths = ['docs\\/']", "protected_paths"),
    ] {
        let error = parse_repo_file(text).unwrap_err().to_string();
        assert!(error.contains(".hyla.toml") && error.contains(expected), "{error}");
    }
}

#[test]
fn secrets_are_read_once_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let at = |token: &str, hooks: &[&str]| {
        let hooks: Vec<String> =
            hooks.iter().map(|path| format!("{{ file = \"{path}\" }}")).collect();
        let text = FORGE
            .replace("{ env = \"T\" }", &format!("{{ file = \"{token}\" }}"))
            .replace("{ env = \"W\" }", &hooks.join(", "));
        let config = parse(Path::new("hyla.toml"), &text).unwrap();
        (format!("{config:?}"), config.secrets(Path::new("hyla.toml")))
    };
    let (token, one, two) =
        (file("t", " tok-1234\n", 0o600), file("a", "hook-1", 0o640), file("b", "hook-2", 0o400));
    let (printed, secrets) = at(&token, &[&one, &two]);
    let printed = format!("{printed}{secrets:?}");
    assert!(!printed.contains("tok-1234") && !printed.contains("hook-"), "{printed}");
    assert_eq!(secrets.unwrap().all().len(), 3);

    let (open, empty, lines) =
        (file("o", "x", 0o644), file("e", " \n", 0o600), file("l", "hush\nhush2", 0o600));
    let missing = folder.path().join("none").display().to_string();
    for (token, reason) in [
        (&open, "every user"),
        (&empty, "is empty"),
        (&lines, "more than one line"),
        (&missing, "cannot read"),
        (&folder.path().display().to_string(), "is a folder; name the file"),
    ] {
        let error = at(token, &[&one]).1.unwrap_err().to_string();
        assert!(
            error.contains("forge.main.token") && error.contains(reason) && !error.contains("hush"),
            "{error}"
        );
    }
    let error = at(&token, &[&one, &one]).1.unwrap_err().to_string();
    assert!(error.contains("webhook_secrets") && error.contains("same"), "{error}");
    assert!(SecretRef::Env("HYLA_TEST_THAT_NOBODY_SETS".into()).read().is_err());
    let credential = SecretRef::File("no-folder".into()).read().unwrap_err();
    assert!(credential.contains("absolute"), "{credential}");
    assert!(credential.contains("-p LoadCredential=no-folder:/etc/hyla/no-folder"), "{credential}");
}

#[test]
fn a_signing_key_and_its_passphrase_are_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        format!("{{ file = \"{}\" }}", path.display())
    };
    let secrets = |key: &str, passphrase: &str| {
        let text = format!("[publish.signing]\nssh_key = {key}\npassphrase = {passphrase}\n");
        parse(Path::new("hyla.toml"), &text).unwrap().secrets(Path::new("hyla.toml"))
    };
    let (key, passphrase) = (file("k", b"--BEGIN\nhush-1\n"), file("p", b"hush-2\n"));
    let read = secrets(&key, &passphrase).unwrap();
    assert!(!format!("{read:?}").contains("hush"), "{read:?}");
    let all: Vec<&str> = read.all().iter().map(|secret| secret.expose_secret()).collect();
    assert_eq!(all, ["--BEGIN\nhush-1", "hush-2"]);
    let binary = secrets(&file("b", b"\xff\xfe"), &passphrase).unwrap_err().to_string();
    assert!(binary.contains("signing.ssh_key") && binary.contains("--armor"), "{binary}");
    let missing = secrets(&key, "{ file = \"/nowhere/p\" }").unwrap_err().to_string();
    assert!(missing.contains("publish.signing.passphrase"), "{missing}");
}

#[test]
fn a_sweep_is_checked_to_its_last_key() {
    let sweep = |keys: &str| format!("{FORGE}[sweep.nightly]\n{keys}\n");
    let due = "schedule = \"0 1 * * 1-5\"";
    let good = parse("hyla.toml".as_ref(), &sweep(due)).unwrap();
    let found = &good.sweeps["nightly"];
    assert_eq!(found.schedule().unwrap().to_string(), "0 1 * * 1-5 in UTC");
    assert_eq!(
        (found.per_sweep, found.open_drafts, found.authors),
        (5, 3, crate::Authors::Anybody)
    );
    let cases = [
        ("zone = \"UTC\"", "`sweep.nightly`", "missing field `schedule`"),
        ("schedule = \"0 1 * *\"", "`sweep.nightly.schedule`", "a schedule has five"),
        ("zone = \"Berlin\"", "`sweep.nightly.zone`", "`Berlin` is no time zone"),
        ("forge = \"other\"", "`sweep.nightly.forge`", "name one of the configured forges"),
        ("repositories = [\"a/b\"]", "`sweep.nightly.repositories`", "`a/b` is not in the"),
        ("exclude = [\"acme/app\"]", "`sweep.nightly.exclude`", "`acme/app` is no issue"),
        ("per_sweep = 0", "`sweep.nightly.per_sweep`", "at least 1"),
        ("per_hour = 0", "`sweep.nightly.per_hour`", "at least 1"),
        ("open_drafts = 0", "`sweep.nightly.open_drafts`", "at least 1"),
        ("time_per_day = \"0s\"", "`sweep.nightly.time_per_day`", "longer than nothing"),
        ("quiet = [\"8-9\"]", "`sweep.nightly.quiet[0]`", "`8-9` is no span of the day"),
        ("quiet = [\"08:00-08:00\"]", "`sweep.nightly.quiet[0]`", "no span"),
        ("pause_share = 1.5", "`sweep.nightly.pause_share`", "from 0 to 1"),
        ("authors = \"me\"", "`sweep.nightly.authors`", "unknown variant"),
        ("colour = 1", "`sweep.nightly", "unknown field"),
    ];
    for (keys, key, reason) in cases {
        let keys = if keys.contains("schedule") || keys == "zone = \"UTC\"" {
            keys.to_owned()
        } else {
            format!("{due}\n{keys}")
        };
        let error = error(&sweep(&keys));
        assert!(error.contains(key) && error.contains(reason), "{keys:?} gave {error:?}");
    }
    let name = sweep(due).replace("sweep.nightly", "sweep.\"A b\"");
    assert!(error(&name).contains("small letters"), "{}", error(&name));
    let nowhere = "[sweep.nightly]\nschedule = \"0 1 * * *\"\n";
    assert!(error(nowhere).contains("`sweep.nightly.forge`"), "{}", error(nowhere));
}

#[test]
fn a_span_of_the_day_may_go_over_midnight() {
    let span = |text: &str| crate::Span::try_from(text.to_owned()).unwrap();
    let time = |text: &str| chrono::NaiveTime::parse_from_str(text, "%H:%M").unwrap();
    let cases = [
        ("08:00-18:00", "08:00", true),
        ("08:00-18:00", "18:00", false),
        ("22:00-06:00", "23:00", true),
        ("22:00-06:00", "05:59", true),
        ("22:00-06:00", "06:00", false),
        ("22:00-06:00", "12:00", false),
    ];
    for (text, at, expected) in cases {
        assert_eq!(span(text).holds(time(at)), expected, "{text} at {at}");
    }
}

/// Every key stands in the example with the value that it has when it is left out.
#[test]
fn the_example_is_the_defaults() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/example.toml"));
    let example = crate::load(path).unwrap();
    let mut without_forges = example.clone();
    without_forges.forges.clear();
    let default = Config::default();
    assert_eq!(format!("{without_forges:#?}"), format!("{default:#?}"));

    // Of a forge, the keys without a default are as a short file gives them.
    let short = "[forge.main]\nkind = \"gitea\"\nurl = \"https://git.example.org\"\n\
         token = { file = \"/etc/hyla/forge-token\" }\n\
         webhook_secrets = [{ file = \"/etc/hyla/webhook-secret\" }]\nrepositories = [\"acme/app\"]\n";
    let short = parse(path, short).unwrap();
    assert_eq!(format!("{:#?}", example.forges), format!("{:#?}", short.forges));

    // A key without a default value is there as a comment; no key at all is missing.
    let text = std::fs::read_to_string(path).unwrap();
    let shown: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.trim_start_matches("# ").split_once(" = "))
        .map(|(key, _)| key.trim())
        .collect();
    // The example's sweep is a comment as a whole; its keys are right all the same.
    let sweep: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "# [sweep.nightly]")
        .take_while(|line| !line.is_empty())
        .map(|line| line.trim_start_matches("# "))
        .filter(|line| line.starts_with('[') || line.contains(" = "))
        .collect();
    let with_sweep = parse(path, &format!("{text}\n{}", sweep.join("\n"))).unwrap();
    let sweep = &with_sweep.sweeps["nightly"];
    for field in fields(&format!("{example:#?}\n{sweep:#?}")) {
        assert!(
            shown.contains(field.as_str())
                || [format!("[{field}]"), format!(".{field}]")]
                    .iter()
                    .any(|table| text.contains(table)),
            "`{field}` is not in the example"
        );
    }
}

/// The names of all fields in a `Debug` print: lines such as `    workers: 1,`.
fn fields(printed: &str) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    let mut in_url = false;
    for line in printed.lines() {
        in_url = in_url && !line.trim_start().starts_with('}');
        if let (false, Some((name, _))) = (in_url, line.trim().split_once(": "))
            && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        {
            fields.insert(name.to_owned());
        }
        in_url |= line.ends_with("Url {");
    }
    fields.remove("forges");
    fields.remove("sweeps");
    fields
}

#[test]
fn a_limit_that_cannot_be_meant_is_refused() {
    for (line, key, reason) in [
        ("memory_bytes = 1000000", "`sandbox.memory_bytes`", "no command starts"),
        ("cpus = 0.01", "`sandbox.cpus`", "from 0.1"),
        ("workspace_files = 1", "`sandbox.workspace_files`", "at least 100"),
        ("require = [\"cpus\"]", "`sandbox.require`", "`sandbox.cpus` is 0"),
        ("require = [\"disk\"]", "`sandbox.require", "unknown variant `disk`"),
    ] {
        let error = error(&format!("[sandbox]\n{line}"));
        assert!(error.contains(key) && error.contains(reason), "{line:?} gave {error:?}");
    }
}

#[test]
fn memory_and_processes_are_required_of_a_unit_unless_the_file_says_otherwise() {
    use crate::{Limit, Sandbox};
    let both = vec![Limit::Memory, Limit::Processes];
    let left_out = Sandbox::default();
    assert_eq!((left_out.required(true), left_out.required(false)), (both, vec![]));
    for (written, read) in
        [("[]", vec![]), ("[\"memory\", \"cpus\"]", vec![Limit::Memory, Limit::Cpus])]
    {
        let text = format!("[sandbox]\ncpus = 2.0\nrequire = {written}\n");
        let sandbox = parse(Path::new("hyla.toml"), &text).unwrap().sandbox;
        assert_eq!((sandbox.required(true), sandbox.required(false)), (read.clone(), read));
    }
}
