#!/usr/bin/env bash
# Sets up what the tests need and runs all of them: formatting, lints, tests, documentation, dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/needs.sh

step() {
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    if ! "$@"; then
        echo "== $name failed; the lines above say why" >&2
        exit 1
    fi
    echo "== $name: $((SECONDS - start)) s"
}

namespaces() {
    local as=()
    # As root the bot drops its privileges first, so the question is whether an ordinary user may.
    [ "$(id -u)" -ne 0 ] || as=(setpriv --reuid 64023 --regid 64023 --clear-groups)
    "${as[@]}" bwrap --unshare-all --ro-bind / / true || {
        echo "bubblewrap cannot make namespaces here. On Ubuntu 24.04, load AppArmor's profile" \
            "bwrap-userns-restrict (package apparmor-profiles); in a container, allow user namespaces." >&2
        return 1
    }
}

dependencies() {
    if ! cargo deny --version >/dev/null 2>&1; then
        cargo install --quiet --locked cargo-deny
    fi
    cargo deny --config .deny.toml check bans licenses sources
    # The database of advisories lies outside the package registries, so it may be out of reach.
    if timeout 60 git ls-remote --quiet https://github.com/rustsec/advisory-db HEAD >/dev/null 2>&1; then
        cargo deny --config .deny.toml check advisories
    else
        echo "skipped: the database of security advisories cannot be reached from here"
    fi
}

step "packages" needs
step "namespaces" namespaces
step "formatting" cargo fmt --all --check
step "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
step "build" cargo build --workspace --all-targets --locked
step "tests" cargo test --workspace --locked
step "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
step "dependencies" dependencies
echo "everything passed in $SECONDS s"
