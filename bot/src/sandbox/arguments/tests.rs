//! T23 and T41 of the attack suite: the options of bubblewrap, whatever stands in a setting or in a command. They are read
//! here by a table of what each flag takes, as bubblewrap reads them.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use proptest::prelude::*;

use super::super::Extras;
use super::*;

/// How many values each flag takes. One that is not here is one that the sandbox must not have.
const VALUES: [(&str, usize); 22] = [
    ("--unshare-all", 0),
    ("--unshare-user", 0),
    ("--disable-userns", 0),
    ("--new-session", 0),
    ("--die-with-parent", 0),
    ("--clearenv", 0),
    ("--uid", 1),
    ("--gid", 1),
    ("--hostname", 1),
    ("--setenv", 2),
    ("--ro-bind", 2),
    ("--symlink", 2),
    ("--dir", 1),
    ("--ro-bind-data", 2),
    ("--proc", 1),
    ("--dev", 1),
    ("--remount-ro", 1),
    ("--perms", 1),
    ("--size", 1),
    ("--tmpfs", 1),
    ("--bind-fd", 2),
    ("--ro-bind-fd", 2),
];
/// Those at the end.
const LAST: [(&str, usize); 3] = [("--chdir", 1), ("--seccomp", 1), ("--json-status-fd", 1)];

/// One flag with its values.
type Flag = (String, Vec<OsString>);

fn flags(options: Vec<OsString>) -> Vec<Flag> {
    let mut words = options.into_iter();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let word = word.into_string().unwrap();
        let known = VALUES.iter().chain(&LAST).find(|(flag, _)| *flag == word);
        let (_, n_values) = known.unwrap_or_else(|| panic!("`{word}` is no flag of the sandbox"));
        found.push((word, words.by_ref().take(*n_values).collect()));
    }
    found
}

/// What a command may be shown besides its workspace. Each of these is tried.
#[derive(Debug, Clone, Copy)]
struct Shown {
    has_home: bool,
    n_folders: usize,
    has_proxy: bool,
}

impl Shown {
    const NOTHING: Self = Self { has_home: false, n_folders: 0, has_proxy: false };
    const ALL: Self = Self { has_home: true, n_folders: 2, has_proxy: true };

    /// As the service has it: for the agent, for a setup command, and for the copy of what that has made.
    const USUAL: [Self; 4] = [
        Self::NOTHING,
        Self { has_home: true, n_folders: 0, has_proxy: true },
        Self { has_home: true, n_folders: 2, has_proxy: false },
        Self::ALL,
    ];
}

/// Where folders are shown.
const FOLDERS: [&str; 2] = ["/run/setup", "/run/setup-home"];

fn numbers(command: &Command, shown: Shown) -> Files {
    let number = |n: usize| RawFd::try_from(n).unwrap();
    Files {
        seccomp: 3,
        status: 4,
        workspace: 5,
        home: shown.has_home.then_some(20),
        folders: (21..21 + number(shown.n_folders)).collect(),
        proxy: shown.has_proxy.then_some([30, 31]),
        data: (6..6 + number(files(command).len())).collect(),
    }
}

fn command(script: &str, shown: Shown) -> Command {
    let timeout = std::time::Duration::from_secs(1);
    // Only that it is there counts here.
    let any = || Arc::new(OwnedFd::from(File::open("/").unwrap()));
    let extras = Extras {
        folders: FOLDERS.into_iter().take(shown.n_folders).map(|path| (path, any())).collect(),
        proxy: shown.has_proxy.then(any),
    };
    Command { script: script.into(), timeout, head_bytes: 1, tail_bytes: 1, extras }
}

fn flags_of(settings: &config::Sandbox, script: &str, shown: Shown) -> Vec<Flag> {
    let command = command(script, shown);
    flags(options(settings, &command, &numbers(&command, shown)))
}

/// A script that no argument can hold.
fn long_script() -> String {
    "# x\n".repeat(100_000)
}

/// Where a flag puts something, and with what rights: a mount that can be written, one that cannot, or a mere entry.
fn destination(flag: &Flag) -> Option<(&Path, &'static str)> {
    let kind = match flag.0.as_str() {
        "--bind-fd" | "--tmpfs" => "writable",
        "--ro-bind" | "--ro-bind-data" | "--ro-bind-fd" | "--proc" | "--dev" => "fixed",
        "--dir" | "--symlink" => "entry",
        _ => return None,
    };
    flag.1.last().map(|path| (Path::new(path), kind))
}

/// The programs of the machine depend on the machine, so they are looked at by rules and taken out.
fn without_system(flags: Vec<Flag>) -> Vec<String> {
    let of_system = |(flag, values): &Flag| {
        let place = values.last().and_then(|word| word.to_str()).unwrap_or_default();
        let programs = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
        match flag.as_str() {
            "--ro-bind" if place.starts_with("/etc/") => {
                ["/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ld.so.cache", "/etc/alternatives"]
                    .contains(&place)
                    || place.starts_with("/etc/java-")
            }
            "--ro-bind" => programs.contains(&place) && values[0] == values[1],
            "--symlink" => programs.contains(&place),
            "--tmpfs" | "--remount-ro" => place == "/usr/local/etc",
            _ => false,
        }
    };
    let rest = flags.into_iter().filter(|flag| !of_system(flag));
    rest.map(|(flag, values)| {
        let values = values.iter().map(|value| format!(" {}", value.display()));
        flag + &values.collect::<String>()
    })
    .collect()
}

