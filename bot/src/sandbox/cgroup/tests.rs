//! Which groups are found and what is written to them; and what an earlier run left, with the real thing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::find::{hierarchies, is_unit};
use super::folder::MEMBERS;
use super::*;

const LIMITS: Limits = Limits { memory_bytes: 1 << 30, processes: 99, cpus: 1.5 };

#[test]
fn the_own_group_is_found_wherever_it_is_mounted() {
    let two = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    let hybrid = "1 1 0:1 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpuacct,cpu\n\
         2 1 0:2 /box /a\\040b/memory rw shared:9 - cgroup cgroup rw,memory\n\
         3 1 0:3 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
         4 1 0:4 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let service = "0::/system.slice/hyla.service\n";
    let boxed = "9:name=systemd:/\n4:memory:/box/one\n3:cpu,cpuacct:/\n1:freezer:/\n0::/\n";
    type Own<'a> = (&'a str, &'a [Controller]);
    let cases: [(&str, &str, &[Own<'_>]); 5] = [
        (service, two, &[("/sys/fs/cgroup/system.slice/hyla.service", &[])]),
        ("0::/\n", two, &[("/sys/fs/cgroup", &[])]),
        ("0::/../other\n", two, &[]),
        (
            boxed,
            hybrid,
            &[
                ("/a b/memory/one", &[Controller::Memory]),
                ("/sys/fs/cgroup/cpu,cpuacct", &[Controller::Cpu]),
                ("/sys/fs/cgroup/unified", &[]),
            ],
        ),
        ("4:memory:/outside\n", hybrid, &[]),
    ];
    for (groups, mounts, expected) in cases {
        let found = hierarchies(groups, mounts);
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.own.to_str().unwrap(), one.controllers.as_slice()))
            .collect();
        assert_eq!(found, expected, "{groups}");
    }
}

#[test]
fn a_unit_is_what_systemd_itself_started_as_a_service() {
    let cases = [
        ("0::/system.slice/hyla.service\n", 1, true),
        ("0::/system.slice/hyla.service/supervisor\n", 1, true),
        ("1:name=systemd:/system.slice/hyla.service\n0::/\n", 1, true),
        // Something that a service started, as a runner starts a test.
        ("0::/system.slice/hyla.service\n", 77, false),
        ("0::/user.slice/user-1000.slice/user@1000.service\n", 1, false),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", 1, false),
        // The first process of a container.
        ("0::/\n", 1, false),
    ];
    for (groups, parent, expected) in cases {
        assert_eq!(is_unit(groups, parent), expected, "{groups} {parent}");
    }
}

/// A folder that looks like a delegated group of version 2 with this process in it.
fn delegated(offered: &str, members: &str) -> (tempfile::TempDir, Hierarchy) {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("cgroup.controllers", offered),
        ("cgroup.subtree_control", ""),
        ("cgroup.type", "domain\n"),
        (MEMBERS, members),
        ("memory.max", "3221225472\n"),
    ] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    let own = folder.path().to_owned();
    (folder, Hierarchy { version: Version::Two, controllers: Vec::new(), own })
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| format!("{}: {error}", path.display()))
}

