// Attacks, one for each name: the tests run this program in the sandbox, and outside as the control.
//
// Each argument is `NAME` or `NAME,VALUE,VALUE`. Each is tried in a process of its own, and one line says how it went:
// `NAME,VALUE=ok`, `NAME,VALUE=EPERM` with the name of the errno, `NAME,VALUE=SIGSYS` with the name of the signal.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <linux/openat2.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <mqueue.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

// Each attack gets its values and answers as a system call does: below zero with `errno` set, or not.
typedef long attack(char **value);

static const unsigned SETUID_MODE = 04755;
static const unsigned SETGID_FOLDER = 02755;

// ---- namespaces and mounts

static long mount_tmpfs(char **value) { return mount("none", value[0], "tmpfs", 0, NULL); }
static long remount(char **value) {
    return mount(NULL, value[0], NULL, MS_REMOUNT | MS_BIND, NULL);
}
static long unmount(char **value) { return umount2(value[0], MNT_DETACH); }
static long pivot(char **value) { return syscall(SYS_pivot_root, value[0], value[0]); }
static long change_root(char **value) { return chroot(value[0]); }
static long unshare_user(char **value) { (void)value; return unshare(CLONE_NEWUSER); }
static long unshare_mount(char **value) { (void)value; return unshare(CLONE_NEWNS); }

static long clone_user(char **value) {
    (void)value;
    long child = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child;
}

static long clone3_user(char **value) {
    (void)value;
    struct clone_args arguments = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child == 0) _exit(0);
    return child;
}

static long enter_namespace(char **value) { return setns(open(value[0], O_RDONLY), 0); }
static long open_file_system(char **value) { (void)value; return syscall(SYS_fsopen, "tmpfs", 0); }
static long open_mounts(char **value) { return syscall(SYS_open_tree, AT_FDCWD, value[0], 1); }
static long pick_mount(char **value) { return syscall(SYS_fspick, AT_FDCWD, value[0], 0); }
static long configure_mount(char **value) {
    (void)value;
    return syscall(SYS_fsconfig, -1, 6, NULL, NULL, 0);
}
static long make_mount(char **value) { (void)value; return syscall(SYS_fsmount, -1, 0, 0); }
static long move_mount_of(char **value) {
    (void)value;
    return syscall(SYS_move_mount, -1, "", -1, "", 4);
}
static long set_mount(char **value) {
    uint64_t attributes[4] = {0};
    return syscall(SYS_mount_setattr, AT_FDCWD, value[0], 0, attributes, sizeof attributes);
}

// ---- the kernel's other ways around a filter

static long ring(char **value) {
    (void)value;
    struct io_uring_params parameters = {0};
    return syscall(SYS_io_uring_setup, 1, &parameters);
}

static long bpf_map(char **value) {
    (void)value;
    union bpf_attr attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.map_type = BPF_MAP_TYPE_ARRAY;
    attributes.key_size = 4;
    attributes.value_size = 4;
    attributes.max_entries = 1;
    return syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes);
}

static long key_ring(char **value) {
    (void)value;
    return syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1);
}
static long add_key(char **value) {
    (void)value;
    return syscall(SYS_add_key, "user", "hyla", "x", 1, KEY_SPEC_PROCESS_KEYRING);
}
static long request_key(char **value) {
    (void)value;
    return syscall(SYS_request_key, "user", "hyla-none", NULL, KEY_SPEC_PROCESS_KEYRING);
}

static long perf(char **value) {
    (void)value;
    struct perf_event_attr attributes = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attributes};
    attributes.exclude_kernel = 1;
    return syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);
}

static long page_faults(char **value) { (void)value; return syscall(SYS_userfaultfd, 1); }

// What an attack has started and nobody else ends.
static pid_t victim;

static pid_t child_that_waits(void) {
    victim = fork();
    if (victim == 0)
        for (;;) pause();
    return victim;
}

static long trace(char **value) {
    (void)value;
    return ptrace(PTRACE_SEIZE, child_that_waits(), NULL, NULL);
}

static long read_memory(char **value) {
    (void)value;
    char bytes[8];
    struct iovec here = {bytes, sizeof bytes}, there = {(void *)&SETUID_MODE, 4};
    return process_vm_readv(child_that_waits(), &here, 1, &there, 1, 0);
}

