/* A shim between a real daemon and the system: counts the acts on its data folder, makes any one act
   fail or kills the daemon at it, and keeps a log from which every state of the disk can be rebuilt.

   Loaded by LD_PRELOAD, silent until shim_configure() has read the environment:

     SHIM_FOLDER  acts on files below this folder count (except -shm, lock and reserve, which need
                  not survive)
     SHIM_COUNT   a file of 8 bytes: the number of acts, over all processes of a run
     SHIM_LOG     acts are appended to this file, which lies in the page cache and so outlives
                  SIGKILL; no log without it
     SHIM_KINDS   which kinds of acts are counted, by their letters below; default: all
     SHIM_AT      the act at which SHIM_DO happens, from 1; 0 is never
     SHIM_TIMES   the number of acts from there on; 0 is all of them
     SHIM_DO      kill: SIGKILL before the act;  eio, enospc: the act fails;
                  short: half of a write is done, and the next one finds the disk full

   Kinds of acts; the letters are those of the log:

     c  a file was created          w  bytes were written        t  a file was cut or lengthened
     s  a file was synced           d  the folder was synced     u  a file was removed
     r  a file was renamed          k  bytes are sent to a socket: promises, and their receiver
     x  the socket did not take so many bytes (offset) of its last k
     e  a sync of a file failed: its writes are lost, even if later syncs succeed
     m  a mark of the tests */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct record {
    uint32_t magic;
    uint8_t kind;
    uint16_t name_bytes;  /* of the path; of a socket, its description */
    uint32_t data_bytes;
    uint64_t offset;      /* of a write or cut; of a sync, where the log ended when it began */
} __attribute__((packed));

#define MAGIC 0x714c6f67
#define FILES_MAX 4096
#define SOCKET_NAME_BYTES 32

static char *path_of[FILES_MAX];
static uint32_t socket_of[FILES_MAX];  /* a number for each socket that was ever written to */
static uint32_t sockets;

static char folder[512];
static size_t folder_bytes;
static char kinds[16];
static int log_file = -1;
static int64_t no_count;
static volatile int64_t *count = &no_count;
static int64_t at, times;
static enum { NOTHING, KILL, NO_IO, NO_SPACE, SHORT } deed;

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

void shim_configure(void) {
    snprintf(folder, sizeof folder, "%s", setting("SHIM_FOLDER", ""));
    folder_bytes = strlen(folder);
    snprintf(kinds, sizeof kinds, "%s", setting("SHIM_KINDS", "cwtsdurk"));
    at = atoll(setting("SHIM_AT", "0"));
    times = atoll(setting("SHIM_TIMES", "1"));
    const char *what = setting("SHIM_DO", "");
    deed = !strcmp(what, "kill") ? KILL : !strcmp(what, "eio") ? NO_IO
         : !strcmp(what, "enospc") ? NO_SPACE : !strcmp(what, "short") ? SHORT : NOTHING;
    const char *log = setting("SHIM_LOG", NULL);
    if (log) {
        int low = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        log_file = syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, 1000);  /* above the descriptors of the daemon */
        syscall(SYS_close, low);
    }
    const char *shared = setting("SHIM_COUNT", NULL);
    if (shared) {
        int file = syscall(SYS_openat, AT_FDCWD, shared, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        syscall(SYS_ftruncate, file, sizeof *count);
        count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        syscall(SYS_close, file);
    }
}

static void note(char kind, const char *name, const void *data, size_t bytes, uint64_t offset) {
    if (log_file < 0) return;
    struct record record = {MAGIC, kind, strlen(name), bytes, offset};
    struct iovec parts[3] = {{&record, sizeof record},
                             {(void *)name, record.name_bytes},
                             {(void *)data, bytes}};
    if (syscall(SYS_writev, log_file, parts, 3) < 0) abort();  /* an incomplete log proves nothing */
}

static uint64_t log_end(void) { return log_file < 0 ? 0 : lseek(log_file, 0, SEEK_END); }

