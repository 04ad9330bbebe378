/* TensorBoard's event files (metrics.h), the format by hand. A file is a list of records:
 *
 *     uint64 length, uint32 masked crc32c of those 8 bytes, the payload, uint32 its masked crc32c
 *
 * all little endian; masked is the checksum rotated right by 15 bits plus a constant. The payload is
 * an Event in protocol buffers' encoding, of which these fields are used:
 *
 *     Event    1 wall_time: double   2 step: int64   3 file_version: string   5 summary: Summary
 *              7 session_log: SessionLog { 1 status: START = 1 }
 *     Summary  1 value, repeated: Value { 1 tag: string   2 simple_value: float }
 */
#include "base/crc32c.h"
#include "train/metrics.h"

#include <time.h>

enum { EVENT_ROOM = 4096, VARINT_BYTES = 10 };
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

/* A message under construction; what does not fit is noted, and the message then not written. */
typedef struct {
    unsigned char bytes[EVENT_ROOM];
    size_t n;
    bool full;
} message;

static void put(message *m, const void *bytes, size_t n) {
    if (n > EVENT_ROOM - m->n) {
        m->full = true;
        return;
    }
    memcpy(m->bytes + m->n, bytes, n);
    m->n += n;
}

static void put_varint(message *m, uint64_t value) {
    unsigned char bytes[VARINT_BYTES];
    size_t n = 0;
    do {
        unsigned char low = (unsigned char)(value & 127);
        value >>= 7;
        bytes[n++] = (unsigned char)(low | (value ? 128 : 0));
    } while (value);
    put(m, bytes, n);
}

static void put_key(message *m, unsigned field, unsigned wire) {
    put_varint(m, field << 3 | wire);
}

static void put_bytes(message *m, unsigned field, const void *bytes, size_t n) {
    put_key(m, field, WIRE_BYTES);
    put_varint(m, n);
    put(m, bytes, n);
}

static void begin_event(message *m, double when, int64_t step) {
    *m = (message){.n = 0};
    put_key(m, 1, WIRE_64);
    put(m, &when, sizeof when);
    put_key(m, 2, WIRE_VARINT);
    put_varint(m, (uint64_t)step);
}

static uint32_t masked_crc(const void *data, size_t bytes) {
    uint32_t crc = weft_crc32c(0, data, bytes);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static weft_status write_event(weft_events *e, const message *m) {
    if (m->full) return weft_fail(WEFT_EBUG, "%s: an event is too long", e->path);
    uint64_t length = m->n;
    uint32_t length_crc = masked_crc(&length, sizeof length), crc = masked_crc(m->bytes, m->n);
    bool ok = fwrite(&length, sizeof length, 1, e->file) == 1 &&
              fwrite(&length_crc, sizeof length_crc, 1, e->file) == 1 &&
              fwrite(m->bytes, m->n, 1, e->file) == 1 &&
              fwrite(&crc, sizeof crc, 1, e->file) == 1 && fflush(e->file) == 0;
    return ok ? WEFT_OK : weft_path_failed(e->path);
}

weft_status weft_events_open(const char *folder, int64_t step, weft_events *e) {
    e->file = NULL;
    WEFT_TRY(weft_path(e->path, "%s/events.out.tfevents.%010lld.weft", folder, (long long)step));
    WEFT_TRY(weft_lines_open(e->path, &e->file));
    if (ftruncate(fileno(e->file), 0) != 0) return weft_path_failed(e->path);
    static const char version[] = "brain.Event:2";
    static const unsigned char started[] = {1 << 3 | WIRE_VARINT, 1};
    message m;
    begin_event(&m, (double)time(NULL), step);
    put_bytes(&m, 3, version, sizeof version - 1);
    WEFT_TRY(write_event(e, &m));
    if (step == 0) return WEFT_OK;
    /* The reader forgets from this step on; what was done up to `step` stays. */
    begin_event(&m, (double)time(NULL), step < INT64_MAX ? step + 1 : step);
    put_bytes(&m, 7, started, sizeof started);
    return write_event(e, &m);
}

weft_status weft_events_add(weft_events *e, int64_t step, double when, const weft_scalar *scalars,
                            int n) {
    message event, summary = {.n = 0};
    for (int i = 0; i < n; i++) {
        float number = (float)scalars[i].value;
        message value = {.n = 0};
        put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_key(&value, 2, WIRE_32);
        put(&value, &number, sizeof number);
        put_bytes(&summary, 1, value.bytes, value.n);
        if (value.full) summary.full = true;
    }
    begin_event(&event, when, step);
    put_bytes(&event, 5, summary.bytes, summary.n);
    if (summary.full) event.full = true;
    return write_event(e, &event);
}
