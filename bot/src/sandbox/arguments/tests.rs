//! T23 and T41 of the attack suite: the options of bubblewrap, whatever stands in a setting or in a command. They are read
//! here by a table of what each flag takes, as bubblewrap reads them.

use std::os::unix::ffi::{OsStrExt, OsStringExt};

use proptest::prelude::*;

use super::*;

/// How many values each flag takes. One that is not here is one that the sandbox must not have.
const VALUES: [(&str, usize); 21] = [
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

fn numbers(command: &Command) -> Files {
    let n_files = RawFd::try_from(files(command).len()).unwrap();
    Files {
        seccomp: 3,
        status: 4,
        workspace: 5,
        home: None,
        folders: Vec::new(),
        proxy: None,
        data: (6..6 + n_files).collect(),
    }
}

fn command(script: &str) -> Command {
    let timeout = std::time::Duration::from_secs(1);
    Command { script: script.into(), timeout, head_bytes: 1, tail_bytes: 1, ..Command::default() }
}

fn flags_of(settings: &config::Sandbox, command: &Command) -> Vec<Flag> {
    flags(options(settings, command, &numbers(command)))
}

/// Where a flag puts something, and with what rights: a mount that can be written, one that cannot, or a mere entry.
fn destination(flag: &Flag) -> Option<(&Path, &'static str)> {
    let kind = match flag.0.as_str() {
        "--bind-fd" | "--tmpfs" => "writable",
        "--ro-bind" | "--ro-bind-data" | "--proc" | "--dev" => "fixed",
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
    let told = without_system(flags_of(&settings, &command("true")));
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

/// CVE-2026-87766: bubblewrap 0.8 follows a link beneath the new root at its set-up, to any place of the host. So nothing
/// is put where an agent could have left one: the workspace is the one place that outlives a command.
#[test]
fn t23_no_destination_has_an_ancestor_that_an_agent_wrote() {
    let settings = config::Sandbox {
        read_only: vec!["/opt/a".into(), "/usr/share/b".into()],
        ..config::Sandbox::default()
    };
    let long = "# x\n".repeat(100_000);
    for script in ["true", long.as_str()] {
        let flags = flags_of(&settings, &command(script));
        let places: Vec<_> = flags.iter().filter_map(destination).collect();
        let last = places.last().unwrap();
        assert_eq!(*last, (Path::new(MOUNT), "writable"), "the workspace is the last mount");
        let is_beneath = |(place, _): &&(&Path, &str)| place.starts_with(MOUNT);
        assert_eq!(places.iter().filter(is_beneath).count(), 1, "and nothing is beneath it");
        // What else can be written is empty and new each time, so nothing waits there for the next set-up.
        let writable: Vec<_> = places
            .iter()
            .filter(|(_, kind)| *kind == "writable")
            .map(|(place, _)| *place)
            .collect();
        let fresh = ["/usr/local/etc", "/dev/shm", "/tmp", "/home", MOUNT].map(Path::new);
        assert!(writable.iter().all(|place| fresh.contains(place)), "{writable:?}");
        for (flag, values) in &flags {
            assert!(flag != "--bind-fd" || values[1] == *MOUNT, "{values:?}");
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
    ) {
        let script = String::from_utf8_lossy(&script).into_owned();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut settings = config::Sandbox::default();
        settings.env = variables.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        settings.read_only =
            folders.iter().map(|folder| OsString::from_vec(folder.clone()).into()).collect();
        settings.path = settings.read_only.clone();
        let asked = command(&script);

        let plain = flags_of(&config::Sandbox::default(), &asked);
        let found = flags_of(&settings, &asked);
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
        let shown: Vec<_> = found.iter().filter(|(flag, _)| flag == "--ro-bind").collect();
        for folder in &folders {
            prop_assert!(shown.iter().any(|(_, values)| values.iter().all(|value| value.as_bytes() == folder)));
        }
        // The command is one word, after all options, or a file that one word names.
        let argv = argv(&asked);
        prop_assert_eq!(argv.len(), 8);
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