#[test]
fn t41_bubblewrap_is_told_this_and_in_this_order() {
    let mut settings = config::Sandbox {
        read_only: vec!["/opt/tools".into()],
        path: vec!["/opt/tools/bin".into()],
        ..config::Sandbox::default()
    };
    settings.env.insert("LANGUAGE".into(), "de".into());
    let told = without_system(flags_of(&settings, "true", Shown::NOTHING));
    assert_eq!(
        told,
        [
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--new-session",
            "--die-with-parent",
            "--uid 1000",
            "--gid 1000",
            "--hostname sandbox",
            "--clearenv",
            "--setenv PATH /opt/tools/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "--setenv HOME /home/agent",
            "--setenv USER agent",
            "--setenv LOGNAME agent",
            "--setenv SHELL /bin/bash",
            "--setenv LANG C.UTF-8",
            "--setenv TERM dumb",
            "--setenv TMPDIR /tmp",
            "--setenv CI 1",
            "--setenv GIT_TERMINAL_PROMPT 0",
            "--setenv LANGUAGE de",
            "--dir /etc",
            "--ro-bind-data 6 /etc/passwd",
            "--ro-bind-data 7 /etc/group",
            "--ro-bind-data 8 /etc/hosts",
            "--ro-bind-data 9 /etc/nsswitch.conf",
            "--ro-bind-data 10 /etc/resolv.conf",
            "--ro-bind /opt/tools /opt/tools",
            "--proc /proc",
            "--dev /dev",
            "--size 67108864",
            "--tmpfs /dev/shm",
            "--remount-ro /dev",
            "--size 2147483648",
            "--tmpfs /tmp",
            "--perms 0755",
            "--size 1073741824",
            "--tmpfs /home",
            "--dir /home/agent",
            "--bind-fd 5 /workspace",
            "--remount-ro /",
            "--chdir /workspace",
            "--seccomp 3",
            "--json-status-fd 4",
        ]
    );
}

#[test]
fn t41_what_a_command_is_shown_besides_stands_before_its_home_and_its_workspace() {
    let settings = config::Sandbox::default();
    let told = without_system(flags_of(&settings, &long_script(), Shown::ALL));
    let variables = told.iter().position(|flag| flag.contains("GIT_TERMINAL_PROMPT")).unwrap();
    assert_eq!(
        told[variables + 1..],
        [
            "--setenv HTTPS_PROXY http://127.0.0.1:3128",
            "--setenv https_proxy http://127.0.0.1:3128",
            "--setenv HTTP_PROXY http://127.0.0.1:3128",
            "--setenv http_proxy http://127.0.0.1:3128",
            "--setenv NO_PROXY localhost,127.0.0.1",
            "--setenv no_proxy localhost,127.0.0.1",
            "--dir /etc",
            "--ro-bind-data 6 /etc/passwd",
            "--ro-bind-data 7 /etc/group",
            "--ro-bind-data 8 /etc/hosts",
            "--ro-bind-data 9 /etc/nsswitch.conf",
            "--ro-bind-data 10 /etc/resolv.conf",
            "--ro-bind-data 11 /etc/hyla-command",
            "--proc /proc",
            "--dev /dev",
            "--size 67108864",
            "--tmpfs /dev/shm",
            "--remount-ro /dev",
            "--size 2147483648",
            "--tmpfs /tmp",
            "--ro-bind-fd 30 /run/egress.sock",
            "--perms 0555",
            "--ro-bind-data 31 /run/hyla",
            "--ro-bind-fd 21 /run/setup",
            "--ro-bind-fd 22 /run/setup-home",
            "--bind-fd 20 /home/agent",
            "--bind-fd 5 /workspace",
            "--remount-ro /",
            "--chdir /workspace",
            "--seccomp 3",
            "--json-status-fd 4",
        ]
    );
    let words = argv(&command("true", Shown::ALL));
    assert_eq!(words[7..], ["true", "/run/hyla", "sandbox-forward"], "the way out comes last");
}

/// The table above is all that bubblewrap is ever told, so that a flag that comes or goes is looked at here.
#[test]
fn t41_every_flag_of_the_table_is_given_and_no_other() {
    let settings =
        config::Sandbox { read_only: vec!["/opt/tools".into()], ..config::Sandbox::default() };
    let given: BTreeSet<String> = Shown::USUAL
        .into_iter()
        .flat_map(|shown| flags_of(&settings, "true", shown))
        .map(|(flag, _)| flag)
        .collect();
    // A machine whose `/bin` is a folder of its own needs no link.
    let has_link = ["/bin", "/sbin", "/lib", "/lib64"].iter().any(|at| Path::new(at).is_symlink());
    let known: BTreeSet<String> = VALUES
        .iter()
        .chain(&LAST)
        .map(|(flag, _)| (*flag).to_owned())
        .filter(|flag| has_link || flag != "--symlink")
        .collect();
    assert_eq!(given, known);
}

