//! The system calls that no command of an agent may make, as a program for the kernel, and as a profile for a container
//! engine. Pure.
//!
//! It is the second wall behind the namespaces: what it denies is what has led out of them elsewhere. Everything that is
//! not named is allowed, so that compilers and test runners work. Numbers and reasons: seccomp(2), and the arguments'
//! layouts in each call's manual page.

mod profile;

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

pub(super) use profile::profile;

/// x32 calls have this bit set; a filter for x86-64 would not see them.
const X32: u32 = 0x4000_0000;
const BPF_LOAD_NR: u16 = 0x20;
const BPF_JUMP_EQUAL: u16 = 0x15;
const BPF_JUMP_AT_LEAST: u16 = 0x35;
const BPF_RETURN: u16 = 0x06;
const RETURN_ERRNO: u32 = 0x0005_0000;
const SET_UID: u64 = 0o4000;
const SET_GID: u64 = 0o2000;
/// O_TMPFILE without O_DIRECTORY, which it includes.
const TMPFILE: u64 = 0o20_000_000;

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// No filter was written for this processor.
    #[error("there is no system call filter for this processor (`{0}`)")]
    Processor(&'static str),
    /// The compiler refused the rules.
    #[error("the system call filter cannot be compiled")]
    Compile(#[from] seccompiler::BackendError),
}

/// A system call, by its name and by its number on this processor.
#[derive(Debug, Clone, Copy)]
struct Call {
    name: &'static str,
    number: i64,
}

/// The calls of these names, as `libc` spells them.
macro_rules! calls {
    ($($name:ident),+ $(,)?) => {
        [$(Call { name: stringify!($name), number: libc::$name }),+]
    };
}

/// `libc` has no name for it yet.
const FCHMODAT2: Call = Call { name: "SYS_fchmodat2", number: 452 };

/// When a call is denied. The kernel looks at 32 bits of each of these arguments only.
#[derive(Debug, Clone)]
enum When {
    /// All of these bits are set in this argument.
    Has(u8, u64),
    /// This argument is this.
    Is(u8, u64),
    /// This argument is none of these.
    IsNone(u8, Vec<u64>),
}

/// A call, and when it is denied: where all of this holds, so always if there is nothing.
#[derive(Debug, Clone)]
struct Rule {
    call: Call,
    when: Vec<When>,
}

/// The steps for a process that shares network and IPC with the machine: it can make no socket, but for pairs that lead
/// nowhere else, and use no memory, queue or semaphore that outlives it, its own or another's.
pub(super) fn alone() -> Result<Vec<sock_filter>, Error> {
    let shared = calls![
        SYS_socket,
        SYS_shmget,
        SYS_shmat,
        SYS_shmctl,
        SYS_semget,
        SYS_semop,
        SYS_semtimedop,
        SYS_semctl,
        SYS_msgget,
        SYS_msgsnd,
        SYS_msgrcv,
        SYS_msgctl,
        SYS_mq_open,
    ];
    let denied = shared.map(|call| Rule { call, when: Vec::new() });
    // What is denied always is denied whatever a rule says besides.
    let besides = rules()
        .into_iter()
        .filter(|rule| !shared.iter().any(|call| call.number == rule.call.number));
    steps(besides.chain(denied))
}

fn steps(rules: impl IntoIterator<Item = Rule>) -> Result<Vec<sock_filter>, Error> {
    let arch = processor()?;
    let errno = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let mut steps: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for rule in rules {
        let of_call = steps.entry(rule.call.number).or_default();
        if !rule.when.is_empty() {
            of_call.push(SeccompRule::new(conditions(&rule.when)?)?);
        }
    }
    let filter = SeccompFilter::new(steps, SeccompAction::Allow, errno, arch)?;
    let compiled: Vec<sock_filter> = filter.try_into()?;
    let mut steps = prelude();
    steps.extend(compiled);
    Ok(steps)
}

/// The program as bubblewrap reads it: an array of `struct sock_filter`.
pub(super) fn program() -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for step in steps(rules())? {
        bytes.extend_from_slice(&step.code.to_ne_bytes());
        bytes.extend_from_slice(&[step.jt, step.jf]);
        bytes.extend_from_slice(&step.k.to_ne_bytes());
    }
    Ok(bytes)
}

fn processor() -> Result<TargetArch, Error> {
    TargetArch::try_from(std::env::consts::ARCH)
        .ok()
        .filter(|arch| matches!(arch, TargetArch::x86_64 | TargetArch::aarch64))
        .ok_or(Error::Processor(std::env::consts::ARCH))
}

fn conditions(when: &[When]) -> Result<Vec<Condition>, Error> {
    let mut conditions = Vec::new();
    for condition in when {
        let mut add = |argument, op, value| -> Result<(), Error> {
            conditions.push(Condition::new(argument, Len::Dword, op, value)?);
            Ok(())
        };
        match condition {
            When::Has(argument, bits) => add(*argument, Op::MaskedEq(*bits), *bits)?,
            When::Is(argument, value) => add(*argument, Op::Eq, *value)?,
            When::IsNone(argument, values) => {
                values.iter().try_for_each(|value| add(*argument, Op::Ne, *value))?;
            }
        }
    }
    Ok(conditions)
}

/// Calls whose arguments a filter cannot see: the flags of clone3 and the mode of openat2 lie behind pointers. Libraries
/// fall back to the older calls when the kernel seems not to know these.
const UNSEEN: [Call; 2] = calls![SYS_clone3, SYS_openat2];