static long write_memory(char **value) {
    (void)value;
    static int target;
    int bytes = 1;
    struct iovec here = {&bytes, sizeof bytes}, there = {&target, sizeof target};
    return process_vm_writev(child_that_waits(), &here, 1, &there, 1, 0);
}

static long compare(char **value) {
    (void)value;
    return syscall(SYS_kcmp, getpid(), getpid(), 0, 0, 1);
}

static long dies_by(char **value) { return prctl(PR_SET_PDEATHSIG, atol(value[0])); }

static long handle_of(char **value) {
    struct { struct file_handle head; char rest[128]; } handle;
    int mount;
    handle.head.handle_bytes = 128;
    return name_to_handle_at(AT_FDCWD, value[0], &handle.head, &mount, 0);
}

static long open_handle(char **value) {
    struct { struct file_handle head; char rest[128]; } handle;
    int mount;
    memset(&handle, 0, sizeof handle);
    handle.head.handle_bytes = 128;
    (void)!name_to_handle_at(AT_FDCWD, value[0], &handle.head, &mount, 0);
    return open_by_handle_at(AT_FDCWD, &handle.head, O_PATH);
}

static long watch_all(char **value) { (void)value; return syscall(SYS_fanotify_init, 0x200, 0); }

static long old_calls(char **value) {
    (void)value;
#ifdef __x86_64__
    long number = 20; // getpid of a 32-bit program
    __asm__ volatile("int $0x80" : "+a"(number) : : "memory");
    return number > 0 ? 0 : -1;
#else
    errno = ENOSYS;
    return -1;
#endif
}

static long x32_calls(char **value) { (void)value; return syscall(0x40000000 | 39); }

// Puts code into process 1, which makes it the process that calls. What its call was answered lies in the file afterwards.
#ifdef __x86_64__
__asm__(".pushsection .rodata\n"
        "inject_begin:\n"
        "mov $272, %eax\nmov $0x10000000, %edi\nsyscall\n" // unshare(CLONE_NEWUSER)
        "mov %eax, %ebx\n"
        "lea inject_path(%rip), %rdi\nmov $0x241, %esi\nmov $0644, %edx\nmov $2, %eax\nsyscall\n" // open
        "mov %eax, %edi\npush %rbx\nmov %rsp, %rsi\nmov $4, %edx\nmov $1, %eax\nsyscall\n"         // write
        "xor %edi, %edi\nmov $231, %eax\nsyscall\n"                                                 // exit_group
        "inject_path: .asciz \"/workspace/injected\"\n"
        "inject_end:\n"
        ".popsection\n");
extern const char inject_begin[], inject_end[];

static long inject(char **value) {
    (void)value;
    unsigned long long stack, counter = 0;
    while (counter == 0) {
        FILE *file = fopen("/proc/1/syscall", "r");
        if (!file) return -1;
        if (fscanf(file, "%*s %*s %*s %*s %*s %*s %*s %llx %llx", &stack, &counter) != 2) counter = 0;
        fclose(file);
    }
    int memory = open("/proc/1/mem", O_RDWR);
    if (memory < 0) return -1;
    long written = pwrite(memory, inject_begin, inject_end - inject_begin, (off_t)counter);
    if (written < 0) return -1;
    // Process 1 waits for its children: one that is orphaned and ends lets it go on, in what was written.
    if (fork() == 0) {
        if (fork() == 0) usleep(1000);
        _exit(0);
    }
    sleep(5);
    return 0;
}
#else
static long inject(char **value) { (void)value; errno = ENOSYS; return -1; }
#endif

// ---- the network

static long talk(int kind, char **value) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(atoi(value[1]))};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(atoi(value[1]))};
    int is_six = inet_pton(AF_INET6, value[0], &six.sin6_addr) == 1;
    if (!is_six) inet_pton(AF_INET, value[0], &four.sin_addr);
    int end = socket(is_six ? AF_INET6 : AF_INET, kind, 0);
    if (end < 0) return -1;
    return connect(end, is_six ? (void *)&six : (void *)&four, is_six ? sizeof six : sizeof four) < 0 ? -1 : end;
}