/* Count an act; return the fault that is planned for it. */
static int act(char kind) {
    if (!strchr(kinds, kind)) return NOTHING;
    int64_t number = __sync_add_and_fetch(count, 1);
    if (!at || number < at || (times && number >= at + times)) return NOTHING;
    if (deed != KILL) return deed;
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static int failed(int what) {
    errno = what == NO_IO ? EIO : ENOSPC;
    return -1;
}

static int is_watched(const char *path) {
    if (!folder_bytes || !path || strncmp(path, folder, folder_bytes)) return 0;
    if (!path[folder_bytes]) return 1;
    if (path[folder_bytes] != '/') return 0;
    const char *name = strrchr(path, '/') + 1;
    size_t bytes = strlen(name);
    return strcmp(name, "lock") && strcmp(name, "reserve") &&
           !(bytes > 4 && !strcmp(name + bytes - 4, "-shm"));
}

static const char *watched(int file) {
    return file >= 0 && file < FILES_MAX ? path_of[file] : NULL;
}

/* Files. */

static int opened(int directory, const char *path, int flags, mode_t mode) {
    int is_ours = (directory == AT_FDCWD || *path == '/') && is_watched(path);
    int is_new = is_ours && flags & O_CREAT && syscall(SYS_access, path, F_OK) != 0;
    int is_cut = is_ours && !is_new && flags & O_TRUNC;
    int wrong = is_new ? act('c') : is_cut ? act('t') : NOTHING;
    if (wrong) return failed(wrong);
    int file = syscall(SYS_openat, directory, path, flags, mode);
    if (is_ours && file >= 0 && file < FILES_MAX) {
        path_of[file] = strdup(path);
        if (is_new) note('c', path, NULL, 0, 0);
        if (is_cut) note('t', path, NULL, 0, 0);
    }
    return file;
}

#define MODE(flags)                                                                                \
    mode_t mode = 0;                                                                               \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                           \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }
#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        MODE(flags)                                                                                \
        return opened(AT_FDCWD, path, flags, mode);                                                \
    }
