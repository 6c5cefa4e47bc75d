# Makes a small image from this machine's own programs, as no registry may be reachable: image.sh PODMAN NAME
set -euo pipefail
root=$(mktemp --directory)
trap 'rm -r "$root"' EXIT
mkdir -p "$root"/usr/bin "$root"/{etc,proc,dev,sys,run,tmp,var,root,home}
for name in bash cat chmod cp date env find grep head id ls mkdir mount rm sed seq setsid sleep sort stat tail touch tr \
    truncate unshare wc yes; do
    program=$(readlink -f "$(PATH=/usr/bin:/bin type -P "$name")")
    cp "$program" "$root/usr/bin/$name"
    # And the program that leads to a proxy, of the third word.
    for library in $(ldd "$program" "$3" | grep -o '/[^ :]*' | grep '\.so'); do
        mkdir -p "$root$(dirname "$library")"
        cp --no-clobber --dereference "$library" "$root$library"
    done
done
chmod 1777 "$root/tmp"
ln -s usr/bin "$root/bin"
tar --directory "$root" --create . | "$1" import --quiet - "$2" >/dev/null
