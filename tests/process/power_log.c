/* A log of everything that a process does to the files of one folder, and a sync that fails.

   LD_PRELOAD=power_log.so  POWER_FOLDER=/the/folder  POWER_LOG=/the/log  [POWER_FAIL_SYNC=n]

   Each act is appended as a record, its path and its data.  The log lies in the page cache, so it
   survives SIGKILL and goes on in the next process.  Syncs are logged and not done: what they would
   have made durable is for the reader of the log to say.  The n-th sync fails with EIO.  `-shm` is
   left out, for it is made anew after a loss of power. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct record {
    uint8_t kind; /* c created, w written, t truncated, s synced, f sync failed, d folder synced,
                     u unlinked, o said on stdout */
    uint32_t path_bytes, data_bytes;
    uint64_t offset;
} __attribute__((packed));

#define FILES_MAX 4096
static char *path_of[FILES_MAX];
static const char *folder;
static int log_file = -1;
static long fail_sync, syncs;

__attribute__((constructor)) static void start(void) {
    folder = getenv("POWER_FOLDER");
    const char *fail = getenv("POWER_FAIL_SYNC");
    fail_sync = fail ? atol(fail) : 0;
    const char *path = getenv("POWER_LOG");
    int low = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    log_file = syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, 1000);
    syscall(SYS_close, low);
}

static void note(char kind, const char *path, const void *data, size_t bytes, uint64_t offset) {
    struct record record = {kind, strlen(path), bytes, offset};
    struct iovec parts[3] = {{&record, sizeof record},
                             {(void *)path, record.path_bytes},
                             {(void *)data, bytes}};
    syscall(SYS_writev, log_file, parts, 3);
}

static int is_watched(const char *path) {
    size_t bytes = strlen(path);
    return folder && strncmp(path, folder, strlen(folder)) == 0 &&
           !(bytes > 4 && strcmp(path + bytes - 4, "-shm") == 0);
}

static const char *watched(int file) {
    return file >= 0 && file < FILES_MAX ? path_of[file] : NULL;
}

static int opened(const char *path, int flags, mode_t mode) {
    int is_new = syscall(SYS_access, path, F_OK) != 0;
    int file = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (file >= 0 && file < FILES_MAX && is_watched(path)) {
        path_of[file] = strdup(path);
        if (is_new) note('c', path, NULL, 0, 0);
    }
    return file;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                                  \
        va_end(rest);                                                                              \
        return opened(path, flags, mode);                                                          \
    }
OPEN(open)
OPEN(open64)

int close(int file) {
    if (watched(file)) {
        free(path_of[file]);
        path_of[file] = NULL;
    }
    return syscall(SYS_close, file);
}

ssize_t pwrite64(int file, const void *data, size_t bytes, off64_t offset) {
    if (watched(file)) note('w', path_of[file], data, bytes, offset);
    return syscall(SYS_pwrite64, file, data, bytes, offset);
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) {
    return pwrite64(file, data, bytes, offset);
}

ssize_t write(int file, const void *data, size_t bytes) {
    if (file == 1) note('o', "", data, bytes, 0);
    if (watched(file)) note('w', path_of[file], data, bytes, lseek(file, 0, SEEK_CUR));
    return syscall(SYS_write, file, data, bytes);
}

int ftruncate64(int file, off64_t bytes) {
    if (watched(file)) note('t', path_of[file], NULL, 0, bytes);
    return syscall(SYS_ftruncate, file, bytes);
}

int ftruncate(int file, off_t bytes) { return ftruncate64(file, bytes); }

int fsync(int file) {
    if (!watched(file)) return syscall(SYS_fsync, file);
    if (++syncs == fail_sync) {
        note('f', path_of[file], NULL, 0, 0);
        errno = EIO;
        return -1;
    }
    struct stat found;
    fstat(file, &found);
    note(S_ISDIR(found.st_mode) ? 'd' : 's', path_of[file], NULL, 0, 0);
    return 0;
}

int fdatasync(int file) { return fsync(file); }

int unlink(const char *path) {
    int result = syscall(SYS_unlink, path);
    if (result == 0 && is_watched(path)) note('u', path, NULL, 0, 0);
    return result;
}
