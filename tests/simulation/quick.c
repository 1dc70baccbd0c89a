/* The operations of vfs.py and disk.py that need no decision, of which SQLite calls a thousand for
 * each commit.  Python decides the others: with a planned fault, a nearly full disk, a disk that
 * loses its power at a given act, or a digest of all acts.  The worlds are the same with and without
 * this file; see file_contents.py. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, BUSY = 5, NOMEM = 7, NOTFOUND = 12, IOERR = 10, IOERR_SHORT_READ = 10 | 2 << 8 };
enum { SECTOR_BYTES = 4096, SHM_LOCKS = 8, SHM_LOCK = 2, SHM_EXCLUSIVE = 8 };

/* An unsynced write, followed by its data.  size -1: a truncation to `offset`. */
struct write {
    int64_t offset, size;
};

struct block {
    unsigned char *data;
    int64_t size, room;
};

/* The bytes of one file: visible ones, durable ones, and the unsynced writes between them.
 * `is_borrowed`: `content` belongs to another file. */
struct bytes {
    struct block content, durable, writes;
    int64_t is_borrowed;
};

struct disk {
    int64_t acts;
    int32_t generation, is_off, needs_decision, reads_need_decision;
};

struct lock {
    uint64_t shared[SHM_LOCKS];  /* a bit for each slot of a handle */
    int32_t exclusive[SHM_LOCKS]; /* a slot + 1 */
};

struct handle {
    const void *methods;
    int64_t number;
    struct bytes *bytes;
    struct disk *disk;
    struct lock *lock;
    int32_t generation, slot;
};

typedef int (*read_or_write)(struct handle *, void *, int, int64_t);

read_or_write decide_read, decide_write; /* set by Python */
int characteristics;

static int grow(struct block *block, int64_t size)
{
    if (size > block->room) {
        int64_t room = block->room ? block->room : 4096;
        while (room < size)
            room *= 2;
        unsigned char *data = realloc(block->data, room);
        if (!data)
            return 0;
        block->data = data;
        block->room = room;
    }
    return 1;
}

static int put(struct block *block, int64_t offset, const void *data, int64_t size)
{
    int64_t end = offset + size;
    if (!grow(block, end))
        return 0;
    if (offset > block->size)
        memset(block->data + block->size, 0, offset - block->size);
    memcpy(block->data + offset, data, size);
    if (end > block->size)
        block->size = end;
    return 1;
}

static int cut(struct block *block, int64_t size)
{
    if (size > block->size) {
        if (!grow(block, size))
            return 0;
        memset(block->data + block->size, 0, size - block->size);
    }
    block->size = size;
    return 1;
}

static int own(struct bytes *bytes)
{
    if (bytes->is_borrowed) {
        struct block lent = bytes->content;
        bytes->content = (struct block){0};
        bytes->is_borrowed = 0;
        return put(&bytes->content, 0, lent.data, lent.size);
    }
    return 1;
}

static int remember(struct bytes *bytes, int64_t offset, const void *data, int64_t size)
{
    struct write write = {offset, data ? size : -1};
    int64_t end = bytes->writes.size;
    if (!put(&bytes->writes, end, &write, sizeof write))
        return 0;
    return !data || put(&bytes->writes, end + sizeof write, data, size);
}

/* Called by Python. */

int bytes_write(struct bytes *bytes, int64_t offset, const void *data, int64_t size)
{
    return own(bytes) && put(&bytes->content, offset, data, size)
        && remember(bytes, offset, data, size);
}

/* Records a write that is not visible. */
int bytes_remember(struct bytes *bytes, int64_t offset, const void *data, int64_t size)
{
    return remember(bytes, offset, data, size);
}

int bytes_truncate(struct bytes *bytes, int64_t size)
{
    return own(bytes) && cut(&bytes->content, size) && remember(bytes, size, NULL, 0);
}

int bytes_settle(struct bytes *bytes)
{
    unsigned char *at = bytes->writes.data, *end = at + bytes->writes.size;
    while (at < end) {
        struct write write;
        memcpy(&write, at, sizeof write);
        at += sizeof write;
        if (write.size < 0) {
            if (!cut(&bytes->durable, write.offset))
                return 0;
        } else {
            if (!put(&bytes->durable, write.offset, at, write.size))
                return 0;
            at += write.size;
        }
    }
    bytes->writes.size = 0;
    return 1;
}

/* Makes the durable bytes the visible ones. */
int bytes_show_durable(struct bytes *bytes)
{
    bytes->content.size = 0;
    return put(&bytes->content, 0, bytes->durable.data, bytes->durable.size);
}

void bytes_free(struct bytes *bytes)
{
    if (!bytes->is_borrowed)
        free(bytes->content.data);
    free(bytes->durable.data);
    free(bytes->writes.data);
    memset(bytes, 0, sizeof *bytes);
}

/* Called by SQLite. */

int quick_read(struct handle *handle, void *buffer, int size, int64_t offset)
{
    struct disk *disk = handle->disk;
    if (disk->reads_need_decision || handle->generation != disk->generation)
        return decide_read(handle, buffer, size, offset);
    struct block *content = &handle->bytes->content;
    int64_t there = content->size - offset;
    if (there >= size) {
        memcpy(buffer, content->data + offset, size);
        return OK;
    }
    if (there < 0)
        there = 0;
    if (there)
        memcpy(buffer, content->data + offset, there);
    memset((char *)buffer + there, 0, size - there);
    return IOERR_SHORT_READ;
}

int quick_write(struct handle *handle, const void *buffer, int size, int64_t offset)
{
    struct disk *disk = handle->disk;
    if (disk->needs_decision || handle->generation != disk->generation)
        return decide_write(handle, (void *)buffer, size, offset);
    disk->acts++;
    return bytes_write(handle->bytes, offset, buffer, size) ? OK : NOMEM;
}

int quick_file_size(struct handle *handle, int64_t *size)
{
    *size = handle->bytes->content.size;
    return OK;
}

int quick_file_control(struct handle *handle, int operation, void *argument)
{
    (void)handle, (void)operation, (void)argument;
    return NOTFOUND;
}

int quick_sector_size(struct handle *handle)
{
    (void)handle;
    return SECTOR_BYTES;
}

int quick_device_characteristics(struct handle *handle)
{
    (void)handle;
    return characteristics;
}

int quick_shm_lock(struct handle *handle, int offset, int count, int flags)
{
    struct disk *disk = handle->disk;
    struct lock *lock = handle->lock;
    if (handle->generation != disk->generation || disk->is_off)
        return IOERR;
    uint64_t bit = (uint64_t)1 << handle->slot;
    int32_t mine = handle->slot + 1;
    int end = offset + count;
    if (!(flags & SHM_LOCK)) {
        for (int i = offset; i < end; i++) {
            lock->shared[i] &= ~bit;
            if (lock->exclusive[i] == mine)
                lock->exclusive[i] = 0;
        }
        return OK;
    }
    for (int i = offset; i < end; i++) {
        if (lock->exclusive[i] && lock->exclusive[i] != mine)
            return BUSY;
        if (flags & SHM_EXCLUSIVE && lock->shared[i] & ~bit)
            return BUSY;
    }
    for (int i = offset; i < end; i++) {
        if (flags & SHM_EXCLUSIVE)
            lock->exclusive[i] = mine;
        else
            lock->shared[i] |= bit;
    }
    return OK;
}

void quick_shm_barrier(struct handle *handle)
{
    (void)handle; /* one thread runs everything */
}
