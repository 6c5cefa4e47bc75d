//! The system calls that no command of an agent may make, as a program for the kernel. Pure.
//!
//! It is the second wall behind the namespaces: what it denies is what has led out of them elsewhere. Everything that is
//! not named is allowed, so that compilers and test runners work. Numbers and reasons: seccomp(2), and the arguments'
//! layouts in each call's manual page.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule as Rule, TargetArch, sock_filter,
};

/// x32 calls have this bit set; a filter for x86-64 would not see them.
const X32: u32 = 0x4000_0000;
const BPF_LOAD_NR: u16 = 0x20;
const BPF_JUMP_EQUAL: u16 = 0x15;
const BPF_JUMP_AT_LEAST: u16 = 0x35;
const BPF_RETURN: u16 = 0x06;
const RETURN_ERRNO: u32 = 0x0005_0000;
const FCHMODAT2: i64 = 452;
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

/// The steps for a process that shares network and IPC with the machine: it can make no socket, but for pairs that lead
/// nowhere else, and no memory, queue or semaphore that outlives it.
pub(super) fn alone() -> Result<Vec<sock_filter>, Error> {
    let mut rules = rules()?;
    let shared =
        [libc::SYS_socket, libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget, libc::SYS_mq_open];
    // Without a condition it is denied whatever is asked for.
    rules.extend(shared.map(|call| (call, Vec::new())));
    steps(rules)
}

fn steps(rules: BTreeMap<i64, Vec<Rule>>) -> Result<Vec<sock_filter>, Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)
        .ok()
        .filter(|arch| matches!(arch, TargetArch::x86_64 | TargetArch::aarch64))
        .ok_or(Error::Processor(std::env::consts::ARCH))?;
    let errno = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, arch)?;
    let compiled: Vec<sock_filter> = filter.try_into()?;
    let mut steps = prelude();
    steps.extend(compiled);
    Ok(steps)
}

/// The program as bubblewrap reads it: an array of `struct sock_filter`.
pub(super) fn program() -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for step in steps(rules()?)? {
        bytes.extend_from_slice(&step.code.to_ne_bytes());
        bytes.extend_from_slice(&[step.jt, step.jf]);
        bytes.extend_from_slice(&step.k.to_ne_bytes());
    }
    Ok(bytes)
}

/// Calls whose arguments a filter cannot see: the flags of clone3 and the mode of openat2 lie behind pointers. Libraries
/// fall back to the older calls when the kernel seems not to know these.
fn prelude() -> Vec<sock_filter> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let number = |call: libc::c_long| u32::try_from(call).unwrap_or(u32::MAX);
    vec![
        step(BPF_LOAD_NR, 0, 0, 0),
        step(BPF_JUMP_AT_LEAST, 2, 0, X32),
        step(BPF_JUMP_EQUAL, 1, 0, number(libc::SYS_clone3)),
        step(BPF_JUMP_EQUAL, 0, 1, number(libc::SYS_openat2)),
        step(BPF_RETURN, 0, 0, RETURN_ERRNO | libc::ENOSYS.unsigned_abs()),
    ]
}

fn rules() -> Result<BTreeMap<i64, Vec<Rule>>, Error> {
    let mut rules: BTreeMap<i64, Vec<Rule>> =
        denied().iter().map(|&call| (call, Vec::new())).collect();
    let has = |argument, bits| Condition::new(argument, Len::Dword, Op::MaskedEq(bits), bits);
    let is = |argument, value| Condition::new(argument, Len::Dword, Op::Eq, value);
    let is_not = |argument, value| Condition::new(argument, Len::Dword, Op::Ne, value);
    let mut deny = |call: i64, conditions: Vec<Condition>| -> Result<(), Error> {
        rules.entry(call).or_default().push(Rule::new(conditions)?);
        Ok(())
    };
    for namespace in [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ] {
        deny(libc::SYS_clone, vec![has(0, u64::from(namespace.unsigned_abs()))?])?;
    }
    // Typing into the terminal of whoever started the service. The kernel looks at 32 bits of the request only.
    for request in [0x5412, 0x541c] {
        deny(libc::SYS_ioctl, vec![is(1, request)?])?;
    }
    let family = |family: libc::c_int| u64::from(family.unsigned_abs());
    let (unix, inet) = (family(libc::AF_UNIX), family(libc::AF_INET));
    let (inet6, netlink) = (family(libc::AF_INET6), family(libc::AF_NETLINK));
    let others = [unix, inet, inet6, netlink].map(|family| is_not(0, family));
    deny(libc::SYS_socket, others.into_iter().collect::<Result<_, _>>()?)?;
    deny(libc::SYS_socket, vec![is(0, netlink)?, is_not(2, 0)?])?;
    deny(libc::SYS_socketpair, vec![is_not(0, unix)?])?;
    // A set-id file in the workspace would be one on the host.
    for bit in [SET_UID, SET_GID] {
        for (call, mode) in mode_calls() {
            deny(call, vec![has(mode, bit)?])?;
        }
        for (call, flags, mode) in open_calls() {
            for creates in [u64::from(libc::O_CREAT.unsigned_abs()), TMPFILE] {
                deny(call, vec![has(flags, creates)?, has(mode, bit)?])?;
            }
        }
    }
    Ok(rules)
}

/// Calls that set a mode, and which argument it is.
fn mode_calls() -> Vec<(i64, u8)> {
    let mut calls = vec![
        (libc::SYS_fchmod, 1),
        (libc::SYS_fchmodat, 2),
        (FCHMODAT2, 2),
        (libc::SYS_mkdirat, 2),
        (libc::SYS_mknodat, 2),
    ];
    #[cfg(target_arch = "x86_64")]
    calls.extend([
        (libc::SYS_chmod, 1),
        (libc::SYS_mkdir, 1),
        (libc::SYS_mknod, 1),
        (libc::SYS_creat, 1),
    ]);
    calls
}

/// Calls that open: flags and mode. The mode counts only where something is made.
fn open_calls() -> Vec<(i64, u8, u8)> {
    let mut calls = vec![(libc::SYS_openat, 2, 3)];
    #[cfg(target_arch = "x86_64")]
    calls.push((libc::SYS_open, 1, 2));
    calls
}

fn denied() -> Vec<i64> {
    let mut calls = vec![
        // Namespaces and mounts.
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
        // Keys, programs in the kernel, rings that no filter sees.
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        // Other processes.
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_kcmp,
        // Files by number, and watching a whole file system.
        libc::SYS_open_by_handle_at,
        libc::SYS_name_to_handle_at,
        libc::SYS_fanotify_init,
        // The machine.
        libc::SYS_kexec_load,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_quotactl,
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_reboot,
        libc::SYS_clock_settime,
        libc::SYS_settimeofday,
        libc::SYS_adjtimex,
        libc::SYS_clock_adjtime,
        libc::SYS_syslog,
        libc::SYS_acct,
        libc::SYS_vhangup,
        // Memory placement.
        libc::SYS_mbind,
        libc::SYS_migrate_pages,
        libc::SYS_move_pages,
        libc::SYS_set_mempolicy,
    ];
    calls.push(libc::SYS_kexec_file_load);
    #[cfg(target_arch = "x86_64")]
    calls.extend([libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt]);
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