#define OPENAT(name)                                                                               \
    int name(int directory, const char *path, int flags, ...) {                                    \
        MODE(flags)                                                                                \
        return opened(directory, path, flags, mode);                                               \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int close(int file) {
    if (watched(file)) {
        free(path_of[file]);
        path_of[file] = NULL;
    }
    if (file >= 0 && file < FILES_MAX) socket_of[file] = 0;
    return syscall(SYS_close, file);
}

static ssize_t written(int file, const char *path, const void *data, size_t bytes, off64_t offset) {
    int wrong = act('w');
    if (wrong == SHORT) {
        static __thread int was_short;
        was_short = !was_short;
        bytes /= 2;
        if (!was_short || !bytes) return failed(NO_SPACE);
    } else if (wrong) {
        return failed(wrong);
    }
    note('w', path, data, bytes, offset);
    return syscall(SYS_pwrite64, file, data, bytes, offset);
}

ssize_t pwrite64(int file, const void *data, size_t bytes, off64_t offset) {
    const char *path = watched(file);
    return path ? written(file, path, data, bytes, offset)
                : syscall(SYS_pwrite64, file, data, bytes, offset);
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) {
    return pwrite64(file, data, bytes, offset);
}

int ftruncate64(int file, off64_t bytes) {
    const char *path = watched(file);
    if (path) {
        int wrong = act('t');
        if (wrong) return failed(wrong);
        note('t', path, NULL, 0, bytes);
    }
    return syscall(SYS_ftruncate, file, bytes);
}

int ftruncate(int file, off_t bytes) { return ftruncate64(file, bytes); }

static int synced(int file, long call) {
    const char *path = watched(file);
    if (!path) return syscall(call, file);
    struct stat found;
    fstat(file, &found);
    int is_folder = S_ISDIR(found.st_mode);
    int wrong = act(is_folder ? 'd' : 's');
    if (wrong) {
        if (!is_folder) note('e', path, NULL, 0, 0);
        return failed(NO_IO);
    }
    uint64_t begun = log_end();
    int result = syscall(call, file);
    if (result == 0) note(is_folder ? 'd' : 's', path, NULL, 0, begun);
    return result;
}

int fsync(int file) { return synced(file, SYS_fsync); }
int fdatasync(int file) { return synced(file, SYS_fdatasync); }

int unlink(const char *path) {
    if (!is_watched(path) || syscall(SYS_access, path, F_OK) != 0) return syscall(SYS_unlink, path);
    int wrong = act('u');
    if (wrong) return failed(wrong);
    note('u', path, NULL, 0, 0);
    return syscall(SYS_unlink, path);
}

int rename(const char *from, const char *to) {
    if (is_watched(from)) {
        int wrong = act('r');
        if (wrong) return failed(wrong);
        note('r', from, to, strlen(to), 0);
    }
    return syscall(SYS_rename, from, to);
}

/* Sockets: bytes sent to clients ("unix 7") and to peers ("tcp 7 40123", with their port). */

static int is_socket(int file, char *name) {
    if (!folder_bytes || file < 0 || file >= FILES_MAX || file == log_file) return 0;
    union {
        struct sockaddr any;
        struct sockaddr_storage room;
    } peer;
    socklen_t bytes = sizeof peer;
    if (syscall(SYS_getpeername, file, &peer.any, &bytes) != 0) return 0;
    int type = 0;
    socklen_t type_bytes = sizeof type;
    getsockopt(file, SOL_SOCKET, SO_TYPE, &type, &type_bytes);
    if (type != SOCK_STREAM) return 0;
    if (!socket_of[file]) socket_of[file] = __sync_add_and_fetch(&sockets, 1);
    unsigned number = socket_of[file];
    if (peer.any.sa_family == AF_INET) {
        const unsigned char *port = (const unsigned char *)&peer.any + 2;
        snprintf(name, SOCKET_NAME_BYTES, "tcp %d-%u %u", getpid(), number, port[0] << 8 | port[1]);
    } else {
        snprintf(name, SOCKET_NAME_BYTES, "unix %d-%u", getpid(), number);
    }
    return 1;
}

static ssize_t sent(int file, const struct iovec *parts, int part_count, int flags) {
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = part_count};
    char name[SOCKET_NAME_BYTES];
    if (!is_socket(file, name)) return syscall(SYS_writev, file, parts, part_count);
    act('k');
    size_t bytes = 0;
    for (int part = 0; part < part_count; part++) bytes += parts[part].iov_len;
    if (log_file >= 0) {
        /* Logged before it is sent: marks of its receiver follow it in the log. */
        char *said = malloc(bytes + 1), *end = said;
        for (int part = 0; part < part_count; part++)
            end = mempcpy(end, parts[part].iov_base, parts[part].iov_len);
        note('k', name, said, bytes, 0);
        free(said);
    }
    ssize_t result = syscall(SYS_sendmsg, file, &message, flags);
    int error = errno;
    size_t taken = result < 0 ? 0 : result;
    if (taken < bytes) note('x', name, NULL, 0, bytes - taken);
    errno = error;
    return result;
}

ssize_t write(int file, const void *data, size_t bytes) {
    const char *path = watched(file);
    if (path) {
        ssize_t result = written(file, path, data, bytes, lseek(file, 0, SEEK_CUR));
        if (result > 0) lseek(file, result, SEEK_CUR);
        return result;
    }
    struct iovec part = {(void *)data, bytes};
    return sent(file, &part, 1, 0);
}

ssize_t writev(int file, const struct iovec *parts, int part_count) {
    return sent(file, parts, part_count, 0);
}

ssize_t send(int file, const void *data, size_t bytes, int flags) {
    struct iovec part = {(void *)data, bytes};
    return sent(file, &part, 1, flags);
}

ssize_t sendmsg(int file, const struct msghdr *message, int flags) {
    if (message->msg_name || message->msg_controllen) return syscall(SYS_sendmsg, file, message, flags);
    return sent(file, message->msg_iov, message->msg_iovlen, flags);
}
