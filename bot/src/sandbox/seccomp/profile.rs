//! The same rules as a profile that container engines read: JSON, as podman and docker document it, for libseccomp. Pure.
//!
//! Libseccomp compares 64 bits where the kernel looks at 32, so each comparison is made under a mask. It takes only one
//! comparison of each argument in a rule, so "none of these" becomes a rule for each other value. A call that an engine's
//! libseccomp has no name for is left out by it.

use nix::libc;
use serde_json::{Value, json};

use super::{Call, Error, Rule, UNSEEN, When, processor, rules};

/// All that the kernel looks at.
const ALL: u64 = 0xffff_ffff;
/// The families of sockets that the kernel has are below it (`AF_MAX` is 46); what is not below is denied as one.
const FAMILIES: u64 = 64;

/// The profile, for this processor alone: calls of any other end whoever makes them.
pub(in crate::sandbox) fn profile() -> Result<Value, Error> {
    let architecture = match processor()? {
        seccompiler::TargetArch::x86_64 => "SCMP_ARCH_X86_64",
        seccompiler::TargetArch::aarch64 => "SCMP_ARCH_AARCH64",
        seccompiler::TargetArch::riscv64 => return Err(Error::Processor("riscv64")),
    };
    let unseen = UNSEEN.iter().map(|call| deny(call, libc::ENOSYS, &[]));
    let rules = rules();
    let denied = rules.iter().flat_map(|rule| {
        alternatives(rule).into_iter().map(|when| deny(&rule.call, libc::EPERM, &when))
    });
    Ok(json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [architecture],
        "syscalls": unseen.chain(denied).collect::<Vec<_>>(),
    }))
}

fn deny(call: &Call, errno: libc::c_int, arguments: &[Value]) -> Value {
    json!({
        "names": [call.name.trim_start_matches("SYS_")],
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": errno,
        "args": arguments,
    })
}

/// The lists of comparisons of which one must hold in full.
fn alternatives(rule: &Rule) -> Vec<Vec<Value>> {
    let mut all: Vec<Vec<Value>> = vec![Vec::new()];
    for when in &rule.when {
        let choices = match when {
            When::Has(argument, bits) => vec![masked(*argument, *bits, *bits)],
            When::Is(argument, value) => vec![masked(*argument, ALL, *value)],
            When::IsNone(argument, values) => {
                let others = (0..FAMILIES).filter(|value| !values.contains(value));
                let mut choices: Vec<Value> =
                    others.map(|value| masked(*argument, ALL, value)).collect();
                choices.push(json!({
                    "index": argument, "value": FAMILIES, "valueTwo": 0, "op": "SCMP_CMP_GE",
                }));
                choices
            }
        };
        all = all
            .iter()
            .flat_map(|list| {
                choices.iter().map(|choice| {
                    let mut list = list.clone();
                    list.push(choice.clone());
                    list
                })
            })
            .collect();
    }
    all
}

/// Whether an argument under a mask is this.
fn masked(argument: u8, mask: u64, value: u64) -> Value {
    json!({ "index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::rules;
    use super::profile;

    #[test]
    fn every_call_of_the_rules_is_in_the_profile_by_its_name() {
        let profile = profile().unwrap();
        let entries = profile["syscalls"].as_array().unwrap();
        let named: BTreeSet<&str> =
            entries.iter().map(|entry| entry["names"][0].as_str().unwrap()).collect();
        for rule in rules() {
            assert!(named.contains(&rule.call.name["SYS_".len()..]), "{rule:?}");
        }
        assert!(named.contains("clone3") && named.contains("openat2") && named.contains("bpf"));
    }

    #[test]
    fn no_rule_compares_an_argument_twice() {
        let profile = profile().unwrap();
        for entry in profile["syscalls"].as_array().unwrap() {
            let arguments = entry["args"].as_array().unwrap();
            let indexes: BTreeSet<u64> =
                arguments.iter().map(|argument| argument["index"].as_u64().unwrap()).collect();
            assert_eq!(indexes.len(), arguments.len(), "{entry}");
        }
    }

    #[test]
    fn of_the_families_of_sockets_four_are_left() {
        let profile = profile().unwrap();
        let of_socket = profile["syscalls"].as_array().unwrap().iter();
        let of_socket = of_socket.filter(|entry| entry["names"][0] == "socket");
        let denied: BTreeSet<u64> = of_socket
            .filter(|entry| entry["args"].as_array().unwrap().len() == 1)
            .filter(|entry| entry["args"][0]["op"] == "SCMP_CMP_MASKED_EQ")
            .map(|entry| entry["args"][0]["valueTwo"].as_u64().unwrap())
            .collect();
        let left: Vec<u64> = (0..64).filter(|family| !denied.contains(family)).collect();
        assert_eq!(left, [1, 2, 10, 16], "AF_UNIX, AF_INET, AF_INET6, AF_NETLINK");
    }
}
