/* state.json. */
#include "model/sums.h"

#include "base/crc32c.h"
#include "base/json.h"
#include "model/parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_MOST = 1 << 20, TAIL_ROOM = 64, ATTEMPTS = 10 };

/* What follows the bytes that are summed. */
static const char tail_format[] = ",\n  \"state_crc32c\": \"%08x\"\n}\n";

json_t *weft_sum_to_json(const weft_sum *sum) {
    char text[16];
    snprintf(text, sizeof text, "%08x", (unsigned)sum->crc);
    return json_pack("{s:I, s:s}", "bytes", (json_int_t)sum->bytes, "crc32c", text);
}

/* The text without its closing brace, then the checksum of that. */
static weft_status write_text(const char *path, const char *text) {
    char tail[TAIL_ROOM];
    size_t n = strlen(text);
    weft_new_file f;
    if (n < 2 || strcmp(text + n - 2, "\n}") != 0)
        return weft_fail(WEFT_EBUG, "%s: a state that is no object", path);
    WEFT_TRY(weft_new_file_begin(&f, path));
    weft_new_file_put(&f, text, (int64_t)n - 2);
    int length = snprintf(tail, sizeof tail, tail_format, (unsigned)f.sum.crc);
    weft_new_file_put(&f, tail, length);
    return weft_new_file_end(&f, WEFT_OK);
}

weft_status weft_state_write(const char *folder, json_t *state) {
    char path[WEFT_PATH_MAX];
    weft_status status = weft_path(path, "%s/state.json", folder);
    json_object_set_new(state, "format", json_integer(WEFT_STATE_FORMAT));
    char *text = json_dumps(state, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(state);
    if (status == WEFT_OK && !text) status = weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    if (status == WEFT_OK) status = write_text(path, text);
    free(text);
    return status;
}

static weft_status check_own(const char *path, const char *text, size_t bytes) {
    char tail[TAIL_ROOM];
    size_t length = (size_t)snprintf(tail, sizeof tail, tail_format, 0u);
    size_t summed = bytes > length ? bytes - length : 0;
    snprintf(tail, sizeof tail, tail_format, (unsigned)weft_crc32c(0, text, summed));
    if (summed && memcmp(text + summed, tail, length) == 0) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: its checksum is not that of what it says: it was changed "
                     "after it was written; take another checkpoint",
                     path);
}

weft_status weft_state_read(const char *folder, json_t **out) {
    char path[WEFT_PATH_MAX], *text;
    size_t bytes;
    json_error_t error;
    *out = NULL;
    WEFT_TRY(weft_path(path, "%s/state.json", folder));
    WEFT_TRY(weft_file_read(path, STATE_MOST, &text, &bytes));
    json_t *state = weft_json_read(text, bytes, JSON_REJECT_DUPLICATES, &error);
    weft_status status = WEFT_OK;
    json_int_t format = json_integer_value(json_object_get(state, "format"));
    if (!state)
        status = weft_fail(WEFT_EINPUT, "%s:%d: %s", path, error.line, error.text);
    else if (format != 1 && format != WEFT_STATE_FORMAT)
        status = weft_fail(WEFT_EINPUT, "%s: not a state of this version of weft", path);
    else if (format == WEFT_STATE_FORMAT)
        status = check_own(path, text, bytes);
    free(text);
    if (status == WEFT_OK)
        *out = state;
    else
        json_decref(state);
    return status;
}

weft_status weft_state_check_file(const char *folder, const json_t *state, const char *name,
                                  bool whole) {
    const json_t *entry = json_object_get(json_object_get(state, "files"), name);
    const char *want = json_string_value(json_object_get(entry, "crc32c"));
    const json_t *size = json_object_get(entry, "bytes");
    char path[WEFT_PATH_MAX], text[16];
    weft_sum is;
    bool there;
    if (!want || !json_is_integer(size))
        return weft_fail(WEFT_EINPUT, "%s/state.json: no checksum of %s", folder, name);
    WEFT_TRY(weft_path(path, "%s/%s", folder, name));
    WEFT_TRY(weft_path_there(path, &there));
    if (!there)
        return weft_fail(WEFT_EINPUT, "%s: is missing, but was written; take another checkpoint",
                         path);
    /* The size first: one that is all holes may take hours to be read. */
    WEFT_TRY(weft_file_size(path, &is.bytes));
    if (is.bytes != json_integer_value(size))
        return weft_fail(WEFT_EINPUT,
                         "%s: %lld bytes, but %lld were written; take another checkpoint", path,
                         (long long)is.bytes, (long long)json_integer_value(size));
    if (!whole) return WEFT_OK;
    WEFT_TRY(weft_file_sum(path, &is));
    snprintf(text, sizeof text, "%08x", (unsigned)is.crc);
    if (strcmp(text, want) == 0) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: its checksum is %s, but %s was written; take another checkpoint", path,
                     text, want);
}

/* Those of the parts that are listed. */
static weft_status check_listed(const char *folder, const json_t *state, bool optimizer) {
    for (int i = 0; i < WEFT_PARTS; i++)
        if ((i != WEFT_PART_OPTIMIZER || optimizer) &&
            json_object_get(json_object_get(state, "files"), weft_parts[i]))
            WEFT_TRY(weft_state_check_file(folder, state, weft_parts[i], true));
    return WEFT_OK;
}

static weft_status has_state(const char *folder, bool *there) {
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_path(path, "%s/state.json", folder));
    return weft_path_there(path, there);
}

weft_status weft_state_verify(const char *folder) {
    json_t *state;
    WEFT_TRY(weft_state_read(folder, &state));
    weft_status status = check_listed(folder, state, true);
    json_decref(state);
    return status;
}

static weft_status check_model(const char *folder) {
    json_t *state;
    bool there;
    WEFT_TRY(has_state(folder, &there));
    if (!there) return WEFT_OK;
    WEFT_TRY(weft_state_read(folder, &state));
    weft_status status = check_listed(folder, state, false);
    json_decref(state);
    return status;
}

/* Whether an open folder no longer has that name. */
static bool is_replaced(int folder, const char *path) {
    struct stat open_one, named;
    return folder >= 0 && fstat(folder, &open_one) == 0 && stat(path, &named) == 0 &&
           (open_one.st_ino != named.st_ino || open_one.st_dev != named.st_dev);
}

/* A run that goes on replaces its checkpoint, perhaps between state.json and what that tells of: then the new one
 * is checked. The old one is held meanwhile, since another may get the number of one that is gone. */
weft_status weft_model_check_sums(const char *folder) {
    weft_status status;
    bool replaced;
    int attempts = 0;
    do {
        int held = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = check_model(folder);
        replaced = is_replaced(held, folder);
        if (held >= 0) close(held);
    } while (status != WEFT_OK && replaced && ++attempts < ATTEMPTS);
    return status;
}

weft_status weft_model_check_optimizer(const char *folder) {
    json_t *state;
    bool there;
    WEFT_TRY(has_state(folder, &there));
    if (!there)
        return weft_fail(WEFT_EINPUT,
                         "%s/%s: no state.json beside it says that it belongs to these weights",
                         folder, weft_parts[WEFT_PART_OPTIMIZER]);
    WEFT_TRY(weft_state_read(folder, &state));
    weft_status status =
        weft_state_check_file(folder, state, weft_parts[WEFT_PART_OPTIMIZER], true);
    json_decref(state);
    return status;
}