/// CVE-2026-87766: bubblewrap 0.8 follows a link beneath the new root at its set-up, to any place of the host. So nothing
/// is put where an agent could have left one: workspace and shared home are the places that outlive a command.
#[test]
fn t23_no_destination_has_an_ancestor_that_an_agent_wrote() {
    let settings = config::Sandbox {
        read_only: vec!["/opt/a".into(), "/usr/share/b".into()],
        ..config::Sandbox::default()
    };
    for (script, shown) in ["true".to_owned(), long_script()]
        .iter()
        .flat_map(|script| Shown::USUAL.map(|shown| (script, shown)))
    {
        let flags = flags_of(&settings, script, shown);
        let places: Vec<_> = flags.iter().filter_map(destination).collect();
        let last = places.last().unwrap();
        assert_eq!(*last, (Path::new(MOUNT), "writable"), "the workspace is the last mount");
        let mut outlive = vec![MOUNT];
        if shown.has_home {
            outlive.push(HOME);
        }
        for own in &outlive {
            let is_beneath = |(place, _): &&(&Path, &str)| place.starts_with(own);
            assert_eq!(places.iter().filter(is_beneath).count(), 1, "nothing is beneath {own}");
        }
        // What else can be written is empty and new each time, so nothing waits there for the next set-up.
        let writable: Vec<_> = places
            .iter()
            .filter(|(_, kind)| *kind == "writable")
            .map(|(place, _)| *place)
            .collect();
        let fresh =
            ["/usr/local/etc", "/dev/shm", "/tmp", "/home"].into_iter().chain(outlive.clone());
        let fresh: Vec<&Path> = fresh.map(Path::new).collect();
        assert!(writable.iter().all(|place| fresh.contains(place)), "{writable:?}");
        for (flag, values) in &flags {
            let is_own = || outlive.iter().any(|own| values[1] == **own);
            assert!(flag != "--bind-fd" || is_own(), "{values:?}");
        }
        let closed = ["/run", "/var", "/sys", "/root", "/mnt", "/boot", "/"].map(Path::new);
        for (place, kind) in places {
            assert!(kind == "entry" || !closed.contains(&place), "{} is shown", place.display());
        }
    }
}

/// Anything that a person or a model could write.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let sly = [
        "--share-net",
        "--",
        "--bind",
        "/ /",
        "-- sh",
        "'; sh #",
        "$(sh)",
        "\n--bind\n/\n/",
        "--args 9",
    ];
    let sly = sly.map(|word| word.as_bytes().to_vec());
    prop_oneof![
        prop::collection::vec(1..=u8::MAX, 0..200),
        prop::sample::select(sly.to_vec()),
        Just(b"x\n".repeat(60_000)),
    ]
}

proptest! {
    #[test]
    fn t41_no_setting_and_no_command_changes_a_flag(
        script in bytes(),
        variables in prop::collection::btree_map("[A-Z_]{1,9}", bytes(), 0..4),
        folders in prop::collection::vec(bytes(), 0..4),
        (has_home, n_folders, has_proxy) in (any::<bool>(), 0..=FOLDERS.len(), any::<bool>()),
    ) {
        let shown = Shown { has_home, n_folders, has_proxy };
        let script = String::from_utf8_lossy(&script).into_owned();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut settings = config::Sandbox::default();
        settings.env = variables.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        settings.read_only =
            folders.iter().map(|folder| OsString::from_vec(folder.clone()).into()).collect();
        settings.path = settings.read_only.clone();
        let asked = command(&script, shown);

        let plain = flags_of(&config::Sandbox::default(), &script, shown);
        let found = flags_of(&settings, &script, shown);
        let n_plain = |flag: &str| plain.iter().filter(|(found, _)| found == flag).count();
        for (flag, _) in &found {
            let n_added = match flag.as_str() {
                "--setenv" => settings.env.len(),
                "--ro-bind" => folders.len(),
                _ => 0,
            };
            let n_found = found.iter().filter(|(other, _)| other == flag).count();
            prop_assert_eq!(n_found, n_plain(flag) + n_added, "{}", flag);
        }
        // What was written stands where a value stands, byte for byte.
        let bound: Vec<_> = found.iter().filter(|(flag, _)| flag == "--ro-bind").collect();
        for folder in &folders {
            prop_assert!(bound.iter().any(|(_, values)| values.iter().all(|value| value.as_bytes() == folder)));
        }
        // The command is one word, after all options, or a file that one word names.
        let argv = argv(&asked);
        prop_assert_eq!(argv.len(), if has_proxy { 10 } else { 8 });
        prop_assert_eq!(&argv[0], "--");
        prop_assert!(argv.iter().skip(1).take(6).all(|word| *word != *script.as_str()));
        if is_long(&asked) {
            prop_assert_eq!(&argv[7], ". /etc/hyla-command");
            prop_assert!(files(&asked).contains(&(SCRIPT_FILE, script)));
        } else {
            prop_assert_eq!(&argv[7], script.as_str());
        }
    }
}