static long tcp(char **value) { return talk(SOCK_STREAM, value); }
static long udp_connect(char **value) { return talk(SOCK_DGRAM, value); }

// Whoever listens answers with a byte.
static long udp(char **value) {
    long end = talk(SOCK_DGRAM, value);
    char byte = 'x';
    if (end < 0 || send(end, &byte, 1, 0) < 0) return -1;
    struct pollfd waiting = {.fd = end, .events = POLLIN};
    if (poll(&waiting, 1, 5000) == 0) {
        errno = ETIMEDOUT;
        return -1;
    }
    return recv(end, &byte, 1, 0);
}

static long unix_name(char *name, int is_abstract) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path + is_abstract, name, sizeof address.sun_path - 2);
    int end = socket(AF_UNIX, SOCK_STREAM, 0);
    if (end < 0) return -1;
    return connect(end, (void *)&address, offsetof(struct sockaddr_un, sun_path) + is_abstract + strlen(name));
}

static long abstract(char **value) { return unix_name(value[0], 1); }
static long unix_path(char **value) { return unix_name(value[0], 0); }
static long make_socket(char **value) {
    return socket(atoi(value[0]), atoi(value[1]), atoi(value[2]));
}
static long make_pair(char **value) {
    int ends[2];
    return socketpair(atoi(value[0]), SOCK_STREAM, 0, ends);
}

// Two processes of one sandbox talk over the loopback device.
static long loopback(char **value) {
    (void)value;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (void *)&address, length) < 0 || listen(server, 1) < 0) return -1;
    getsockname(server, (void *)&address, &length);
    if (fork() == 0) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        _exit(connect(client, (void *)&address, length) == 0 ? write(client, "x", 1) != 1 : 1);
    }
    char byte;
    return read(accept(server, NULL, NULL), &byte, 1) == 1 ? 0 : -1;
}

// ---- the terminal

// The terminal of the session, or else what the process has as its input.
static int terminal(void) {
    int found = open("/dev/tty", O_RDWR | O_NOCTTY);
    return found < 0 ? 0 : found;
}

static long type(char **value) {
    (void)value;
    return ioctl(terminal(), TIOCSTI, "\n");
}
static long type_with_high_bits(char **value) {
    (void)value;
    return syscall(SYS_ioctl, terminal(), TIOCSTI | 1UL << 32, "\n");
}
static long paste(char **value) {
    (void)value;
    char command[] = {3, 0}; // paste the selection of the console
    return ioctl(terminal(), TIOCLINUX, command);
}
static long is_typed(char **value) {
    (void)value;
    int n_bytes = 0;
    if (ioctl(terminal(), FIONREAD, &n_bytes) < 0) return -1;
    errno = ENODATA;
    return n_bytes > 0 ? 0 : -1;
}

// ---- files

static long open_to_read(char **value) { return open(value[0], O_RDONLY | O_NOCTTY); }
static long open_to_write(char **value) { return open(value[0], O_WRONLY); }
static long make_file(char **value) { return open(value[0], O_WRONLY | O_CREAT, 0644); }
static long shorten(char **value) { return truncate(value[0], 0); }
static long move(char **value) { return rename(value[0], value[1]); }
static long link_to(char **value) { return link(value[0], value[1]); }
static long link_to_itself(char **value) { return symlink(value[0], value[0]); }
static long drop(char **value) { return unlink(value[0]); }
static long make_folder(char **value) { return mkdir(value[0], 0755); }
static long set_mode(char **value) { return chmod(value[0], 0777); }
static long set_owner(char **value) { return chown(value[0], getuid(), getgid()); }
static long set_times(char **value) { return utimes(value[0], NULL); }
static long set_attribute(char **value) { return setxattr(value[0], "user.hyla", "x", 1, 0); }
static long map_to_write(char **value) {
    int file = open(value[0], O_RDONLY);
    if (file < 0) return -1;
    char *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return bytes == MAP_FAILED ? -1 : 0;
}
static long map_and_write(char **value) {
    int file = open(value[0], O_RDWR);
    if (file < 0) return -1;
    char *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED) return -1;
    bytes[0] = 'X';
    return 0;
}
static long read_number(char **value) {
    char byte;
    return read(atoi(value[0]), &byte, 1);
}
static long crash(char **value) {
    (void)value;
    return kill(getpid(), SIGSEGV);
}

