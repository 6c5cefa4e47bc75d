# Sourced by the two commands: what a fresh Debian or Ubuntu machine needs besides Rust. Installs only what is missing, and
# the packages that are named to it.

needs() {
    local missing=("$@")
    command -v bwrap >/dev/null || missing+=(bubblewrap)
    command -v git >/dev/null || missing+=(git)
    command -v cmake >/dev/null || missing+=(cmake)
    command -v cc >/dev/null || missing+=(build-essential)
    command -v openssl >/dev/null || missing+=(openssl)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    [ -x /usr/bin/python3 ] || missing+=(python3)
    [ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev)
    [ -e /usr/include/zlib.h ] || missing+=(zlib1g-dev)
    if [ "${#missing[@]}" -gt 0 ]; then
        echo "installing: ${missing[*]}"
        local root=()
        [ "$(id -u)" -eq 0 ] || root=(sudo)
        if ! command -v apt-get >/dev/null || { [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; }; then
            echo "please install these packages first: ${missing[*]}" >&2
            return 1
        fi
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    fi
    if ! command -v cargo >/dev/null; then
        if [ -r "$HOME/.cargo/env" ]; then
            # shellcheck disable=SC1091
            . "$HOME/.cargo/env"
        else
            echo "please install Rust first: https://rustup.rs" >&2
            return 1
        fi
    fi
}