#[test]
fn version_2_gets_a_leaf_for_the_service_and_a_limited_group_for_each_command() {
    let own = std::process::id().to_string();
    let (folder, hierarchy) = delegated("cpuset cpu io memory pids\n", &own);
    let groups = Groups::open_at(&[hierarchy], LIMITS);
    for controller in Controller::ALL {
        assert_eq!(groups.enforces(controller), Ok(Version::Two));
    }
    assert_eq!(text(&folder.path().join("supervisor/cgroup.procs")), "0");
    let all = folder.path().join(format!("hyla-{own}-0"));
    for handed_on in [folder.path(), &all] {
        assert_eq!(text(&handed_on.join("cgroup.subtree_control")), "+memory +pids +cpu");
    }
    assert_eq!(text(&all.join("cpu.weight")), "50");
    let group = groups.take().unwrap();
    let entries = group.entries();
    assert_eq!(entries, [all.join("0/cgroup.procs")]);
    for (file, value) in [
        ("memory.max", "1073741824"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("pids.max", "99"),
        ("cpu.max", "150000 100000"),
    ] {
        assert_eq!(text(&all.join("0").join(file)), value, "{file}");
    }
    group.kill().unwrap();
    assert_eq!(text(&all.join("0/cgroup.kill")), "1");
    let (bytes, file) = groups.own_memory.clone().unwrap();
    assert_eq!((bytes, file), (3 << 30, folder.path().join("memory.max")));
}

#[test]
fn version_1_gets_the_same_limits_by_its_own_names() {
    let folder = tempfile::tempdir().unwrap();
    let hierarchy = |controller: Controller| Hierarchy {
        version: Version::One,
        controllers: vec![controller],
        own: folder.path().join(controller.name()),
    };
    let hierarchies = Controller::ALL.map(hierarchy);
    hierarchies.iter().for_each(|one| fs::create_dir(&one.own).unwrap());
    let groups = Groups::open_at(&hierarchies, LIMITS);
    let name = format!("hyla-{}-0", std::process::id());
    for (file, value) in [
        ("memory/NAME/0/memory.limit_in_bytes", "1073741824"),
        ("memory/NAME/0/memory.memsw.limit_in_bytes", "1073741824"),
        ("memory/NAME/0/memory.swappiness", "0"),
        ("pids/NAME/0/pids.max", "99"),
        ("cpu/NAME/0/cpu.cfs_period_us", "100000"),
        ("cpu/NAME/0/cpu.cfs_quota_us", "150000"),
        ("cpu/NAME/cpu.shares", "512"),
    ] {
        assert_eq!(text(&folder.path().join(file.replace("NAME", &name))), value, "{file}");
    }
    assert!(!groups.ends_whole());
}

#[test]
fn what_is_missing_is_told_with_its_reason() {
    let open = |hierarchy: Hierarchy| Groups::open_at(&[hierarchy], LIMITS);
    let reason = |groups: &Groups, one| groups.enforces(one).unwrap_err().to_owned();

    let others = format!("{}\n1\n", std::process::id());
    let (folder, hierarchy) = delegated("memory pids", &others);
    let shared = open(hierarchy);
    assert!(reason(&shared, Controller::Memory).contains("other processes"));
    assert!(!folder.path().join("supervisor").exists(), "it left its group for nothing");

    let (_folder, hierarchy) = delegated("pids", "");
    let partly = open(hierarchy);
    assert_eq!(partly.enforces(Controller::Pids), Ok(Version::Two));
    assert!(reason(&partly, Controller::Memory).contains("offers no control group for memory"));

    let (_folder, hierarchy) = delegated("memory", "");
    let gone = open(Hierarchy { own: hierarchy.own.join("no"), ..hierarchy });
    let (path, said) = ("/no/cgroup.controllers` cannot be read", reason(&gone, Controller::Pids));
    assert!(said.contains(path), "{said}");
    assert!(gone.take().unwrap().entries().is_empty(), "a command joins what there is");
}

#[test]
fn a_group_is_used_again_once_it_is_done_with_and_only_then() {
    let (_folder, hierarchy) = delegated("memory pids", "");
    let groups = Groups::open_at(&[hierarchy], LIMITS);
    let [first, second] = [groups.take().unwrap(), groups.take().unwrap()];
    let (of_first, of_second) = (first.entries(), second.entries());
    assert_ne!(of_first, of_second);
    drop(second);
    first.done();
    assert_eq!(groups.take().unwrap().entries(), of_first);
    let third = groups.take().unwrap().entries();
    assert!(third != of_first && third != of_second, "nobody has proven the second one empty");
}

#[test]
fn a_number_is_read_by_its_whole_word() {
    let text = "oom_kill_disable 0\nunder_oom 1\noom_kill 7\n";
    let cases = [("oom_kill", Some(7)), ("under_oom", Some(1)), ("oom", None)];
    for (word, expected) in cases {
        assert_eq!(settings::number(text, word), expected, "{word}");
    }
}

/// The hierarchies of this machine in which this process may make groups. The test says what it lacks.
fn usable() -> Vec<Hierarchy> {
    let read = |path| fs::read_to_string(path).unwrap();
    let found = hierarchies(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
    let is_usable = |one: &Hierarchy| match Folder::make(one) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped for version {:?} {:?}: {error}", one.version, one.controllers);
            false
        }
    };
    found.into_iter().filter(is_usable).collect()
}

#[test]
fn what_an_earlier_run_left_is_ended_and_removed_and_what_is_in_use_stays() {
    for hierarchy in usable() {
        let version = hierarchy.version;
        let used = Folder::make(&hierarchy).unwrap();
        let base = used.path.parent().unwrap();
        // Nobody holds its lock: whoever made it is gone.
        let left = base.join("hyla-0-0");
        fs::create_dir_all(left.join("3")).unwrap();
        let mut sleeper = Command::new("sleep");
        sleeper.arg("4714").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut sleeper = sleeper.spawn().unwrap();
        fs::write(left.join("3").join(MEMBERS), sleeper.id().to_string()).unwrap();

        let next = Folder::make(&hierarchy).unwrap();
        assert!(!left.exists(), "{version:?}");
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(sleeper.wait().unwrap().signal(), Some(9), "{version:?}");
        assert!(used.path.exists() && next.path.exists() && used.path != next.path);
        let paths = [used.path.clone(), next.path.clone()];
        drop((used, next));
        assert!(paths.iter().all(|path| !path.exists()), "{version:?}");
    }
}