// ---- set-id bits

static long setuid_chmod(char **value) { return chmod(value[0], SETUID_MODE); }
static long setuid_chmod_high(char **value) {
#ifdef SYS_chmod
    return syscall(SYS_chmod, value[0], SETUID_MODE | 1UL << 32);
#else
    return syscall(SYS_fchmodat, AT_FDCWD, value[0], SETUID_MODE | 1UL << 32);
#endif
}
static long setuid_fchmod(char **value) { return fchmod(open(value[0], O_RDONLY), SETUID_MODE); }
static long setuid_fchmodat(char **value) { return fchmodat(AT_FDCWD, value[0], SETUID_MODE, 0); }
static long setuid_fchmodat2(char **value) {
    return syscall(452, AT_FDCWD, value[0], SETUID_MODE, 0);
}
static long setgid_chmod(char **value) { return chmod(value[0], 02755); }
static long setuid_open(char **value) {
#ifdef SYS_open
    return syscall(SYS_open, value[0], O_CREAT | O_WRONLY, SETUID_MODE);
#else
    return syscall(SYS_openat, AT_FDCWD, value[0], O_CREAT | O_WRONLY, SETUID_MODE);
#endif
}
static long setuid_openat(char **value) {
    return syscall(SYS_openat, AT_FDCWD, value[0], O_CREAT | O_WRONLY, SETUID_MODE);
}
static long setuid_openat2(char **value) {
    struct open_how how = {.flags = O_CREAT | O_WRONLY, .mode = SETUID_MODE};
    return syscall(SYS_openat2, AT_FDCWD, value[0], &how, sizeof how);
}
static long setuid_unnamed(char **value) {
    int file = open(".", O_TMPFILE | O_RDWR, SETUID_MODE);
    if (file < 0) return -1;
    char door[64];
    snprintf(door, sizeof door, "/proc/self/fd/%d", file);
    return linkat(AT_FDCWD, door, AT_FDCWD, value[0], AT_SYMLINK_FOLLOW);
}
static long setuid_creat(char **value) { return creat(value[0], SETUID_MODE); }
static long setuid_mknod(char **value) { return mknod(value[0], S_IFREG | SETUID_MODE, 0); }
static long setuid_pipe(char **value) { return mkfifo(value[0], SETUID_MODE); }
static long setgid_mkdir(char **value) { return mkdir(value[0], SETGID_FOLDER); }
static long setgid_mkdirat(char **value) { return mkdirat(AT_FDCWD, value[0], SETGID_FOLDER); }
static long device(char **value) { return mknod(value[0], S_IFCHR | 0666, 0x103); }
static long file_capability(char **value) {
    uint32_t capability[5] = {0x02000001, 0xffffffff, 0, 0xffffffff, 0};
    return setxattr(value[0], "security.capability", capability, sizeof capability, 0);
}

// ---- what two jobs could share

static const key_t SHARED = 0x48796c61;

static long memory_put(char **value) {
    (void)value;
    return shmget(SHARED, 4096, IPC_CREAT | 0666);
}
static long memory_look(char **value) { (void)value; return shmget(SHARED, 4096, 0); }
static long memory_attach(char **value) { return (long)shmat(atoi(value[0]), NULL, SHM_RDONLY) == -1 ? -1 : 0; }
static long memory_drop(char **value) {
    (void)value;
    return shmctl(shmget(SHARED, 4096, 0), IPC_RMID, NULL);
}
static long queue_put(char **value) {
    (void)value;
    return mq_open("/hyla-probe", O_CREAT | O_RDWR, 0666, NULL);
}
static long queue_look(char **value) { (void)value; return mq_open("/hyla-probe", O_RDWR); }
static long queue_drop(char **value) { (void)value; return mq_unlink("/hyla-probe"); }

// ---- to wear out whoever looks at the workspace

static long deep(char **value) {
    for (long left = atol(value[0]); left > 0; left--)
        if (mkdir("d", 0755) < 0 || chdir("d") < 0) return -1;
    return 0;
}