fn prelude() -> Vec<sock_filter> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let [clone3, openat2] = UNSEEN.map(|call| u32::try_from(call.number).unwrap_or(u32::MAX));
    vec![
        step(BPF_LOAD_NR, 0, 0, 0),
        step(BPF_JUMP_AT_LEAST, 2, 0, X32),
        step(BPF_JUMP_EQUAL, 1, 0, clone3),
        step(BPF_JUMP_EQUAL, 0, 1, openat2),
        step(BPF_RETURN, 0, 0, RETURN_ERRNO | libc::ENOSYS.unsigned_abs()),
    ]
}

fn rules() -> Vec<Rule> {
    let [clone, ioctl, socket, socketpair, prctl] =
        calls![SYS_clone, SYS_ioctl, SYS_socket, SYS_socketpair, SYS_prctl];
    let mut rules: Vec<Rule> =
        denied().into_iter().map(|call| Rule { call, when: Vec::new() }).collect();
    let mut deny = |call: Call, when: Vec<When>| rules.push(Rule { call, when });
    for namespace in [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ] {
        deny(clone, vec![When::Has(0, u64::from(namespace.unsigned_abs()))]);
    }
    // Typing into the terminal of whoever started the service.
    for request in [0x5412, 0x541c] {
        deny(ioctl, vec![When::Is(1, request)]);
    }
    let family = |family: libc::c_int| u64::from(family.unsigned_abs());
    let (unix, inet) = (family(libc::AF_UNIX), family(libc::AF_INET));
    let (inet6, netlink) = (family(libc::AF_INET6), family(libc::AF_NETLINK));
    deny(socket, vec![When::IsNone(0, vec![unix, inet, inet6, netlink])]);
    deny(socket, vec![When::Is(0, netlink), When::IsNone(2, vec![0])]);
    deny(socketpair, vec![When::IsNone(0, vec![unix])]);
    // The first process dies with the service because of such a signal, and commands can write into its memory.
    let (parent, kill) = (libc::PR_SET_PDEATHSIG, libc::SIGKILL.unsigned_abs());
    deny(
        prctl,
        vec![When::Is(0, u64::from(parent.unsigned_abs())), When::IsNone(1, vec![u64::from(kill)])],
    );
    // A set-id file in the workspace would be one on the host.
    for bit in [SET_UID, SET_GID] {
        for (call, mode) in mode_calls() {
            deny(call, vec![When::Has(mode, bit)]);
        }
        for (call, flags, mode) in open_calls() {
            for creates in [u64::from(libc::O_CREAT.unsigned_abs()), TMPFILE] {
                deny(call, vec![When::Has(flags, creates), When::Has(mode, bit)]);
            }
        }
    }
    rules
}

/// Calls that set a mode, and which argument it is.
fn mode_calls() -> Vec<(Call, u8)> {
    let [fchmod] = calls![SYS_fchmod];
    let at = calls![SYS_fchmodat, SYS_mkdirat, SYS_mknodat];
    #[cfg(target_arch = "x86_64")]
    let of_path = calls![SYS_chmod, SYS_mkdir, SYS_mknod, SYS_creat].to_vec();
    #[cfg(not(target_arch = "x86_64"))]
    let of_path = Vec::new();
    let first = [fchmod].into_iter().chain(of_path).map(|call| (call, 1));
    first.chain(at.into_iter().chain([FCHMODAT2]).map(|call| (call, 2))).collect()
}

/// Calls that open: flags and mode. The mode counts only where something is made.
fn open_calls() -> Vec<(Call, u8, u8)> {
    let [openat] = calls![SYS_openat];
    let mut calls = vec![(openat, 2, 3)];
    #[cfg(target_arch = "x86_64")]
    calls.extend(calls![SYS_open].map(|call| (call, 1, 2)));
    calls
}

fn denied() -> Vec<Call> {
    let mut calls = calls![
        // Namespaces and mounts.
        SYS_unshare,
        SYS_setns,
        SYS_mount,
        SYS_umount2,
        SYS_pivot_root,
        SYS_chroot,
        SYS_move_mount,
        SYS_open_tree,
        SYS_fsopen,
        SYS_fsconfig,
        SYS_fsmount,
        SYS_fspick,
        SYS_mount_setattr,
        // Keys, programs in the kernel, rings that no filter sees.
        SYS_keyctl,
        SYS_add_key,
        SYS_request_key,
        SYS_bpf,
        SYS_perf_event_open,
        SYS_userfaultfd,
        SYS_io_uring_setup,
        SYS_io_uring_enter,
        SYS_io_uring_register,
        // Other processes.
        SYS_ptrace,
        SYS_process_vm_readv,
        SYS_process_vm_writev,
        SYS_kcmp,
        // Files by number, and watching a whole file system.
        SYS_open_by_handle_at,
        SYS_name_to_handle_at,
        SYS_fanotify_init,
        // The machine.
        SYS_kexec_load,
        SYS_init_module,
        SYS_finit_module,
        SYS_delete_module,
        SYS_quotactl,
        SYS_swapon,
        SYS_swapoff,
        SYS_reboot,
        SYS_clock_settime,
        SYS_settimeofday,
        SYS_adjtimex,
        SYS_clock_adjtime,
        SYS_syslog,
        SYS_acct,
        SYS_vhangup,
        // Memory placement.
        SYS_mbind,
        SYS_migrate_pages,
        SYS_move_pages,
        SYS_set_mempolicy,
        SYS_kexec_file_load,
    ]
    .to_vec();
    #[cfg(target_arch = "x86_64")]
    calls.extend(calls![SYS_iopl, SYS_ioperm, SYS_modify_ldt]);
    calls
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_program_is_whole_steps_and_fits_the_kernel() {
        let program = super::program().unwrap();
        assert_eq!(program.len() % 8, 0);
        // BPF_MAXINSNS
        assert!(program.len() / 8 < 4096, "{}", program.len() / 8);
    }
}