// Swaps two names, for ever.
static long flip(char **value) {
    for (;;)
        if (renameat2(AT_FDCWD, value[0], AT_FDCWD, value[1], RENAME_EXCHANGE) < 0 && errno != ENOENT) return -1;
}

#define ATTACK(name) {#name, name}
static const struct { const char *name; attack *run; } ATTACKS[] = {
    ATTACK(mount_tmpfs), ATTACK(remount), ATTACK(unmount), ATTACK(pivot), ATTACK(change_root),
    ATTACK(unshare_user), ATTACK(unshare_mount), ATTACK(clone_user), ATTACK(clone3_user), ATTACK(enter_namespace),
    ATTACK(open_file_system), ATTACK(open_mounts), ATTACK(pick_mount), ATTACK(configure_mount), ATTACK(make_mount),
    ATTACK(move_mount_of), ATTACK(set_mount),
    ATTACK(ring), ATTACK(bpf_map), ATTACK(key_ring), ATTACK(add_key), ATTACK(request_key), ATTACK(perf),
    ATTACK(page_faults), ATTACK(trace), ATTACK(read_memory), ATTACK(write_memory), ATTACK(compare), ATTACK(handle_of),
    ATTACK(open_handle), ATTACK(watch_all), ATTACK(dies_by), ATTACK(old_calls), ATTACK(x32_calls), ATTACK(inject),
    ATTACK(tcp), ATTACK(udp), ATTACK(udp_connect), ATTACK(abstract), ATTACK(unix_path), ATTACK(make_socket),
    ATTACK(make_pair), ATTACK(loopback),
    ATTACK(type), ATTACK(type_with_high_bits), ATTACK(paste), ATTACK(is_typed),
    ATTACK(open_to_read), ATTACK(open_to_write), ATTACK(make_file), ATTACK(shorten), ATTACK(move), ATTACK(link_to),
    ATTACK(link_to_itself), ATTACK(drop), ATTACK(make_folder), ATTACK(set_mode), ATTACK(set_owner), ATTACK(set_times),
    ATTACK(set_attribute), ATTACK(map_to_write), ATTACK(map_and_write), ATTACK(read_number), ATTACK(crash),
    ATTACK(setuid_chmod), ATTACK(setuid_chmod_high), ATTACK(setuid_fchmod), ATTACK(setuid_fchmodat),
    ATTACK(setuid_fchmodat2), ATTACK(setgid_chmod), ATTACK(setuid_open), ATTACK(setuid_openat), ATTACK(setuid_openat2),
    ATTACK(setuid_unnamed), ATTACK(setuid_creat), ATTACK(setuid_mknod), ATTACK(setuid_pipe), ATTACK(setgid_mkdir),
    ATTACK(setgid_mkdirat), ATTACK(device), ATTACK(file_capability),
    ATTACK(memory_put), ATTACK(memory_look), ATTACK(memory_attach), ATTACK(memory_drop), ATTACK(queue_put), ATTACK(queue_look),
    ATTACK(queue_drop), ATTACK(deep), ATTACK(flip),
};

static void run(const char *argument, char *text) {
    char *value[4] = {"", "", "", ""}, *rest = text, *name = strsep(&rest, ",");
    for (int at = 0; at < 4 && rest; at++) value[at] = strsep(&rest, ",");
    for (size_t at = 0; at < sizeof ATTACKS / sizeof *ATTACKS; at++) {
        if (strcmp(ATTACKS[at].name, name) != 0) continue;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            umask(0);
            int answer = ATTACKS[at].run(value) < 0 ? errno : 0;
            if (victim > 0) kill(victim, SIGKILL);
            _exit(answer);
        }
        int status;
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status)) printf("%s=SIG%s\n", argument, sigabbrev_np(WTERMSIG(status)));
        else printf("%s=%s\n", argument, WEXITSTATUS(status) == 0 ? "ok" : strerrorname_np(WEXITSTATUS(status)));
        return;
    }
    printf("%s=unknown\n", argument);
}

int main(int n_arguments, char **arguments) {
    for (int at = 1; at < n_arguments; at++) run(strdup(arguments[at]), arguments[at]);
    return 0;
}
